"""Decentralised matrix factorisation: clients average their item factors with neighbours in a graph; no server.

Every client i has item factors W_i of its own. In a round, all clients work, and then exchange with their neighbours:

    client i   the local steps of federated averaging from W_i: N on its users, then N on its item factors -> W_i'
    then       W_i <- sum_j A_ij W_j'                  over its neighbours and itself

with the Metropolis weights A_ij = 1 / (1 + max(degree i, degree j)), A_ii = 1 - sum of the others (Xiao, Boyd and Lall
2005). A is symmetric and its rows add up to 1, so the mean of all W_i stays that of all W_i'. This is decentralised
gradient descent in the order "adapt, then combine" (Chen and Sayed 2012; with mixing first it is the D-PSGD of Lian et
al. 2017), with N local steps. Each client is measured with its own item factors.

It runs in simulations only. The mean and the spread of the ratings, which clients could find by gossip too, are exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.measures import measure, measures_of
from fedmc.algorithms.messages import Broadcast, add_up
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import normalised, start_items
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard, make_shards
from fedmc.evaluation.harness import Measured, Parts, Scored, ranking_of, top_of
from fedmc.problem.rng import server_rng
from fedmc.training.local import LocalEngine
from fedmc.types import Array

Neighbours = list[list[int]]
Graph = Callable[[int, int], Neighbours]  # of the number of clients, and the seed
MEASURES = ("objective", "train_rmse", "test_rmse", "nonzeros_users", "nonzeros_items")


class Peers(NamedTuple):
    """What all clients have after a round."""

    tables: list[Array]  # their item factors
    states: list[State | None]


def ring(clients: int, seed: int = 0) -> Neighbours:
    """Each client exchanges with the one before and the one after it."""
    return _cycles([np.arange(clients)])


def two_cycles(clients: int, seed: int) -> Neighbours:
    """A random connected graph: two rings in random order, so that a client has two to four neighbours."""
    rng = server_rng(seed)
    return _cycles([rng.permutation(clients) for _ in range(2)])


def _cycles(orders: Sequence[Array]) -> Neighbours:
    found: list[set[int]] = [set() for _ in orders[0]]
    for order in orders:
        for one, other in zip(order.tolist(), np.roll(order, 1).tolist(), strict=True):
            if one != other:
                found[one].add(other)
                found[other].add(one)
    return [sorted(one) for one in found]


def metropolis(neighbours: Neighbours) -> Array:
    """A"""
    A = np.zeros((len(neighbours), len(neighbours)))
    for i, own in enumerate(neighbours):
        for j in own:
            A[i, j] = 1 / (1 + max(len(own), len(neighbours[j])))
        A[i, i] = 1 - A[i].sum()
    return A


def iterates(shards: Sequence[Shard], broadcast: Broadcast, neighbours: Neighbours) -> Iterator[Peers]:
    """The item factors and states of all clients: at the start, where W_i is the broadcast's V, and after rounds."""
    algorithm, A = broadcast.settings.make_algorithm(), metropolis(neighbours)
    tables, states = [broadcast.V] * len(shards), list[State | None]([None] * len(shards))
    yield Peers(tables, states)
    while True:
        broadcast = broadcast._replace(task="round", round=broadcast.round + 1)
        adapted = []
        for i, shard in enumerate(shards):
            states[i], sums = algorithm.client_update(shard, states[i], broadcast._replace(V=tables[i]))
            adapted.append(sums["W"] / sums.number("weight"))
        near = [[i, *own] for i, own in enumerate(neighbours)]
        tables = [np.asarray(sum(A[i, j] * adapted[j] for j in own), broadcast.V.dtype) for i, own in enumerate(near)]
        yield Peers(tables, states)


def rows(
    parts: Parts, settings: Settings, rounds: int, measure_every: int, graph: Graph = two_cycles
) -> Iterator[dict[str, float | None]]:
    """The measured rounds of a run, as of a federation; after the last, the models are ranked too."""
    shards = make_shards(parts.train, parts.owner, settings.dtype, parts.test)
    neighbours, began = graph(len(shards), settings.seed), time.perf_counter()
    start = Broadcast("moments", 0, len(shards), settings, start_items(len(parts.train.items), settings))
    broadcast, _ = normalised(LocalEngine(shards).ask, start)
    traffic = sum(map(len, neighbours)) * broadcast.V.nbytes
    for number, peers in enumerate(iterates(shards, broadcast, neighbours)):
        last = number == rounds
        if last or number % measure_every == 0:
            seconds = time.perf_counter() - began
            cost: dict[str, float | None] = {
                "round": number,
                "seconds": seconds,
                "up": number * traffic,
                "down": number * traffic,
            }
            row = cost | measured(shards, peers, broadcast)
            if last:
                row |= ranked(shards, peers, broadcast, parts)
            yield row
        if last:
            return


def measured(shards: Sequence[Shard], peers: Peers, broadcast: Broadcast) -> dict[str, float | None]:
    """The errors of all clients, each with its own item factors; the objective has the penalty of their mean."""
    asked = [broadcast._replace(task="measure", V=W) for W in peers.tables]
    total = add_up(measure(*one) for one in zip(shards, peers.states, asked, strict=True))
    middle = broadcast._replace(V=np.mean(peers.tables, axis=0))
    found = measures_of(broadcast.settings).server(total, middle)
    return {name: value for name, value in found.items() if name in MEASURES}  # type: ignore[misc]


def ranked(shards: Sequence[Shard], peers: Peers, broadcast: Broadcast, parts: Parts) -> Measured:
    algorithm, found = broadcast.settings.make_algorithm(), []
    for shard, state, W in zip(shards, peers.states, peers.tables, strict=True):
        U = algorithm.users_at(shard, state, broadcast._replace(V=W))
        found.append(Scored(shard.users, U, W, shard.by_user))
    return ranking_of(top_of(found, len(parts.train.users)), parts)
