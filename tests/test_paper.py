"""`preset="paper"` gives the iterates of the paper's Algorithm 1, to rounding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmc.algorithms.settings import Settings
from fedmc.training.rounds import rounds
from tests import algorithm1
from tests.conftest import local_engine, planted

PENALTIES = {
    "none": (algorithm1.prox_none, algorithm1.prox_none),
    "l2:0.3": (algorithm1.prox_l2(0.3), algorithm1.prox_l2(0.1)),
    "l1:0.3": (algorithm1.prox_l1(0.3), algorithm1.prox_l1(0.1)),
    "non-negative": (algorithm1.prox_non_negative, algorithm1.prox_non_negative),
}
CLIENTS, RANK, ROUNDS = 6, 3, 30


def dense_clients(engine, V):
    """The transcription's clients, from the shards' ratings and the U that each client drew."""
    made = []
    for shard, state in zip(engine.shards, engine.states, strict=True):
        M = shard.by_user.toarray()
        P = np.zeros_like(M)
        P[np.repeat(np.arange(len(M)), np.diff(shard.by_user.indptr)), shard.by_user.indices] = 1
        made.append(algorithm1.Client(M, P, state.U, V.T, engine.clients))
    return made


def close(a, b):
    return np.linalg.norm(a - b) <= 1e-9 * max(np.linalg.norm(b), 1e-12)


@pytest.mark.parametrize(
    ("penalty", "N", "update", "sampler"),
    list(itertools.product(PENALTIES, (1, 10), ("linearised", "explicit", "exact"), ("uniform", "coins", "groups"))),
)
def test_iterates_are_those_of_algorithm_1(penalty, N, update, sampler):
    engine = local_engine(planted(), CLIENTS)
    on_items, beta = penalty.replace("0.3", "0.1"), 5.0 if update == "explicit" else 0.5
    settings = Settings.preset(
        "paper", rank=RANK, penalty_users=penalty, penalty_items=on_items, inner_steps=N, update=update,
        sampler=sampler, active=2, beta=beta,
    )  # fmt: skip
    prox_users, prox_items = PENALTIES[penalty]
    run = rounds(engine, settings)
    opening = next(run)
    V = opening.V.T
    clients = dense_clients(engine, opening.V)
    participants = set()
    for round in itertools.islice(run, ROUNDS):
        for i in round.participants:
            clients[i].update(V, beta, N, prox_users, update)
        V = algorithm1.server_update(clients, beta, prox_items)
        participants |= set(round.participants)
        assert close(round.V.T, V)
        for client, state in zip(clients, engine.states, strict=True):
            assert close(state.U, client.U)
            assert close(state.W.T, client.W)
            assert close(state.Y.T, client.Y)
    assert participants == set(range(CLIENTS))


def test_the_start_is_the_papers():
    engine = local_engine(planted(), CLIENTS)
    opening = next(rounds(engine, Settings.preset("paper", rank=RANK, active=2)))
    V = opening.V
    assert 0 <= V.min() < V.max() <= 1
    assert 0.4 < V.mean() < 0.6
    for client, state in zip(dense_clients(engine, V), engine.states, strict=True):
        assert 0 <= state.U.min() < state.U.max() <= 1
        assert np.array_equal(state.W, V)
        assert close(state.Y.T, client.Y)


def test_each_client_draws_a_different_start():
    engine = local_engine(planted(), CLIENTS)
    next(rounds(engine, Settings.preset("paper", rank=RANK, active=2)))
    firsts = {float(state.U[0, 0]) for state in engine.states}
    assert len(firsts) == CLIENTS


def test_lagrangian_and_objective_match_the_dense_formulas():
    engine = local_engine(planted(), CLIENTS)
    settings = Settings.preset("paper", rank=RANK, penalty_users="l1:0.3", penalty_items="l2:0.1", active=3, beta=0.5)
    run = rounds(engine, settings, full=True)
    opening = next(run)
    clients, V = dense_clients(engine, opening.V), opening.V.T
    R_users, R_items = lambda U: 0.3 * np.abs(U).sum(), lambda V: 0.05 * np.sum(V**2)
    for round in itertools.islice(run, 5):
        before = V
        for i in round.participants:
            clients[i].update(V, 0.5, 10, algorithm1.prox_l1(0.3))
        V = algorithm1.server_update(clients, 0.5, algorithm1.prox_l2(0.1))
        seen = round.diagnostics
        objective = sum(c.f(c.U, V) + R_users(c.U) for c in clients) / CLIENTS + R_items(V)
        assert seen.objective == pytest.approx(objective, rel=1e-9)
        assert seen.lagrangian == pytest.approx(algorithm1.lagrangian(clients, V, 0.5, R_users, R_items), rel=1e-9)
        assert seen.primal_residual == pytest.approx(np.sqrt(sum(np.sum((c.W - V) ** 2) for c in clients)), rel=1e-9)
        assert seen.dual_residual == pytest.approx(np.sqrt(CLIENTS) * 0.5 * np.linalg.norm(V - before), rel=1e-9)
        assert seen.stationarity == pytest.approx(dense_stationarity(clients, V, 0.5), rel=1e-9)
        errors = np.concatenate([c.residual(c.U, V)[c.P > 0] for c in clients])
        assert seen.train_rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)


def dense_stationarity(clients, V, beta):
    """The two norms after the paper's (122d)."""
    p = len(clients)
    nu = sum(c.Y + beta * (c.W - V) for c in clients)
    slope_V, users = nu.copy(), 0.0
    for c in clients:
        L_W = np.linalg.norm(c.W @ c.W.T)
        U_bar = algorithm1.prox_l1(0.3)(c.U - c.grad_U(c.U, c.W) / L_W, 1 / L_W)
        zeta = -c.grad_U(c.U, c.W) - L_W * (U_bar - c.U)
        slope_V += c.grad_V(U_bar, V) / p
        users += np.sum(((c.grad_U(U_bar, V) + zeta) / p) ** 2)
    return np.sqrt(np.sum(slope_V**2) + users)
