"""Sums of a model of events over a client's users, and the factors in the basis in which they are solved for."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.event_measures import COUNTS, USERS
from fedmc.algorithms.messages import Broadcast, Shared, Sparse
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.kernels import weighted
from fedmc.types import Array, DType

NEGATIVES, NOISE = 10.0, 0.45  # of `default_weights`: chosen on validation events of seven data sets
RARE, MOST = 40.0, 2.5  # events of an item below which negatives weigh more, and by how much at most
WEIGHTS = "weights"  # in the broadcast: alpha0 and lambda, if the server chooses them
BLOCK = 1 << 18  # events whose errors are computed at a time


def default_weights(
    users: float, items: float, events: float, negatives: float | None = None, noise: float = NOISE
) -> tuple[float, float]:
    """(alpha0, lambda) from the size of the data: n and m are the events of a user and of an item, on average.

        alpha0 = negatives events / (users items)        lambda = noise / (1 + negatives) (1 / sqrt(n) + 1 / sqrt(m))

    So all pairs together weigh `negatives` times as much as the events. The ridges of an average user and item,
    lambda (1 + negatives) n and lambda (1 + negatives) m, have the geometric mean noise (sqrt(n) + sqrt(m)). The sum
    of roots is about the largest singular value of as many events at random places, and a ridge is a threshold of
    singular values: it lets in what is more than noise. Without `negatives`, they are 10, and more if items have
    fewer than 40 events on average: 10 sqrt(40 / m), up to 25. The sets that they were chosen on have m above 7.
    """
    n, m = events / users, events / items
    if negatives is None:
        negatives = NEGATIVES * float(np.clip(np.sqrt(RARE / m), 1.0, MOST))
    weight = noise / (1 + negatives) * (1 / np.sqrt(n) + 1 / np.sqrt(m))
    return negatives * events / (users * items), float(weight)


class Turned(NamedTuple):
    """V in the basis in which V'V is diagonal: V Q, the eigenvalues of V'V, and Q."""

    V: Array
    squares: Array
    Q: Array


class UserSums(NamedTuple):
    """The sums over users: U'U, and their number."""

    gram: Array
    number: float


def event_errors(events: sparse.csr_array, U: Array, V: Array) -> float:
    """sum c (1 - u'v)^2 over events, in blocks that take little memory."""
    rows, found = np.repeat(np.arange(len(U)), np.diff(events.indptr)), 0.0
    for start in range(0, events.nnz, BLOCK):
        some = slice(start, start + BLOCK)
        scores = np.einsum("kr,kr->k", U[rows[some]], V[events.indices[some]], dtype=np.float64)
        found += float(np.sum(events.data[some] * np.square(1 - scores)))
    return found


def event_roots(confidence: Array, dtype: DType) -> Array:
    """Square roots. Whoever reads events refuses confidences below 0; here they count as 0."""
    return np.sqrt(np.maximum(confidence, 0).astype(dtype, copy=False))


def line_length(rank: int) -> int:
    """Numbers of an item: the lower triangle of sum c u u', sum c u, and the number of events."""
    return rank * (rank + 1) // 2 + rank + 1


def first_pass(broadcast: Broadcast) -> int:
    """The rounds in which each client takes part once, on average."""
    return math.ceil(broadcast.clients / min(broadcast.settings.active, broadcast.clients))


def turned_of(broadcast: Broadcast) -> Turned:
    """V in the basis in which V'V is diagonal, computed once per broadcast."""
    V = broadcast.V
    of, found = broadcast.shared.derive("turned", lambda: (V, turned(V)))
    return found if of is V else turned(V)  # a broadcast may have got another V since


def turned(V: Array) -> Turned:
    squares, Q = np.linalg.eigh(weighted.gram_of(V))
    Q = np.ascontiguousarray(Q, V.dtype)
    return Turned(weighted.times(V, Q), np.maximum(squares, 0), Q)


class LazySums(Sparse):
    """Sums over a client's users, a line for each of its items, computed when they are added."""

    def __init__(self, shard: Shard, height: int, size: int, dtype: DType) -> None:
        self.rows, self.height, self._size, self._dtype = shard.rated, height, size, dtype
        matrix = shard.by_rated
        self.events = matrix.indptr, matrix.indices, event_roots(matrix.data, dtype)

    @property
    def values(self) -> Array:
        found = np.zeros((len(self.rows), self.shape[1]), self._dtype)
        self.add(found, np.arange(len(self.rows)))
        return found

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, line_length(self._size)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + len(self.rows) * self.shape[1] * self._dtype.itemsize)

    def add_to(self, sums: Array) -> None:
        self.add(sums, self.rows)

    @abstractmethod
    def add(self, sums: Array, targets: Array) -> None:
        """sums[targets[k]] += the line of row k."""


class EventSums(LazySums):
    """The change of sums over users: `known` marks those whose part was computed from `before`."""

    def __init__(self, shard: Shard, height: int, U: Array, before: Array, known: Array) -> None:
        super().__init__(shard, height, U.shape[1], U.dtype)
        self._factors = U, before, known

    def add(self, sums: Array, targets: Array) -> None:
        weighted.add_event_sums(sums, targets, *self.events, *self._factors)


def user_change(now: Array, before: State | None) -> Array:
    """The change of [lower triangle of U'U, number of users] of a client."""
    rows, columns = np.tril_indices(now.shape[1])

    def gram(U: Array) -> Array:
        found: Array = weighted.gram_of(U)[rows, columns]
        return found

    if before is None:
        return np.append(gram(now), float(len(now)))
    return np.append(gram(now) - gram(before.U), 0.0)


def user_sums(S: Array, rank: int) -> UserSums:
    """U'U and the number of users, which the last row of the server's array holds."""
    count = rank * (rank + 1) // 2
    gram, (rows, columns) = np.zeros((rank, rank)), np.tril_indices(rank)
    gram[rows, columns] = gram[columns, rows] = S[-1, :count]
    return UserSums(gram, float(S[-1, count]))


def shared_counts(counts: Array, users: float, weights: Array | None = None) -> Shared:
    """The popularity of items, which clients measure with, and the weights that the server chose."""
    chosen = {} if weights is None else {WEIGHTS: weights}
    return Shared({COUNTS: counts.copy(), USERS: np.array([users])} | chosen)
