"""PFedRec (Zhang et al. 2023): item factors that are shared, then tuned at each client, and a score function per user.

The score of user i for item j is sigma(w_j'u_i + c_i), with the user's own u_i and c_i, and the client's own item
factors W. A client draws NEGATIVES items without an event for each event of its users, and with them, N times,

    u_i, c_i   <- a step of RATE along minus the gradient of the user's mean cross-entropy, at its W
    W          <- a step of RATE ETA items along minus the gradient of the mean over its users, at the new u and c

from W = V. It keeps W, and sends W - V; the server adds the mean of these changes over the clients that take part.

The paper has one user a client (`--partition one-user`), passes over batches of 256 pairs, and draws negatives without
repetition for each event; here a step takes all pairs, and draws are independent. The authors' code has RATE 0.1, ETA
80 and 4 negatives (`pfedrec:0.1,80,4`). It never draws a test item as a negative, which tells the model what is held
out; here held-out items are drawn like any other that a user has no training event with.

A client measures with its own W. The model of a run holds V, with the users' own u: it has no private tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import expit

from fedmc.algorithms.event_measures import EventMeasures
from fedmc.algorithms.fcf import EventBaseline
from fedmc.algorithms.ials import IALS
from fedmc.algorithms.leakage import Leakage, Observation
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Rows, Schema, Shared, Sums
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.start import Ask, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.data.partition import Shard
from fedmc.problem.rng import client_rng, sample_rng
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number, whole

RATE, ETA, NEGATIVES = 0.1, 5.0, 4  # ETA: chosen on validation events, for clients of many users
DECAY = 1e-6  # the l2 weight of score functions: a node's usual policy asks for one; the authors' is 0
MOST_NEGATIVES = 1_000
NEWCOMERS = 200  # gradient steps for users who take no part in training
INTERCEPTS = "intercepts"  # within a client only


class PersonalState(NamedTuple):
    """The state that a client keeps: its users' score functions, and its own item factors."""

    U: Array
    c: Array
    W: Array


class Pairs(NamedTuple):
    """Users, items, and whether there is an event, with the weight of each pair in its user's mean."""

    users: Array
    items: Array
    labels: Array
    weights: Array


class PFedRecLeakage(Leakage):
    """The first message counts the events of each item. Later, rows of drawn negatives move against those of events."""

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        found = []
        for one in seen:
            if one.parts["counts"].any():
                found.append(np.asarray(one.parts["counts"], np.float64))
                continue
            rows = np.asarray(one.parts["change"], np.float64)
            along = rows @ np.linalg.svd(rows, full_matrices=False)[2][0]
            found.append(along if (along > 0).sum() <= (along < 0).sum() else -along)  # more negatives are drawn
        return found


class PFedRec(EventBaseline):
    """PFedRec: `pfedrec`, or `pfedrec:RATE,ETA,NEGATIVES`."""

    name = "pfedrec"
    label = "PFedRec"
    state_types = (PersonalState,)
    unused_settings = IALS.unused_settings - {"inner_steps"}
    leakage: Leakage = PFedRecLeakage()
    remedy = "lower RATE or ETA, the first numbers of pfedrec:RATE,ETA,NEGATIVES"

    def __init__(self, rate: float = RATE, eta: float = ETA, negatives: float = NEGATIVES) -> None:
        super().__init__()
        self.rate = number("the rate of pfedrec", rate, MIN_POSITIVE, MAX_NUMBER)
        self.eta = number("eta of pfedrec", eta, MIN_POSITIVE, MAX_NUMBER)
        given = int(negatives) if negatives == int(negatives) else negatives
        self.negatives = whole("the negatives of pfedrec", given, 1, MOST_NEGATIVES)
        self.weights = None
        self.measures = EventMeasures(self.terms, self.item_terms)

    def __str__(self) -> str:
        numbers = self.rate, self.eta, self.negatives
        given = ",".join(repr(one).removesuffix(".0") for one in numbers)
        return self.name if numbers == (RATE, ETA, NEGATIVES) else f"{self.name}:{given}"

    def with_weights(self, alpha0: float, weight: float) -> Algorithm | None:  # type: ignore[override]
        return None  # it has no weights

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        old, V = self.own(shard, state, broadcast), broadcast.V
        pairs = drawn(shard.by_user, self.negatives, sample_rng(broadcast.settings.seed, broadcast.round, shard.client))
        U, c, W, step = old.U, old.c, V, self.rate * self.eta * len(V) / len(old.U)
        for _ in range(broadcast.settings.inner_steps):
            pulls = slopes(pairs, U, c, W)
            U = U - self.rate * (added(pulls, pairs.users, W[pairs.items], len(U)) + DECAY * U)
            c = c - self.rate * (summed(pulls, pairs, c) + DECAY * c)
            W = W - step * added(slopes(pairs, U, c, W), pairs.items, U[pairs.users], len(W))
        touched = np.unique(pairs.items)
        change = Rows(touched, (W - V)[touched], len(V))
        return PersonalState(U, c, W), Sums.of(change=change, **self.counts_of(shard, state)._asdict())

    def own(self, shard: Shard, state: State | None, broadcast: Broadcast) -> PersonalState:
        """The client's state; before its first update, random score functions and the shared item factors."""
        if state is not None:
            assert isinstance(state, PersonalState)
            return state
        rank, users = broadcast.V.shape[1], len(shard.users)
        drawn = client_rng(broadcast.settings.seed, shard.client).uniform(-1, 1, (users, rank + 1)) / np.sqrt(rank)
        found = np.asarray(drawn, broadcast.V.dtype)
        return PersonalState(np.ascontiguousarray(found[:, :-1]), found[:, -1].copy(), broadcast.V)

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        return self.own(shard, state, broadcast).U

    def measured_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Broadcast:
        own = self.own(shard, state, broadcast)
        arrays = {**broadcast.shared.arrays, INTERCEPTS: own.c}
        return broadcast._replace(V=own.W, shared=Shared(arrays))

    def in_predictions(self, events: sparse.csr_array, later: Array) -> sparse.csr_array:
        return events

    def new_users(self, matrix: sparse.csr_array, broadcast: Broadcast) -> Array:
        """Score functions at V, all items without an event taken as negatives, with the weight of those drawn."""
        F = np.column_stack([broadcast.V, np.ones(len(broadcast.V))]).astype(np.float64)
        labels, counts = matrix.toarray() > 0, np.diff(matrix.indptr)[:, None]
        weights = pair_weights(labels, counts, self.negatives)
        step = 4 / np.maximum(weights @ np.square(F).sum(axis=1), MIN_POSITIVE)  # at most 1/L
        found = np.zeros((len(labels), F.shape[1]))
        for _ in range(NEWCOMERS):
            found -= step[:, None] * ((weights * (expit(found @ F.T) - labels)) @ F)
        return np.ascontiguousarray(found[:, :-1], broadcast.V.dtype)

    def terms(self, shard: Shard, U: Array, broadcast: Broadcast) -> tuple[float, float]:
        """The sum over users of the mean cross-entropy that is expected over the draws of negatives."""
        scores = U.astype(np.float64) @ broadcast.V.T + broadcast.shared.arrays[INTERCEPTS][:, None]
        labels, counts = shard.pattern().toarray() > 0, np.diff(shard.by_user.indptr)[:, None]
        weights = pair_weights(labels, counts, self.negatives)
        return float(np.sum(weights * np.logaddexp(0, np.where(labels, -scores, scores)))), 0.0

    def item_terms(self, broadcast: Broadcast) -> float:
        return 0.0

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        V = np.asarray(broadcast.V / 0.3, broadcast.V.dtype)  # of spread 1
        server = server_at(V, np.zeros((len(V) + 1, 1)))
        return Start(broadcast._replace(V=V, shared=self.shared(server, broadcast)), server)

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        return self.counted(server, total)._replace(V=broadcast.V + total["change"] / participants)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        change = Part((items, broadcast.settings.rank), SUM_BITS, sparse=True)
        return {"change": change} | super().schema(broadcast, items)

    def user_penalty(self, broadcast: Broadcast) -> float:
        return DECAY

    def state_numbers(self, sizes: Sizes) -> int:
        return sizes.users + sizes.clients * sizes.items * sizes.width


def drawn(events: sparse.csr_array, negatives: int, rng: np.random.Generator) -> Pairs:
    """The events, and so many items without an event for each of them, drawn independently; none if a user has all."""
    items, found = events.shape[1], []
    for row, (start, stop) in enumerate(zip(events.indptr[:-1], events.indptr[1:], strict=True)):
        own, free = np.sort(events.indices[start:stop]), items - (stop - start)
        others = rng.integers(free, size=negatives * len(own)) if free else np.empty(0, np.int64)
        others = others + np.searchsorted(own - np.arange(len(own)), others, side="right")  # the k-th item not in own
        chosen = np.concatenate([own, others])
        labels = np.repeat([1, 0], [len(own), len(others)])
        found.append((np.full(len(chosen), row), chosen, labels, np.full(len(chosen), 1 / max(len(chosen), 1))))
    users, chosen, labels, weights = map(np.concatenate, zip(*found, strict=True))
    dtype = events.data.dtype
    return Pairs(users, chosen, labels.astype(dtype), weights.astype(dtype))


def pair_weights(labels: Array, counts: Array, negatives: int) -> Array:
    """The weights that `drawn` gives all items of users on average; `labels` say where their events are."""
    free = labels.shape[1] - counts
    total = np.maximum(np.where(free > 0, 1 + negatives, 1) * counts, 1)
    return np.asarray(np.where(labels, 1, negatives * counts / np.maximum(free, 1)) / total)


def slopes(pairs: Pairs, U: Array, c: Array, W: Array) -> Array:
    """The derivative of each pair's weighted cross-entropy in its score: weight (sigma(score) - label)."""
    scores = np.einsum("kr,kr->k", U[pairs.users], W[pairs.items]) + c[pairs.users]
    return np.asarray(pairs.weights * (expit(scores) - pairs.labels))


def added(pulls: Array, rows: Array, factors: Array, height: int) -> Array:
    """The sum of pull times factors over the pairs of each row."""
    table = sparse.csr_array((pulls, (rows, np.arange(len(rows)))), shape=(height, len(rows)))
    return np.asarray(table @ factors)


def summed(pulls: Array, pairs: Pairs, c: Array) -> Array:
    """The sum of pulls over the pairs of each user."""
    return np.bincount(pairs.users, pulls, len(c)).astype(c.dtype)
