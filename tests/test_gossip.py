"""Decentralised factorisation: rounds against a dense transcription, the weights of the graph, and a comparison."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.start import start_items
from fedmc.evaluation import gossip, methods, runner
from fedmc.evaluation.plan import check_case
from fedmc.evaluation.study import Case, Study
from tests.test_baselines import CLIENTS, WEIGHT, Dense, Q, largest, lopsided, settings


def connected(neighbours):
    reached, edge = {0}, {0}
    while edge:
        edge = {j for i in edge for j in neighbours[i]} - reached
        reached |= edge
    return len(reached) == len(neighbours)


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("graph", [gossip.ring, gossip.two_cycles])
def test_weights_average(graph, clients):
    neighbours = graph(clients, 5)
    A, degrees = gossip.metropolis(neighbours), list(map(len, neighbours))
    assert connected(neighbours)
    assert np.array_equal(A, A.T)
    assert A.min() >= 0
    np.testing.assert_allclose(A.sum(axis=1), 1, rtol=1e-15)
    assert all(A[i, j] == 1 / (1 + max(degrees[i], degrees[j])) for i in range(clients) for j in neighbours[i])
    assert np.abs(np.linalg.matrix_power(A, 20_000) - 1 / clients).max() < 1e-6  # W_i go to their mean


def test_rounds_are_those_of_the_formulas():
    engine, neighbours = lopsided(), [[1, 2, 5], [0, 2], [0, 1, 3], [2, 4], [3, 5], [0, 4]]
    clients, chosen = [Dense(shard) for shard in engine.shards], settings("fedavg", active=CLIENTS)
    start = Broadcast("round", 0, CLIENTS, chosen, start_items(engine.items, chosen))
    degrees = [len(one) for one in neighbours]
    W = np.stack([start.V.T] * CLIENTS)
    for peers in islice(gossip.iterates(engine.shards, start, neighbours), 1, 9):
        for i, client in enumerate(clients):
            client.user_steps(W[i])
            for _ in range(Q):
                slope = client.U.T @ client.residual(client.U, W[i]) + WEIGHT * W[i]
                W[i] = W[i] - slope / largest(client.U)
        mixed = W.copy()
        for i, own in enumerate(neighbours):
            for j in own:
                mixed[i] += (W[j] - W[i]) / (1 + max(degrees[i], degrees[j]))
        W = mixed
        for i, client in enumerate(clients):
            np.testing.assert_allclose(peers.tables[i], W[i].T, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(peers.states[i].U, client.U, rtol=1e-9, atol=1e-12)


def study_of(tmp_path, names, rounds=12):
    rng = np.random.default_rng(0)
    full = 3 + rng.normal(size=(40, 2)) @ rng.normal(size=(2, 15))
    lines = [f"{u},{i},{full[u, i]:.3f}" for u, i in zip(*np.nonzero(rng.random(full.shape) < 0.6), strict=True)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    cases = tuple(Case(name, name, {"rank": 2}) for name in names)
    return Study("t", str(tmp_path / "ratings.csv"), cases, (), (1,), 5, 2, rounds, measure_every=5)


def test_as_a_method_of_a_comparison(tmp_path):
    study = study_of(tmp_path, ("gossip", "gossip-ring", "fedavg", "biases"))
    found = {one.label: one.rows for one in runner.run(study, tmp_path / "out")}
    size = 15 * 4 * 8  # items, factors and biases, bytes
    assert [row["round"] for row in found["gossip"]] == [0, 5, 10, 12]
    assert found["gossip-ring"][-1]["up"] == 12 * 5 * 2 * size == found["gossip-ring"][-1]["down"]
    for name in ("gossip", "gossip-ring"):
        assert found[name][0]["test_rmse"] == pytest.approx(found["fedavg"][0]["test_rmse"], rel=1e-6)
        assert found[name][-1]["train_rmse"] < found[name][1]["train_rmse"] < found[name][0]["train_rmse"]
        assert found[name][-1]["objective"] < found[name][0]["objective"]
        assert found[name][-1]["test_ndcg_20"] > 0
    assert found["gossip"][-1]["test_rmse"] != found["gossip-ring"][-1]["test_rmse"]


def test_it_is_named_and_has_no_server():
    assert "gossip" in methods.usual()
    assert "gossip-ring" in set(methods.names()) - set(methods.usual())
    assert not methods.find("gossip").has_server
    with pytest.raises(ValueError, match="gossip has no federation: leave out its objectives"):
        check_case(Case("g", "gossip", {}, ({"penalty_users": "l2:1", "clients": [0]},)))
