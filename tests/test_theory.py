"""The paper's lemmas, held at every round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmc.algorithms import beta
from fedmc.algorithms.admm import LinearisedADMM
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.theory import _sizes, cross_lipschitz
from fedmc.problem import subproblem
from fedmc.problem.losses import Huber, Logistic, Square
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from fedmc.training.rounds import rounds
from tests.conftest import local_engine, planted

CLIENTS, RANK, ROUNDS = 6, 3, 30


def paper(**changes):
    return Settings.preset("paper", **({"rank": RANK, "active": 2, "beta": 0.5, "penalty_users": "l1:0.2"} | changes))


def problems(shard):
    return Problem(shard.by_user, Square(), Scaling()), Problem(shard.by_item, Square(), Scaling())


@pytest.mark.parametrize("N", [1, 2, 10])
def test_Y_lemma_holds_for_sampled_and_unsampled_clients(N):
    """Y = -1/p [ grad_V f(U, W_prev) + L_U (W - W_prev) ], W_prev the inner iterate before the last."""
    engine = local_engine(planted(), CLIENTS)
    settings = paper(inner_steps=N)
    run = rounds(engine, settings)
    V = next(run).V
    W_prev = [state.W for state in engine.states]
    old = list(engine.states)
    for round in itertools.islice(run, ROUNDS):
        for i in round.participants:
            W_prev[i] = item_iterates(engine.shards[i], old[i], engine.states[i].U, V, settings)[-2]
        for shard, state, before in zip(engine.shards, engine.states, W_prev, strict=True):
            L_U = subproblem.lipschitz(state.U, Square())
            slope = subproblem.gradient(problems(shard)[1], state.U, before)
            expected = -(slope + L_U * (state.W - before)) / CLIENTS
            np.testing.assert_allclose(state.Y, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
        V, old = round.V, list(engine.states)


def item_iterates(shard, state, U, V, settings):
    """W_i^{k,0}, ..., W_i^{k,N} by the paper's (v:update), one step at a time."""
    by_item, p, beta = problems(shard)[1], CLIENTS, settings.beta
    L = subproblem.lipschitz(U, Square())
    iterates = [state.W]
    for _ in range(settings.inner_steps):
        W = iterates[-1]
        numerator = L / p * W + beta * V - subproblem.gradient(by_item, U, W) / p - state.Y
        iterates.append(numerator / (L / p + beta))
    return iterates


def user_iterates(shard, state, settings):
    """U_i^{k,0}, ..., U_i^{k,N} by (u:update)."""
    by_user = problems(shard)[0]
    penalty, _ = settings.penalties(CLIENTS)
    L = subproblem.lipschitz(state.W, Square())
    iterates = [state.U]
    for _ in range(settings.inner_steps):
        U = iterates[-1]
        iterates.append(penalty.prox(U - subproblem.gradient(by_user, state.W, U) / L, 1 / L))
    return iterates


def test_exact_update_makes_the_dual_the_gradient():
    """The remark's W: 0 = grad_V f(U, W)/p + Y + beta (W - V), so that the new Y is -grad_V f(U, W)/p."""
    engine = local_engine(planted(), CLIENTS)
    for _ in itertools.islice(rounds(engine, paper(update="exact")), ROUNDS):
        for shard, state in zip(engine.shards, engine.states, strict=True):
            expected = -subproblem.gradient(problems(shard)[1], state.U, state.W) / CLIENTS
            np.testing.assert_allclose(state.Y, expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())


def client_lagrangian(shard, U, W, V, Y, settings):
    by_user = problems(shard)[0]
    penalty, _ = settings.penalties(CLIENTS)
    gap = W - V
    value = (subproblem.loss_value(by_user, W, U) + penalty.value(U)) / CLIENTS
    return value + np.sum(Y * gap) + settings.beta / 2 * np.sum(gap**2)


@pytest.mark.parametrize("beta", [0.01, 0.5, 20])
def test_each_half_decreases_the_clients_lagrangian(beta):
    """The two telescoped inequalities before the lemma on L^k, whatever beta is."""
    engine = local_engine(planted(), CLIENTS)
    settings = paper(beta=beta, inner_steps=4)
    run = rounds(engine, settings)
    V, old = next(run).V, list(engine.states)
    for round in itertools.islice(run, ROUNDS):
        for i in round.participants:
            shard, before, after = engine.shards[i], old[i], engine.states[i]
            Us = user_iterates(shard, before, settings)
            Ws = item_iterates(shard, before, after.U, V, settings)
            L_W, L_U = subproblem.lipschitz(before.W, Square()), subproblem.lipschitz(after.U, Square())
            value = [
                client_lagrangian(shard, U, W, V, before.Y, settings)
                for U, W in ((before.U, before.W), (after.U, before.W), (after.U, after.W))
            ]
            moved_U = L_W / (2 * CLIENTS) * sum(np.sum((b - a) ** 2) for a, b in itertools.pairwise(Us))
            moved_W = L_U / (2 * CLIENTS) * sum(np.sum((b - a) ** 2) for a, b in itertools.pairwise(Ws))
            slack = 1e-10 * abs(value[0])
            assert value[1] + moved_U <= value[0] + slack
            assert value[2] + moved_W <= value[1] + slack
        V, old = round.V, list(engine.states)


def test_lagrangian_decreases_above_the_corrected_threshold():
    """With everybody in every round the decrease is certain, not only in expectation."""
    ratings = planted(noise=0.05)
    probe = rounds(local_engine(ratings, CLIENTS), paper(active=CLIENTS, inner_steps=2, beta=1.0), full=True)
    beta = 300 * next(probe).diagnostics.beta_needed
    run = rounds(local_engine(ratings, CLIENTS), paper(active=CLIENTS, inner_steps=2, beta=beta), full=True)
    seen = [round.diagnostics for round in itertools.islice(run, 60)]
    assert all(d.certified for d in seen)
    lagrangians = np.array([d.lagrangian for d in seen])
    assert (np.diff(lagrangians) < 0).all()


def test_shuffled_passes_are_not_certified():
    """The theorem wants draws that do not depend on the past."""
    run = rounds(local_engine(planted(), CLIENTS), paper(sampler="passes", beta=1e9), full=True)
    assert next(run).diagnostics.certified is False


def test_small_beta_is_not_certified_but_runs():
    run = rounds(local_engine(planted(), CLIENTS), paper(), full=True)
    seen = [round.diagnostics for round in itertools.islice(run, 3)]
    assert all(d.certified is False and d.beta_needed > 0.5 for d in seen)


def test_certificate_takes_the_max_of_both_terms():
    """The proof needs both brackets positive: between the two terms beta is not certified."""
    engine = local_engine(planted(), CLIENTS)
    first = next(rounds(engine, paper(active=CLIENTS), full=True)).diagnostics
    terms = threshold_terms(engine, N=10, p_min=1.0)
    assert min(terms) < max(terms)
    assert first.beta_needed >= max(terms)
    assert first.beta_needed <= max(terms) * CLIENTS ** (5 / 32) * (1 + 1e-9)
    between = paper(active=CLIENTS, beta=float(np.sqrt(min(terms) * max(terms))))
    assert next(rounds(local_engine(planted(), CLIENTS), between, full=True)).diagnostics.certified is False


def threshold_terms(engine, N, p_min):
    p = engine.clients
    L_U = [np.linalg.norm(s.U.T @ s.U) for s in engine.states]
    L_V = [np.linalg.norm(s.W.T @ s.W) for s in engine.states]
    pulls = []
    for shard, s in zip(engine.shards, engine.states, strict=True):
        pulls.append(np.linalg.norm((s.U @ s.W.T - shard.by_user.toarray())[shard.by_user.toarray() != 0]))
    U, W = (max(np.linalg.norm(getattr(s, name)) for s in engine.states) for name in "UW")
    L = U * W + max(pulls)
    return 8 * N * L**2 / (p * min(L_V)), 8 * (8 + N) * max(L_U) ** 2 / (p_min * p * min(L_U))


@pytest.mark.parametrize("loss", [Square(), Huber(0.3), Logistic()])
def test_cross_lipschitz_constant_holds(loss):
    """||grad_V f(U, W) - grad_V f(X, W)|| <= L ||U - X|| with the norms of X, and W and the pulls at (U, W)."""
    rng = np.random.default_rng(0)
    shard = local_engine(planted(), 2).shards[0]
    by_user, by_item = (problem._replace(loss=loss) for problem in problems(shard))
    W = rng.normal(size=(shard.by_user.shape[1], RANK))
    for size in np.geomspace(1e-3, 10, 50):
        U = rng.normal(size=(len(shard.users), RANK))
        X = U + size * rng.normal(size=U.shape)
        at_U, at_X = _sizes(by_user, U, W), _sizes(by_user, X, W)
        L = cross_lipschitz(at_X["U_high"], at_U["W_high"], at_U["pulls_high"])
        change = subproblem.gradient(by_item, U, W) - subproblem.gradient(by_item, X, W)
        assert np.linalg.norm(change) <= L * np.linalg.norm(U - X)


def test_the_certificates_L_pairs_the_users_of_one_round_with_the_items_of_the_next():
    """The maxima run over all rounds; with U shrinking, L is larger than what any single round gives."""
    engine = local_engine(planted(), CLIENTS)
    run = rounds(engine, paper(active=CLIENTS, penalty_users="l2:40"), full=True)
    opening, first = next(run).diagnostics, threshold_terms(engine, 10, 1.0)
    U = [np.linalg.norm(s.U) for s in engine.states]
    after = next(run).diagnostics
    assert max(np.linalg.norm(s.U) for s in engine.states) < max(U)
    own = threshold_terms(engine, 10, 1.0)
    pulls = max(
        np.linalg.norm((s.U @ s.W.T - M)[M != 0])
        for s, M in ((s, shard.by_user.toarray()) for s, shard in zip(engine.states, engine.shards, strict=True))
    )
    mixed = max(U) * max(np.linalg.norm(s.W) for s in engine.states) + pulls
    low = min(np.linalg.norm(s.W.T @ s.W) for s in engine.states)
    assert after.beta_needed >= 8 * 10 * mixed**2 / (CLIENTS * low) > own[0]
    assert opening.beta_needed >= max(first)
    assert after.beta_needed >= opening.beta_needed


def test_stationarity_vanishes():
    """O(1/K): the running mean of the squared bound, times K, stays bounded; here its sum settles."""
    run = rounds(local_engine(planted(), CLIENTS), paper(active=3, beta=1.0), full=True)
    assert next(run).diagnostics.stationarity is None
    squares = np.array([round.diagnostics.stationarity**2 for round in itertools.islice(run, 400)])
    assert squares[-1] < 1e-3 * squares[0]
    assert squares[200:].sum() < 0.05 * squares.sum()


def test_local_round_leaves_its_inputs_alone():
    engine = local_engine(planted(), CLIENTS)
    V = next(rounds(engine, paper())).V
    state = engine.states[0]
    copies = [array.copy() for array in (*state, V)]
    broadcast = Broadcast("round", 1, CLIENTS, paper(), V, shared=beta.constant(0.5))
    LinearisedADMM().local_round(engine.shards[0], state, broadcast)
    for array, copy in zip((*state, V), copies, strict=True):
        assert np.array_equal(array, copy)
