"""Secure aggregation in training: the same model as in plain, to within the fixed point, and cohorts that hide."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc.algorithms.messages import SUM_BITS, Broadcast, length
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.errors import Diverged, InputError
from fedmc.privacy.secagg.cohorts import cohort, groups
from fedmc.privacy.secagg.rules import colluders
from fedmc.training.aggregation import aggregation_of
from fedmc.training.fixed_point import FixedPointState, flat
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import examples, planted

NODES, HALF = 4, 2.0 ** -(SUM_BITS + 1)
HIDDEN = {"privacy": "secagg", "min_cohort": 3}
KINDS = {
    "paper": Settings.preset("paper", rank=3, beta=0.5, active=3),
    "exact": Settings.preset("fast", rank=3, update="exact", active=3),
    "curvature": Settings.preset("fast", rank=3, active=3),
    "no-biases": Settings.preset("fast", rank=3, active=4, biases=False, normalise="none"),
}


def engine_of(nodes=NODES):
    return LocalEngine(make_shards(planted(), np.arange(40) % nodes, "float64"))


def trained(settings, number):
    engine, states = engine_of(), []
    for round in islice(rounds(engine, settings, measure_every=number, on_checkpoint=states.append), number + 1):
        last = round
    return engine, states[-1], last


@pytest.mark.parametrize(
    "kind", ["curvature", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "curvature")]
)
def test_v_is_that_of_plain_within_the_fixed_point(kind):
    settings = KINDS[kind].replace(active=NODES)  # all, so that both ask the same clients
    _, plain, shown = trained(settings, 1000)
    _, hidden, hidden_shown = trained(settings.replace(**HIDDEN), 1000)
    # In the paper's preset factors may turn without a cost, and rounding turns them a little in every round.
    np.testing.assert_allclose(hidden.broadcast.V, plain.broadcast.V, rtol=0, atol=1000 * NODES * HALF)
    assert hidden_shown.diagnostics.train_rmse == pytest.approx(shown.diagnostics.train_rmse, abs=1e-5)
    assert hidden.broadcast.V.tobytes() != plain.broadcast.V.tobytes()  # it did go through whole numbers


@pytest.mark.parametrize("kind", ["exact", "curvature"])
def test_the_sum_never_drifts(kind):
    """After a thousand rounds S is still the sum of the clients' contributions, each rounded once."""
    engine, last, _ = trained(KINDS[kind].replace(**HIDDEN), 1000)
    assert all(isinstance(state, FixedPointState) for state in engine.states)
    whole, S = sum(state.whole for state in engine.states), last.server.S
    assert (whole.reshape(S.shape) * 2.0**-SUM_BITS == S).all()
    whole_of = KINDS[kind].make_algorithm().contribution
    exact = sum(
        whole_of(shard, state.inner, last.broadcast)["S"]
        for shard, state in zip(engine.shards, engine.states, strict=True)
    )
    assert np.abs(S - exact).max() <= NODES * HALF


def test_a_message_has_one_length_whatever_was_rated():
    settings = KINDS["curvature"].replace(**HIDDEN)
    engine = engine_of()
    lengths = {}
    for task in ("moments", "measure", "round"):
        broadcast = Broadcast(task, 1, NODES, settings, np.full((engine.items, settings.width), 0.5))
        schema, reply = schema_of(broadcast, engine.items), aggregation_of(settings.privacy).reply
        sent = [flat(reply(shard, None, broadcast)[1], schema) for shard in engine.shards]
        assert {words.dtype.name for words in sent} == {"int64"}
        lengths[task] = {len(words) for words in sent}
        assert lengths[task] == {length(schema)}
    assert lengths == {"moments": {3 + 15}, "measure": {10}, "round": {15 * 14 + 1}}


def test_what_words_cannot_hold_is_refused():
    settings = KINDS["curvature"].replace(**HIDDEN)
    engine = engine_of()
    engine.shards[0].by_user.data[:] = 1e9
    with pytest.raises(Diverged, match=r"beyond what secure sums carry.*rescale the ratings"):
        next(rounds(engine, settings))


def test_what_secure_sums_do_not_go_with():
    settings = KINDS["curvature"].replace(**HIDDEN)
    with pytest.raises(
        InputError, match=r"4 clients, of whom 1 may work .*, are too few to hide among, min_cohort is 4"
    ):
        next(rounds(engine_of(), settings.replace(min_cohort=4)))
    with pytest.raises(InputError, match="full diagnostics"):
        next(rounds(engine_of(), settings, full=True))
    with pytest.raises(InputError, match="min_cohort must be at least 3"):
        settings.replace(min_cohort=2)
    with pytest.raises(InputError, match="unknown privacy 'none'"):
        settings.replace(privacy="none")


@given(st.integers(3, 60), st.integers(1, 60), st.integers(3, 12))
@examples(200)
def test_cohorts_hide(clients, active, least):
    """At least so many, and newcomers none or as many."""
    turns, joined = groups(clients, active, least), set()
    for number in range(1, 40):
        found = cohort(turns, least, number)
        assert bool(found) == (clients >= least)
        assert not found or len(found) >= least
        newcomers = set(found) - joined
        assert not newcomers or len(newcomers) >= least
        joined |= set(found)


@given(st.integers(3, 100), st.integers(1, 100), st.integers(1, 100), st.integers(3, 12))
@examples(200)
def test_groups_are_fixed(clients, active, other, least):
    """A division of the clients that has the same smallest parts in any run; there is no other cohort."""
    turns, smallest = groups(clients, active, least), groups(clients, 1, least)
    assert sorted(client for group in turns for client in group) == list(range(clients))
    assert all(len(group) >= min(least, clients) for group in turns)
    for group in (*turns, *groups(clients, other, least)):
        assert all(set(part) <= set(group) or not set(part) & set(group) for part in smallest)
    if clients >= least:
        for number in range(1, 3 * len(turns) + 1):
            assert cohort(turns, least, number) == turns[(number - 1) % len(turns)]
    assert groups(clients, clients, least) == (tuple(range(clients)),)


@pytest.mark.parametrize(
    ("clients", "min_cohort", "sizes"), [(25, 10, (13, 12)), (25, 12, (25,)), (6, 3, (6,)), (3, 3, (3,))]
)
def test_every_round_of_a_run_hides_its_clients(clients, min_cohort, sizes):
    """Of any group one may work together with the server: the others are enough."""
    settings = KINDS["curvature"].replace(privacy="secagg", active=min(10, clients), min_cohort=min_cohort)
    engine = engine_of(clients)
    history = list(islice(rounds(engine, settings), 5))
    ends = np.cumsum((0, *sizes))
    turns = [tuple(range(first, end)) for first, end in pairwise(ends)]
    assert [round.participants for round in history[1:]] == [turns[k % len(turns)] for k in range(4)]
    assert engine.joined == set(range(clients))
    assert min(sizes) - colluders(clients) >= min_cohort


def test_a_group_that_is_too_small_is_not_asked():
    assert groups(9, 3, 3) == ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    assert cohort(groups(9, 3, 3), 3, 2) == (3, 4, 5)
    assert cohort(groups(2, 2, 3), 3, 1) == ()
