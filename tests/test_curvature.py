"""update="curvature": what it promises, on small problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmc.algorithms import curvature
from fedmc.algorithms.exact import SparseADMMState
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.data.partition import make_shards
from fedmc.evaluation.pooled import als, proximal_gradient
from fedmc.problem.losses import Square
from fedmc.problem.subproblem import Problem
from fedmc.training.rounds import rounds
from tests.conftest import local_engine, planted

CLIENTS = 6


def fast(**changes):
    return Settings.preset("fast", **({"rank": 3, "active": 2, "penalty_users": "l2:0.5"} | changes))


def run(settings, number, ratings=None, clients=CLIENTS, **options):
    """The rounds 0..number, and the engine they ran on."""
    engine = local_engine(planted() if ratings is None else ratings, clients)
    return list(itertools.islice(rounds(engine, settings, **options), number + 1)), engine


def whole(ratings):
    return make_shards(ratings, np.zeros(len(ratings.users), np.int64), "float64")[0]


def test_all_clients_together_are_pooled_alternating_least_squares():
    settings = fast(active=CLIENTS, extrapolation=0.0, entry_penalty=1.0)
    history, _ = run(settings, 7)
    pooled = als(whole(planted()), *settings.penalties(1), settings.width, sweeps=7, tolerance=0)
    assert pooled.scaling == pytest.approx(history[0].scaling)
    np.testing.assert_allclose(history[-1].V, pooled.V, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("penalty", ["l2:0.5", "l1:0.5", "non-negative+l2:0.3", "elastic-net:0.2,0.3"])
@pytest.mark.parametrize("sampler", ["passes", "uniform"])
def test_without_extrapolation_the_objective_never_goes_up(penalty, sampler):
    """Once everybody is in the sum: block coordinate descent."""
    settings = fast(extrapolation=0.0, entry_penalty=1.0, penalty_users=penalty, sampler=sampler)
    engine = local_engine(planted(users=60), CLIENTS)
    objectives = []
    for round in itertools.islice(rounds(engine, settings), 40):
        if all(state is not None for state in engine.states):
            objectives.append(round.diagnostics.objective)
    assert len(objectives) > 10
    assert np.diff(objectives).max() <= 1e-9 * objectives[0]


def test_the_servers_sum_is_the_sum_of_all_clients():
    """Changes only ever travelled; no drift beyond rounding, and every state is what the sum was made of."""
    settings = fast(extrapolation=0.5)
    engine = local_engine(planted(), CLIENTS)
    sums = None
    for round in itertools.islice(rounds(engine, settings), 200):
        sums = round
    _, items = settings.penalties(CLIENTS)
    S = sum(
        curvature.packed(Problem(shard.by_item, Square(), sums.scaling), state.Z, items)
        for shard, state in zip(engine.shards, engine.states, strict=True)
    )
    expected = curvature.next_items(S, sums.V, items, CLIENTS)
    np.testing.assert_allclose(sums.V, expected, rtol=1e-8, atol=1e-10)


def test_stationarity_and_the_primal_residual_vanish():
    history, _ = run(fast(), 400, full=True)
    assert history[-1].diagnostics.stationarity < 1e-8 * history[1].diagnostics.stationarity
    assert history[-1].diagnostics.primal_residual < 1e-8


@pytest.mark.parametrize("words", ["l1:1", "elastic-net:0.5,1", "non-negative+l2:1", "non-negative", "box:-1,1+l2:0.3"])
def test_other_penalties_end_where_a_pooled_proximal_solver_does(words):
    """The problem is not convex: no end can the solver leave, and the best of three is no worse than its own best."""
    ratings = planted(users=120, items=30, noise=0.3)
    table = whole(ratings)
    federated, pooled = [], []
    for seed in range(3):
        settings = fast(penalty_users=words, seed=seed)
        penalties = settings.penalties(1)
        last = run(settings, 900, ratings, measure_every=900)[0][-1]
        federated.append(last.diagnostics.objective * CLIENTS)
        for start in (last.V, start_items(len(ratings.items), settings)):
            solved = proximal_gradient(table, *penalties, start, last.scaling)
            pooled.append(solved.objective(table, *penalties))
        assert pooled[-2] == pytest.approx(federated[-1], rel=1e-4)
    assert min(federated) <= min(pooled[1::2]) * (1 + 1e-4)


def test_what_a_client_sends_and_keeps():
    history, engine = run(fast(), 6)
    free = 3 + 1  # the factors and the item's bias
    numbers = free * (free + 1) // 2 + free
    for round in history[1:]:
        rated = sum(len(np.unique(engine.shards[k].by_user.indices)) for k in round.participants)
        assert round.bytes_up == rated * (numbers * 8 + 4)  # and the item's number
    assert {round.bytes_down for round in history[1:]} == {2 * 15 * 5 * 8}
    for shard, state in zip(engine.shards, engine.states, strict=True):
        assert isinstance(state, curvature.CurvatureState)
        assert state.U.shape == state.Z.shape == (len(shard.users), 5)


def test_what_it_cannot_do_falls_back_to_admm():
    assert fast().algorithm == "curvature"
    for change in (
        {"loss": "huber:1"},
        {"beta": 0.5},
        {"dual_step": 1.0},
        {"penalty_items": "group-l2:1", "beta": 1.0},
    ):
        assert fast(**change).algorithm == "exact"
    _, engine = run(fast(beta=0.5), 3)
    assert isinstance(engine.states[0], SparseADMMState)


def test_an_item_that_nobody_seen_so_far_rated_waits_at_zero():
    ratings = planted(density=0.1)
    history, engine = run(fast(active=1), 1, ratings)
    rated = np.diff(engine.shards[history[1].participants[0]].by_item.indptr) > 0
    assert not rated.all()
    assert (history[1].V[~rated][:, :4] == 0).all()
    assert (history[1].V[rated][:, :4] != 0).any(axis=1).all()


def test_new_clients_add_their_term_only():
    """Entering in one round or one by one: the same stationary point in the end."""
    together, one_by_one = (
        run(fast(active=active, penalty_users="l2:2"), number)[0][-1].diagnostics.objective
        for active, number in ((CLIENTS, 300), (1, 1200))
    )
    assert one_by_one == pytest.approx(together, rel=1e-6)
