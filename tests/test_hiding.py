"""What secure aggregation hides today, attacked: failures that tell, rounds asked for twice, groups, measurements."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.beta import constant
from fedmc.algorithms.messages import NOTHING, SUM_BITS, Broadcast, Shared
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.audit import group_testing
from fedmc.audit.audit import Clients, of_groups
from fedmc.audit.observer import watch
from fedmc.data.datasets import load_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import InputError, TooFewError, UnmeasuredError
from fedmc.federation.node import limits
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Members
from fedmc.federation.setup.identities import Identity
from fedmc.federation.setup.policy import DEFAULT
from fedmc.federation.wire import NEVER, Invitation, Request, decode, decode_reply, encode, from_bytes, to_bytes
from fedmc.privacy.secagg.fixed import from_fixed
from fedmc.problem.scaling import Scaling
from fedmc.training.aggregation import SecureSum
from fedmc.training.fixed_point import unflat
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted
from tests.world import (
    CATALOGUE,
    HIDDEN,
    ITEMS,
    NODES,
    RUN,
    SERVER,
    SIGNER,
    Between,
    World,
    engine_on,
    name_of,
    read,
    run,
    sealed,
    trust_of,
)  # fmt: skip

SEATED = "takes a seat"
LAX = replace(DEFAULT, min_penalty_users=0.0, min_beta=1e-12, max_beta=1e12, runs_per_day=100)  # other bounds matter


@pytest.fixture(autouse=True)
def few_sessions(monkeypatch):
    """A server that tries twice: what is refused is refused again."""
    monkeypatch.setattr("fedmc.federation.server.secagg_session.SESSIONS", 2)


# --- failures that tell (the failure oracle)


def half_rated(dtype="float64"):
    """A shard whose users rated every other item, and which items these are."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero((rng.random((20, ITEMS)) < 0.6) & (np.arange(ITEMS) % 2 == 0))
    stars = rng.integers(1, 6, len(users)).astype(float)
    others = np.full(ITEMS, 99), np.arange(ITEMS), np.full(ITEMS, 3.0)  # another client, who rated everything
    whole = Ratings.from_arrays(*(np.concatenate(pair) for pair in zip((users, items, stars), others, strict=True)))
    shard = make_shards(whole, (whole.users == 99).astype(int), dtype)[0]
    return shard, np.isin(np.arange(ITEMS), shard.by_user.indices)


def asked(broadcast, name=RUN, counted=-1, token="a-token"):
    cohort = Invitation(token, tuple(range(NODES)), NODES)
    return to_bytes(*encode(Request(name, 0, broadcast, counted, CATALOGUE, invitation=cohort)))


def said(node, content):
    arrays, words = from_bytes(node.answer_bytes(sealed(0, content)))
    return SEATED if "stage" in words else decode_reply(arrays, words).status


def hidden(preset="fast", **options):
    return Settings.preset(preset, rank=3, active=NODES, privacy="secagg", min_cohort=3, **options)


def shared_of(settings):
    return constant(settings.beta) if settings.make_algorithm().name in ("linearised", "exact") else NOTHING


def probes(tmp_path, settings, entry, scaling):
    """The node's word for each item, at a V that is zero but for that item; a new run for each of them."""
    shard, rated = half_rated()
    with Store(tmp_path / "node") as store:
        node, words = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=LAX), []
        for item in range(ITEMS):
            V = np.zeros((ITEMS, settings.width))
            V[item] = entry
            broadcast = Broadcast("round", 1, NODES, settings, V, scaling, shared_of(settings))
            words.append(said(node, asked(broadcast, f"probe-{item}")))
    return rated, words


@pytest.mark.parametrize(
    ("options", "entry", "scaling", "expected"),
    [
        ({"penalty_users": "l2:1e-12"}, 1e-6, Scaling(), "wrong-settings"),
        ({"penalty_users": "l2:1e-9"}, 3e-5, Scaling(), "wrong-settings"),
        ({"penalty_users": "none", "penalty_items": "none"}, 1e-6, Scaling(), "wrong-settings"),
        ({"penalty_users": "l2:1e-8"}, 1e-4, Scaling(3.0, 1e-4), SEATED),  # within the bounds: the numbers are cut
        ({}, 1.0, Scaling(3.0, 1e-5), SEATED),
        ({}, 1.0, Scaling(3.0, 1e-9), "diverged"),
    ],
)
def test_fifteen_probes_find_nothing(options, entry, scaling, expected, tmp_path):
    """V zero but for one item: whether the node fails must not depend on who rated it."""
    rated, words = probes(tmp_path, hidden(**options), entry, scaling)
    assert 5 <= rated.sum() <= 10
    assert set(words) == {expected}


EXTREMES = {
    "curvature": {},
    "exact": {"update": "exact", "beta": 1e-9},
    "exact, fitted to W": {"update": "exact", "beta": 1e6, "fit_users_to": "W", "dual_step": 1.99},
    "l1": {"penalty_users": "l1:1e-8", "penalty_items": "none"},
    "group": {"penalty_users": "group-l2:1e-8", "penalty_items": "none"},
    "box": {"penalty_users": "box:-1e6,1e6", "penalty_items": "none"},
    "huber": {"update": "exact", "loss": "huber:1e-6", "beta": 1.0},
    "linearised": {"update": "linearised", "beta": 1e-9, "dual_step": 1.99},
    "paper": {"preset": "paper", "penalty_users": "l2:1e-8"},
    "fedavg": {"method": "fedavg"},
    "fedmgs": {"method": "fedmgs"},
    "fedmavg": {"method": "fedmavg"},
    "scaffold": {"method": "scaffold"},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", EXTREMES)
def test_no_failure_at_the_edge_of_the_bounds(kind, dtype, tmp_path):
    """Within the bounds a node always takes its seat, whatever was rated: in rounds, measurements and start-up sums."""
    given = {"penalty_users": "l2:1e-8", "penalty_items": "l2:1e6"} | EXTREMES[kind]
    settings = hidden(**given, dtype=dtype)
    rng, (shard, _) = np.random.default_rng(1), half_rated(dtype)
    with Store(tmp_path / "node") as store:
        node = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=LAX)
        for number in range(1, 7):
            V = 10.0 ** rng.integers(-12, 7, (ITEMS, settings.width)) * (rng.random((ITEMS, settings.width)) < 0.5)
            scaling = Scaling(limits.LARGEST * (number % 2), limits.SCALE[number % 3 == 0])
            for task in ("moments", "round", "measure"):
                broadcast = Broadcast(task, number, NODES, settings, V.astype(dtype), scaling, shared_of(settings))
                counted = number if task == "measure" else number - 1 or NEVER
                assert said(node, asked(broadcast, counted=counted, token=task)) == SEATED


def test_presets_are_within_the_bounds():
    """The paper's penalty of 1e-6 as well; what is not is refused before a run, with the cure."""
    for settings in (hidden(), hidden(update="exact"), hidden("paper"), hidden("paper", loss="huber")):
        limits.check_settings(settings)
    with pytest.raises(InputError, match=r"must hold every factor, got 'l2:1e-10': add l2:1e-08 or more"):
        limits.check_settings(hidden(penalty_users="l2:1e-10"))
    with pytest.raises(InputError, match=r"entry_penalty must be at least 0.01"):
        limits.check_settings(hidden(entry_penalty=1e-6))
    with pytest.raises(InputError, match=r"Huber's delta must be 1e-06 to 1e\+06"):
        limits.check_settings(hidden(update="exact", loss="huber:1e-9"))


def test_beta_is_bounded(tmp_path):
    settings = hidden(update="exact")
    shard, _ = half_rated()
    with Store(tmp_path / "node") as store:
        policy = replace(LAX, min_beta=0.0)  # any policy looks at beta too
        node = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=policy)
        for factor, expected in ((1.0, SEATED), (1e-15, "diverged"), (1e10, "diverged")):
            factors = {"beta_items": np.full(ITEMS, factor), "beta_coordinates": np.ones(settings.width)}
            broadcast = Broadcast(
                "round", 1, NODES, settings, np.ones((ITEMS, settings.width)), Scaling(), Shared(factors)
            )
            assert said(node, asked(broadcast, f"beta-{factor:g}".replace(".", "").replace("+", ""))) == expected


# --- a request that was revealed is final


class Twice:
    """A server that has revealed round 2 of a run, and asks for it again in another way, with node 3 lost."""

    def __init__(self, folder):
        self.world, states = World(folder), []
        engine = engine_on(self.world, 3)
        history = rounds(engine, HIDDEN, on_checkpoint=states.append)
        list(itertools.islice(history, 2))
        self.broadcast = states[-1].broadcast._replace(task="round", round=2)
        self.first = self.sum_of(self.broadcast, {})

    def sum_of(self, broadcast, lost, counted=1):
        wire = Between(self.world, lambda stage, client, reply: None if lost.get(client) == stage else reply)
        engine = engine_on(wire, 3)
        engine.restore(dict.fromkeys(range(NODES), counted), {})
        return engine.ask(broadcast, range(NODES))

    def revive(self):
        for client in range(NODES):
            self.world.revive(client)


def nearly(broadcast):
    return broadcast._replace(V=broadcast.V * (1 + 1e-9))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "again",
    [
        nearly,
        lambda broadcast: nearly(broadcast)._replace(round=3),  # as if round 2 had not been counted
        lambda broadcast: broadcast._replace(scaling=Scaling(broadcast.scaling.mean, broadcast.scaling.scale * 1.001)),
        lambda broadcast: broadcast._replace(shared=constant(2.0)),
    ],
)
def test_a_round_that_was_revealed_is_not_revealed_in_another_way(again, restarted, tmp_path, caplog):
    """Sums of nearly the same V with and without node 3 would differ by what node 3 sent."""
    attack = Twice(tmp_path)
    if restarted:
        attack.revive()
    with pytest.raises(TooFewError, match="not-hidden"):
        attack.sum_of(again(attack.broadcast), {3: "mask"})
    assert "was revealed" in caplog.text
    same = attack.sum_of(attack.broadcast, {})  # the same request over the same survivors is answered again
    np.testing.assert_array_equal(same["S"], attack.first["S"])
    with pytest.raises(TooFewError, match="0 of 4 members confirmed"):
        attack.sum_of(attack.broadcast, {3: "mask"})


def test_the_attack_works_where_nothing_is_final(tmp_path, monkeypatch):
    """So that the tests above refuse something: without the checks, the difference is what node 3 sent."""
    attack = Twice(tmp_path)
    monkeypatch.setattr("fedmc.federation.node.checks.check_final", lambda store, request: None)
    monkeypatch.setattr("fedmc.federation.node.final.OnceAmong.before_confirm", lambda self, survivors: None)
    second = attack.sum_of(nearly(attack.broadcast), {3: "mask"})
    assert second.clients == (0, 1, 2)
    sent = attack.world.stores[3].get(RUN, "pending", HIDDEN.make_algorithm())
    words = unflat(np.frombuffer(sent.reply, np.int64), schema_of(attack.broadcast, ITEMS))
    found, theirs = attack.first["S"] - second["S"], from_fixed(words["S"], SUM_BITS)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(found, theirs, atol=1e-6)


def test_other_members_are_refused(tmp_path):
    """The same V over a cohort without node 3."""
    attack = Twice(tmp_path)
    engine = engine_on(attack.world, 3)
    engine.restore(dict.fromkeys(range(NODES), 1), {})
    with pytest.raises(TooFewError, match="not-hidden"):
        engine.ask(attack.broadcast, (0, 1, 2))


def test_a_run_goes_on_after_a_reveal(tmp_path):
    """Once the server counts the round, the next one is open, also after restarts."""
    attack = Twice(tmp_path)
    attack.revive()
    attack.sum_of(nearly(attack.broadcast)._replace(round=3), {}, counted=2)


def test_counts_are_revealed_among_the_same_members_only(tmp_path, caplog):
    """Item counts never change: another shift of the ratings, or another run, must not show them without node 3."""
    world, wire = World(tmp_path), Between(World(tmp_path / "seen"))
    run(wire, 0)
    first = decode(*read(wire.seen[0][2])).broadcast
    assert first.task == "moments"
    run(world, 0)
    for name in (RUN, "another-run"):
        shifted = first._replace(round=5, scaling=Scaling(1e-7))
        caplog.clear()
        with pytest.raises(TooFewError):
            moments(world, name, shifted, {3: "mask"})
        assert "the same reply was in a sum over (0, 1, 2, 3)" in caplog.text
        assert moments(world, name, shifted, {}).number("count") > 0  # over all of them it tells nothing new


def moments(world, name, broadcast, lost):
    wire = Between(world, lambda stage, client, reply: None if lost.get(client) == stage else reply)
    engine = engine_on(wire, 3, name)
    engine.restore({NODES: 1}, {})  # a run that has begun does not need everybody
    return engine.ask(broadcast, range(NODES))


def answers_to(world, name, broadcast, lost=(), counted=-1):
    """What each node says at `confirm`, if the server pretends to have lost these."""
    said = {}

    def change(stage, client, reply):
        if stage == "confirm":
            said[client] = from_bytes(reply)[1]["status"]
        return None if stage == "mask" and client in lost else reply

    engine = engine_on(Between(world, change), 3, name)
    engine.restore(dict.fromkeys(range(NODES), counted) if counted > 0 else {}, {})
    with contextlib.suppress(TooFewError):
        engine.ask(broadcast, range(NODES))
    return said


def test_a_refusal_to_confirm_does_not_tell_who_rated_an_item(tmp_path, monkeypatch):
    """Two runs at the same V, the second without node 3: every node refuses it, whatever it rated."""
    monkeypatch.setattr("tests.world.planted", lambda: planted(density=0.0, seed=3))
    world = World(tmp_path, policy=replace(DEFAULT, runs_per_day=100))
    said = {}
    for item in range(4):
        V = np.zeros((ITEMS, HIDDEN.width))
        first = Broadcast("round", 1, NODES, HIDDEN, V.copy(), Scaling(0.0, 1.0))
        V[item, 0] = 1.0
        for name, lost in ((f"a-{item}", ()), (f"b-{item}", (3,))):
            assert set(answers_to(world, name, first).values()) == {"ok"}
            said[name] = answers_to(world, name, first._replace(round=2, V=V), lost, counted=1)
    rated = [{client: item in world.shards[client].by_user.indices for client in range(3)} for item in range(4)]
    assert {found for row in rated for found in row.values()} == {True, False}
    for item in range(4):
        assert set(said[f"a-{item}"].values()) == {"ok"}
        assert said[f"b-{item}"] == dict.fromkeys(range(3), "not-hidden")


# --- measurements


def measured_without(tmp_path, lost):
    """The history of a run in which node 2 is lost at this stage of the measurement of round 2."""
    seen = []

    def lose(stage, client, reply):
        seen.extend([stage] if client == 0 else [])
        there = seen.count("measure") >= 3 and seen.count("round") == 2
        return None if there and client == 2 and stage == lost else reply

    world = World(tmp_path)
    return world, run(Between(world, lose), 3, quorum=3)


@pytest.mark.parametrize("lost", ["measure", "mask"])
def test_a_measurement_without_somebody_is_not_released(lost, tmp_path):
    """Subtracted from the one before, it would show the counts of whoever is missing. The run goes on."""
    _, (engine, history) = measured_without(tmp_path, lost)
    assert [round.diagnostics.train_rmse is None for round in history] == [False, False, True, False]
    assert any(one.client == 2 for one in engine.absent)


def test_nodes_refuse_a_measurement_over_others(tmp_path):
    """Whatever the server says."""
    world = World(tmp_path)
    engine, history = run(world, 1, quorum=3)
    again = history[-1].broadcast._replace(task="measure", V=1.01 * history[-1].V, round=9)
    for name in (RUN, "another-run"):
        with pytest.raises(UnmeasuredError, match="not-hidden"):
            engine_on(world, 3, name).ask(again, (0, 1, 2))
    assert engine.ask(again._replace(round=10), range(NODES)).number("train_count") > 0


# --- groups


def reshuffled(self, turn, joined):
    """The cohorts of the first version: the clients drawn, filled up with others that change from round to round."""
    least, drawn = self.min_cohort, set(turn.drawn)
    waiting = set(range(turn.clients)) - joined
    new = drawn - joined if drawn - joined and len(waiting) >= least else set()
    new |= set(sorted(waiting - new)[: max(least - len(new), 0)]) if new else set()
    new |= waiting - new if len(waiting - new) < least and new else set()
    taking_part = (drawn & joined) | new
    others = sorted(joined - taking_part)
    first = turn.number % max(len(others), 1)
    taking_part |= set((others[first:] + others[:first])[: max(least - len(taking_part), 0)])
    return tuple(sorted(taking_part)) if len(taking_part) >= least else ()


def group_testing_on(shards, settings, number, absences=0):
    found = of_groups(Clients.of(shards), watch(shards, settings, (0,), number, absences))
    return found[0]


def test_what_silent_rows_prove_by_hand():
    """Three items over cohorts of four clients: 0 and 1 rated the first item, 2 the second, nobody the third."""
    truth = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    cohorts = [(0, 1), (2, 3), (1, 3), (0, 2)]
    silent = [~truth[list(cohort)].any(axis=0) for cohort in cohorts]
    rated, unrated = group_testing.prove(silent, cohorts, 4)
    np.testing.assert_array_equal(rated, truth)
    np.testing.assert_array_equal(unrated, ~truth)
    rated, unrated = group_testing.prove(silent[:2], cohorts[:2], 4)
    assert not rated.any()
    np.testing.assert_array_equal(unrated, [[0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1]])


@pytest.mark.parametrize("update", ["curvature", "exact"])
def test_group_testing_needs_other_groups_or_an_absence(update, monkeypatch):
    """12 clients, 3 a round: nobody is named over fixed groups, many are over reshuffled ones or after absences."""
    ratings = make_ratings(Recipe(48, 300, 1500, rank=3, scale=(1.0, 5.0, 1.0)))
    shards = make_shards(ratings, assign_users(48, 12, 0), "float64")
    settings = Settings.preset("fast", rank=3, active=3, update=update, privacy="secagg", min_cohort=3)
    fixed = group_testing_on(shards, settings, 16)
    assert fixed.attack == 0
    assert "of 0 of" in fixed.meaning
    assert "0 of these are wrong" in fixed.meaning
    absent = group_testing_on(shards, settings, 16, absences=1)
    assert absent.attack > 0.5
    assert "with 12 absences" in absent.sees
    assert "0 of these are wrong" in absent.meaning
    monkeypatch.setattr(SecureSum, "participants", reshuffled)
    shuffled = group_testing_on(shards, settings, 16)
    assert shuffled.attack > 0.5
    assert "0 of these are wrong" in shuffled.meaning


@pytest.mark.slow
@pytest.mark.realdata
def test_group_testing_on_movielens_100k(data_folder, monkeypatch, capsys):
    """40 clients, 10 a round, 40 rounds: no attribution, unless somebody is absent, or cohorts are reshuffled."""
    ratings = load_source(str(data_folder / "ml-100k" / "u.data"))
    shards = make_shards(ratings, assign_users(len(ratings.users), 40, 0), "float64")
    settings = Settings.preset("fast", rank=5, active=10, privacy="secagg", min_cohort=10)
    fixed, absent = group_testing_on(shards, settings, 40), group_testing_on(shards, settings, 44, absences=1)
    monkeypatch.setattr(SecureSum, "participants", reshuffled)
    shuffled = group_testing_on(shards, settings, 40)
    with capsys.disabled():
        for words in (
            "fixed groups: " + fixed.meaning,
            "absences: " + absent.meaning,
            "reshuffled: " + shuffled.meaning,
        ):
            print("\n" + words)
    assert fixed.attack == 0
    assert "of 0 of" in fixed.meaning
    assert shuffled.attack > 0.95
    assert absent.attack > 0.7
    for one in (fixed, absent, shuffled):
        assert "0 of these are wrong" in one.meaning


def test_a_federation_takes_the_groups_of_the_simulation(tmp_path):
    """Eight organisations in two groups: the same cohorts and the same bits, whatever the seed."""
    clients = 8
    keys = [Ed25519PrivateKey.generate() for _ in range(clients)]
    pinned = {k: key.public_key() for k, key in enumerate(keys)}
    shards = make_shards(planted(), np.arange(40) % clients, "float64")
    settings = Settings.preset("fast", rank=3, active=4, privacy="secagg", min_cohort=4, seed=5)
    with contextlib.ExitStack() as stores:
        nodes = [
            Node(
                shard,
                CATALOGUE,
                stores.enter_context(Store(tmp_path / str(k))),
                trust=Trust(name_of(k), SERVER.public_key(), Identity(k, keys[k], pinned, 4)),
            )
            for k, shard in enumerate(shards)
        ]
        wire = SimpleNamespace(
            exchange=lambda contents, *limits: {k: nodes[k].answer_bytes(content) for k, content in contents.items()}
        )
        engine = FederatedEngine(wire, RUN, Members(clients, ITEMS, CATALOGUE, clients, pinned), SIGNER)
        there = list(itertools.islice(rounds(engine, settings), 5))
    here = list(itertools.islice(rounds(LocalEngine(shards), settings), 5))
    assert [round.participants for round in there[1:]] == 2 * [(0, 1, 2, 3), (4, 5, 6, 7)]
    for one, other in zip(there, here, strict=True):
        assert one.participants == other.participants
        assert one.V.tobytes() == other.V.tobytes()
