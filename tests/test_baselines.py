"""The methods of comparison: dense transcriptions of their formulas, and the same rounds and diagnostics as FedMC."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms import registry
from fedmc.algorithms.fedadmm import SHARE
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.problem.rng import client_rng, server_rng
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.sampling import CoinFlips, sampler_of
from tests.conftest import local_engine, planted

CLIENTS, RANK, ROUNDS, Q, WEIGHT = 6, 3, 8, 4, 0.05
OF_EVENTS = [name for name in registry.names() if registry.of_events(name)]
ELSEWHERE = (*registry.UPDATES, "dp", "bayes", "gibbs", *OF_EVENTS)  # test_paper, test_dp, ..., test_ials
NAMES = ["fedmc"] + [name for name in registry.names() if name not in ELSEWHERE]


class Dense:
    """A client with its masked table, V as the paper writes it: r x n."""

    def __init__(self, shard):
        self.M, self.P = shard.by_user.toarray(), shard.by_user.toarray() != 0
        self.U = client_rng(0, shard.client).random((len(shard.users), RANK))
        self.count, self.number = shard.by_user.nnz, shard.client
        self.control = np.zeros((RANK, self.M.shape[1]))

    def residual(self, U, V):
        return self.P * (U @ V - self.M)

    def user_steps(self, V):
        """U <- U - ( P(U V - M) V' + lambda U ) / c"""
        c = np.linalg.eigvalsh(V @ V.T).max()
        for _ in range(Q):
            self.U = self.U - (self.residual(self.U, V) @ V.T + WEIGHT * self.U) / c


def largest(U):
    return np.linalg.eigvalsh(U.T @ U).max()


def fedmavg(factor):
    """W <- W - ( U' P(U W - M)/p + gamma W ) / d,   d = 5 lambda_max(U'U) times the factor;   V <- mean"""

    def rounds_of(clients, drawn, V):
        new = []
        for client in drawn:
            client.user_steps(V)
            W, d = V, 5 * largest(client.U) * factor
            for _ in range(Q):
                W = W - (client.U.T @ client.residual(client.U, W) / len(clients) + WEIGHT * W) / d
            new.append(W)
        return np.mean(new, axis=0)

    return rounds_of


def fedmgs(clients, drawn, V):
    """V <- V - ( mean of U' P(U V - M) + gamma V ) / d"""
    slopes, constants = [], []
    for client in drawn:
        client.user_steps(V)
        slopes.append(client.U.T @ client.residual(client.U, V))
        constants.append(largest(client.U))
    return V - (np.mean(slopes, axis=0) + WEIGHT * V) / np.mean(constants)


def averaging(share):
    def rounds_of(clients, drawn, V):
        new, weights = [], []
        for client in drawn:
            client.user_steps(V)
            L = largest(client.U)
            W, mu = V, share * L
            for _ in range(Q):
                slope = client.U.T @ client.residual(client.U, W) + WEIGHT * W + mu * (W - V)
                W = W - slope / (L + mu)
            new.append(W)
            weights.append(client.count)
        return np.average(new, axis=0, weights=weights)

    return rounds_of


def scaffold():
    control = {"c": 0.0}

    def rounds_of(clients, drawn, V):
        moves, changes = [], []
        for client in drawn:
            client.user_steps(V)
            L, W = largest(client.U), V
            for _ in range(Q):
                slope = client.U.T @ client.residual(client.U, W) + WEIGHT * W
                W = W - (slope - client.control + control["c"]) / L
            new = client.control - control["c"] + (V - W) * L / Q
            changes.append(new - client.control)
            moves.append(W - V)
            client.control = new
        control["c"] = control["c"] + np.sum(changes, axis=0) / len(clients)
        return V + np.mean(moves, axis=0)

    return rounds_of


def fedadmm(share):
    """W steps on f(U, W) + R(W) + <Y, W - V> + rho/2 |W - V|^2 from V; Y += rho (W - V); V <- mean of W + Y/rho"""
    kept = {}

    def rounds_of(clients, drawn, V):
        rho = share * sum(client.count for client in clients) / (len(clients) * V.shape[1])
        changes = []
        for client in drawn:
            old = kept.get(id(client), (V, np.zeros_like(V)))
            client.user_steps(V)
            L, W, Y = largest(client.U), V, old[1]
            for _ in range(Q):
                slope = client.U.T @ client.residual(client.U, W) + WEIGHT * W
                W = W - (slope + Y + rho * (W - V)) / (L + rho)
            Y = Y + rho * (W - V)
            changes.append(W + Y / rho - old[0] - old[1] / rho)
            kept[id(client)] = W, Y
        return V + np.sum(changes, axis=0) / len(clients)

    return rounds_of


def reconstruction(clients, drawn, V):
    """U from its start again, then federated averaging."""
    for client in drawn:
        client.U = client_rng(0, client.number).random(client.U.shape)
    return averaging(0)(clients, drawn, V)


DENSE = {  # a new method needs its transcription here
    "fedmavg": lambda: fedmavg(1 / CLIENTS),
    "fedmavg-printed": lambda: fedmavg(1),
    "fedmgs": lambda: fedmgs,
    "fedavg": lambda: averaging(0),
    "fedprox": lambda: averaging(0.1),
    "scaffold": scaffold,
    "fedrecon-ratings": lambda: reconstruction,
    "fedadmm": lambda: fedadmm(SHARE),
}


def test_every_method_has_a_transcription():
    assert set(DENSE) == set(registry.BUILT_IN) - set(ELSEWHERE)


def settings(method, **changes):
    words = f"l2:{WEIGHT}"
    options = dict(rank=RANK, active=2, method=method, inner_steps=Q, penalty_users=words, penalty_items=words)
    return Settings.preset("paper", **(options | changes))


@pytest.mark.parametrize("method", DENSE)
def test_iterates_are_those_of_the_formulas(method):
    engine = local_engine(planted(), CLIENTS)
    clients, step = [Dense(shard) for shard in engine.shards], DENSE[method]()
    V = server_rng(0).random((len(planted().items), RANK)).T
    for round in itertools.islice(rounds(engine, settings(method)), 1, ROUNDS):
        V = step(clients, [clients[i] for i in round.participants], V)
        np.testing.assert_allclose(round.V, V.T, rtol=1e-9, atol=1e-12)
        for i in round.participants:
            np.testing.assert_allclose(engine.states[i].U, clients[i].U, rtol=1e-9, atol=1e-12)


def lopsided():
    """Clients of 1 to 20 users, the last two items without any rating, and one item that a single client has."""
    full = planted()
    matrix = sparse.csr_array(sparse.hstack([full.matrix, sparse.csr_array((len(full.users), 2))]))
    owner = np.repeat(np.arange(CLIENTS), (20, 9, 5, 3, 2, 1))
    rare = np.flatnonzero(owner != 1)
    keep = matrix.tolil()
    keep[rare, 0] = 0
    ratings = Ratings(full.users, np.arange(matrix.shape[1]), sparse.csr_array(keep.tocsr()))
    return LocalEngine(make_shards(ratings, owner, "float64"))


@pytest.mark.parametrize("method", DENSE)
def test_iterates_with_unequal_clients_and_items_that_nobody_rated(method):
    engine = lopsided()
    clients, step = [Dense(shard) for shard in engine.shards], DENSE[method]()
    assert len({client.count for client in clients}) == CLIENTS
    V = server_rng(0).random((engine.items, RANK)).T
    for round in itertools.islice(rounds(engine, settings(method, active=3)), 1, ROUNDS):
        V = step(clients, [clients[i] for i in round.participants], V)
        np.testing.assert_allclose(round.V, V.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fedmavg", "fedmavg-printed"])
def test_fedmavg_updates_the_users_of_all_clients_as_in_the_paper(method):
    engine = local_engine(planted(), CLIENTS)
    clients = [Dense(shard) for shard in engine.shards]
    V = server_rng(0).random((len(planted().items), RANK)).T
    for round in itertools.islice(rounds(engine, settings(method, update_users="all")), 1, ROUNDS):
        for client in set(range(CLIENTS)) - set(round.participants):
            clients[client].user_steps(V)
        V = DENSE[method]()(clients, [clients[i] for i in round.participants], V)
        np.testing.assert_allclose(round.V, V.T, rtol=1e-9, atol=1e-12)
        for state, client in zip(engine.states, clients, strict=True):
            np.testing.assert_allclose(state.U, client.U, rtol=1e-9, atol=1e-12)
        assert (round.bytes_up, round.bytes_down) == (2 * round.V.nbytes, CLIENTS * round.V.nbytes)


def test_users_of_all_clients_change_nothing_if_nobody_is_drawn_but_their_own():
    engine = local_engine(planted(), CLIENTS)
    opening, first = itertools.islice(
        rounds(engine, settings("fedmavg", update_users="all", sampler=CoinFlips(1e-6))), 2
    )
    assert not first.participants
    assert first.V.tobytes() == opening.V.tobytes()
    assert all(state is not None for state in engine.states)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "fedavg", "update_users": "all"}, "update_users has no meaning with algorithm='fedavg'"),
        ({"method": "fedmavg", "empty_rounds": "skip"}, "empty_rounds has no meaning with algorithm='fedmavg'"),
        ({"method": "fedmavg", "update_users": "some"}, "unknown update_users 'some': choose one of drawn, all"),
        ({"method": "fedmc", "update": "linearised", "empty_rounds": "no"}, "unknown empty_rounds 'no'"),
    ],
)
def test_settings_that_only_some_algorithms_have(given, words):
    with pytest.raises(InputError, match=words):
        settings(**given)
    with pytest.raises(InputError, match="update_users has no meaning with algorithm='linearised'"):
        Settings.preset("paper").replace(update_users="all")
    assert "update_users" not in settings("fedmavg").to_dict()  # earlier versions do not know it


def test_users_of_all_clients_need_a_simulation_in_plain_mode():
    with pytest.raises(InputError, match="needs a simulation in plain mode: in a federation"):
        chosen = settings("fedmavg", update_users="all", privacy="secagg", min_cohort=3, active=CLIENTS)
        next(rounds(local_engine(planted(), CLIENTS), chosen))


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("preset", ["paper", "fast"])
def test_all_methods_run_under_the_same_rounds_and_get_better(method, preset):
    engine = local_engine(planted(), CLIENTS)
    chosen = Settings.preset(preset, rank=RANK, active=3, method=method, penalty_users="l2:0.5")
    history = list(itertools.islice(rounds(engine, chosen), 41))
    assert history[-1].diagnostics.train_rmse < 0.95 * history[0].diagnostics.train_rmse
    assert [round.participants for round in history[1:]] == [
        tuple(sampler_of(chosen, CLIENTS).draw(number, CLIENTS, 0)) for number in range(1, 41)
    ]


@pytest.mark.parametrize("penalty", ["l1:0.2", "non-negative"])
def test_other_penalties_take_proximal_steps(penalty):
    engine = local_engine(planted(), CLIENTS)
    chosen = settings("fedmavg", penalty_users=penalty, penalty_items=penalty)
    last = list(itertools.islice(rounds(engine, chosen), 31))[-1]
    assert np.isfinite(last.diagnostics.objective)
    if penalty == "non-negative":
        assert last.V.min() >= 0
        assert min(state.U.min() for state in engine.states if state is not None) >= 0


def test_bytes_of_what_really_travels():
    size = len(planted().items) * RANK * 8
    sizes = {"fedmavg": (size, size), "fedmgs": (size + 8, size), "fedavg": (size + 8, size)}  # and a number
    for method, (up, down) in (sizes | {"scaffold": (2 * size, 2 * size)}).items():
        engine = local_engine(planted(), CLIENTS)
        last = list(itertools.islice(rounds(engine, settings(method)), 4))[-1]
        assert (last.bytes_up, last.bytes_down) == (2 * up, 2 * down)


def test_words_and_objects():
    with pytest.raises(InputError, match="unknown method 'fedsgd'"):
        settings("fedsgd")
    with pytest.raises(InputError, match="needs name, client_update, aggregate, schema"):
        settings(object())
    with pytest.raises(InputError, match="exist for FedMC only, not for fedmavg"):
        list(itertools.islice(rounds(local_engine(planted(), CLIENTS), settings("fedmavg"), full=True), 1))


def test_a_client_without_a_turn_is_measured_with_the_users_it_starts_with():
    """As the paper does: all clients are there from the start, so no method is flattered by fitted users."""
    engine = local_engine(planted(), CLIENTS)
    opening = next(rounds(engine, settings("fedmavg")))
    other = next(rounds(local_engine(planted(), CLIENTS), settings("fedmc")))
    assert opening.diagnostics.objective == pytest.approx(other.diagnostics.objective, rel=1e-12)
