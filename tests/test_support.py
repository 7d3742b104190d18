"""Decoys: rows of sums that do not show what was rated, what they cost, and what an absence tells in spite of them."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")


from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.audit import group_testing, support
from fedmc.audit.audit import Clients, count_items, of_groups
from fedmc.audit.observer import watch
from fedmc.data.datasets import load_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import InputError
from fedmc.federation.node.states import dump, load
from fedmc.privacy.modes import SecAgg
from fedmc.training import decoys
from fedmc.training.aggregation import aggregation_of
from fedmc.training.fixed_point import FixedPointState
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.secure_sums import SecureSum
from tests.conftest import planted
from tests.secure_world import SecureWorld

KINDS = {
    "curvature": Settings.preset("fast", rank=3, active=4),
    "exact": Settings.preset("fast", rank=3, active=4, update="exact"),
    "bayes": Settings.preset("bayes", rank=3, active=4),
}


def secret(kind="curvature", rate=1.0):
    return KINDS[kind].replace(privacy="secagg", min_cohort=3, decoys=rate)


def sparse_shards(clients=12):
    ratings = make_ratings(Recipe(48, 300, 1500, rank=3, scale=(1.0, 5.0, 1.0)))
    return make_shards(ratings, assign_users(48, clients, 0), "float64")


def trained(shards, settings, number):
    engine = LocalEngine(shards)
    return engine, list(islice(rounds(engine, settings, measure_every=number), number + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_off_is_as_without(kind):
    shards = sparse_shards()
    (_, here), (_, there) = (
        trained(shards, KINDS[kind].replace(privacy="secagg", min_cohort=3, **more), 5)
        for more in ({}, {"decoys": 0.0})
    )
    assert here[-1].V.tobytes() == there[-1].V.tobytes()
    assert "decoys" not in secret(kind, 0.0).to_dict()
    assert Settings.from_dict(secret(kind, 0.3).to_dict()).privacy == SecAgg(3, 0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_silent_with_a_decoy_in_each(kind):
    """Every row changes in every round, though most items are rated by nobody in a cohort."""
    engine = watch(sparse_shards(), secret(kind), (0,), 12, absences=1)
    truth = np.array([count_items(shard) > 0 for shard in engine.shards])
    for one, cohort in zip(engine.sums, engine.cohorts, strict=True):
        assert not truth[list(cohort)].any(axis=0).all()
        assert not group_testing.silent_items(one, len(cohort)).any()
    assert of_groups(Clients.of(engine.shards), engine)[0].attack == 0


def test_decoys_are_permanent_and_unrated():
    shards = sparse_shards()
    shard, settings = shards[0], secret(rate=0.3)
    words = decoys.simulated(settings, 0)
    first, again = decoys.drawn(shard, words, 0.3), decoys.drawn(shard, words, 0.3)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.isin(first.items, shard.rated).any()
    unrated = shard.by_user.shape[1] - len(shard.rated)
    assert 0.2 * unrated < len(first.items) < 0.4 * unrated
    assert set(first.items) <= set(decoys.drawn(shard, words, 0.5).items)
    assert len(decoys.drawn(shard, words, 1.0).items) == unrated
    rows = np.repeat(np.arange(len(shard.users)), np.diff(shard.by_user.indptr))
    np.testing.assert_array_equal(first.users, rows[first.places])
    assert set(first.items) != set(decoys.drawn(shard, decoys.simulated(settings, 1), 0.3).items)
    assert (decoys.at_home(settings, 0) != decoys.at_home(settings, 0)).any()


def test_values_are_predicted_in_some_passes_only():
    """12 clients, 4 a round: a pass has 3 rounds; values change in passes 1, 2 and 4, the secret never."""
    shards, settings = sparse_shards(), secret()
    engine, seen = LocalEngine(shards), []
    for round in islice(rounds(engine, settings, measure_every=15), 16):
        if 0 in round.participants:
            seen.append(engine.states[0].decoys)
    assert len({words[: decoys.SECRET].tobytes() for words in seen}) == 1
    values = [words[decoys.SECRET :].tobytes() for words in seen]
    assert [one != other for one, other in pairwise(values)] == [True, False, True, False]
    broadcast = Broadcast("round", 1, 12, settings, np.zeros((1, 1)))
    assert [k for k in range(1, 30) if decoys.due(broadcast._replace(round=k))] == [
        *range(1, 7), *range(10, 13), *range(22, 25)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_client_keeps_its_decoys(kind):
    """A state that went through a node's store gives the same reply, with a secret that nobody could draw again."""
    shard, settings = sparse_shards()[0], secret(kind)
    _, history = trained(sparse_shards(), settings, 4)
    broadcast = history[-1].broadcast._replace(task="round", round=7)
    at_home = SecureSum(3, 1.0, secret=decoys.at_home)
    state, _ = at_home.reply(shard, None, broadcast)
    assert isinstance(state, FixedPointState)
    back = load(dump(state), settings.make_algorithm())
    np.testing.assert_array_equal(back.decoys, state.decoys)
    np.testing.assert_array_equal(back.whole, state.whole)
    later = broadcast._replace(round=8, V=1.01 * broadcast.V)
    (one, sums), (other, again) = (at_home.reply(shard, known, later) for known in (state, back))
    assert one.decoys.tobytes() == other.decoys.tobytes() == state.decoys.tobytes()
    assert sums["S"].tobytes() == again["S"].tobytes()
    plain = FixedPointState(state.inner, state.whole)
    assert load(dump(plain), settings.make_algorithm()).whole.tobytes() == state.whole.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_federation_computes_the_bits_of_the_simulation(kind, tmp_path, monkeypatch):
    """Four organisations that have rated few items, with the secrets of the simulation."""
    monkeypatch.setattr(decoys, "at_home", decoys.simulated)
    monkeypatch.setattr("tests.secure_world.planted", lambda: planted(density=0.02))
    world, settings = SecureWorld(tmp_path, 4), secret(kind).replace(active=4, min_cohort=3)
    there = list(islice(rounds(world.engine(), settings), 4))
    engine = LocalEngine(world.shards)
    here = list(islice(rounds(engine, settings), 4))
    assert all(len(state.decoys) > decoys.SECRET for state in engine.states)
    for one, other in zip(there, here, strict=True):
        assert one.V.tobytes() == other.V.tobytes()


def test_users_counts_and_measurements_are_without_decoys():
    shards = sparse_shards()
    for kind in KINDS:
        (engine, plain), (hidden, with_decoys) = (trained(shards, secret(kind, rate), 4) for rate in (0.0, 1.0))
        assert plain[0].scaling == with_decoys[0].scaling
        assert [state.U.shape for state in engine.states] == [state.U.shape for state in hidden.states]
        assert plain[-1].bytes_up == with_decoys[-1].bytes_up
        assert plain[-1].V.tobytes() != with_decoys[-1].V.tobytes()
        assert with_decoys[-1].diagnostics.train_rmse == pytest.approx(plain[-1].diagnostics.train_rmse, rel=0.3)


def test_what_decoys_do_not_go_with():
    with pytest.raises(InputError, match="decoys must be at most 1"):
        SecAgg(10, 1.5)
    with pytest.raises(InputError, match="decoys need algorithm='curvature', 'exact' or 'bayes', got gibbs"):
        Settings.preset("bayes", algorithm="gibbs", privacy="secagg", decoys=0.5)
    assert aggregation_of(SecAgg(10, 0.5)).rate == 0.5


def test_the_attack_finds_what_rows_show_and_less_with_decoys():
    shards = sparse_shards()
    truth, counts = np.array([count_items(shard) > 0 for shard in shards]), sum(map(count_items, shards))
    found = []
    for rate in (0.0, 1.0):
        engine = watch(shards, secret(rate=rate), (0,), 24, absences=1)
        found.append(support.attack(engine.sums, engine.cohorts, truth, counts))
    assert found[0].rare_attack > 0.95
    assert found[1].rare_attack - found[1].rare_guess < 0.25 < found[0].rare_attack - found[0].rare_guess
    assert found[0].rare == found[1].rare > 0


def test_groups_and_the_turns_that_were_missed():
    cohorts = [(0, 1, 2), (3, 4, 5), (1, 2), (3, 5), (0, 1), (3, 4, 5)]
    first, second = support.groups_of(cohorts)
    assert first == support.Group((0, 1, 2), [0, 2, 4], {0: [1], 2: [2]})
    assert second == support.Group((3, 4, 5), [1, 3, 5], {4: [1]})


def test_the_regression_finds_known_weights():
    rng = np.random.default_rng(0)
    lines = np.concatenate([rng.standard_normal((4000, 2)), np.ones((4000, 1))], axis=1)
    chance = 1 / (1 + np.exp(-lines @ [2.0, 0.0, -1.0]))
    weights = support.logistic(lines, rng.random(4000) < chance)
    np.testing.assert_allclose(weights, [2.0, 0.0, -1.0], atol=0.2)


@pytest.mark.slow
@pytest.mark.realdata
def test_what_decoys_leave_on_movielens_100k(data_folder):
    """40 clients, 10 a round, one absence each: no proof, and little more than popularity."""
    ratings = load_source(str(data_folder / "ml-100k" / "u.data"))
    shards = make_shards(ratings, assign_users(len(ratings.users), 40, 0), "float64")
    settings = Settings.preset("fast", rank=10, active=10, privacy="secagg")
    plain, hidden = (
        of_groups(Clients.of(shards), watch(shards, settings.replace(decoys=rate), (0,), 80, absences=1))
        for rate in (0.0, 1.0)
    )
    assert plain[0].attack > 0.8
    assert hidden[0].attack == 0
    assert plain[2].advantage > 0.4
    assert plain[1].advantage > 0.05
    assert hidden[2].advantage < 0.12
    assert hidden[1].advantage < 0.02
