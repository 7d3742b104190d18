"""Biases only: the mean rating, an offset of each user and one of each item. It is computed shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.matrices import rows_of
from fedmc.data.partition import Shard
from fedmc.types import Array

WEIGHT = 4.0  # as in `pooled.bias_fits`: close to the best on validation ratings (docs/explanation/algorithm.md)
SWEEPS, TOLERANCE = 100, 1e-5  # until the predictions change less than this, in standard deviations of ratings
BLOCK = 1 << 21  # ratings at a time, about


class Biases(NamedTuple):
    """Offsets by the rows and columns of the whole table; 0 for those without ratings."""

    mean: float
    users: Array
    items: Array

    def predict(self, rows: Array, columns: Array) -> Array:
        return self.mean + self.users[rows] + self.items[columns]


def fit(shards: Sequence[Shard], weight: float = WEIGHT) -> Biases:
    """The biases with the smallest squared error on the training ratings, with an l2 penalty of this weight.

    Users and items are fitted in turn. No table of all ratings is made, so that shards can be larger than memory.
    """
    columns = shards[0].by_user.shape[1]
    rows = 1 + max(int(shard.users.max()) for shard in shards)
    of_users, of_items = np.zeros(rows, np.int64), np.zeros(columns, np.int64)
    for some, matrix in _blocks(shards):
        of_items += np.bincount(matrix.indices, minlength=columns)
        of_users[some] = np.diff(matrix.indptr)
    parts = [matrix.data for _, matrix in _blocks(shards)]
    mean = sum(float(part.sum(dtype=np.float64)) for part in parts) / int(of_items.sum())
    square = sum(float(np.sum(np.square(part - mean, dtype=np.float64))) for part in parts)
    users, items = np.zeros(rows), np.zeros(columns)
    for _ in range(SWEEPS):
        before = items
        items = _sweep(shards, Biases(mean, users, items), of_items, weight)
        users, items = _balanced(users, items, of_users > 0, of_items > 0)
        if of_items @ np.square(items - before) <= TOLERANCE**2 * square:
            break
    return Biases(mean, users, items)


def _sweep(shards: Sequence[Shard], now: Biases, of_items: Array, weight: float) -> Array:
    """Fit the users, in place, and then the items, which are returned."""
    sums = np.zeros(len(now.items))
    for users, matrix in _blocks(shards):
        columns, of_users = matrix.indices, np.diff(matrix.indptr)
        rows = np.repeat(np.arange(len(users)), of_users)
        centred = matrix.data - now.mean
        mine = np.bincount(rows, centred - now.items[columns], len(users)) / (of_users + weight)
        now.users[users] = mine
        sums += np.bincount(columns, centred - mine[rows], len(sums))
    return np.asarray(sums / (of_items + weight))


def _blocks(shards: Sequence[Shard]) -> Iterator[tuple[Array, sparse.csr_array]]:
    """Some users at a time, with their ratings, so that what is made of them stays small."""
    for shard in shards:
        step = max(1, BLOCK * len(shard.users) // max(shard.by_user.nnz, 1))
        for start in range(0, len(shard.users), step):
            some = slice(start, start + step)
            yield shard.users[some], rows_of(shard.by_user, some)


def _balanced(users: Array, items: Array, rating: Array, rated: Array) -> tuple[Array, Array]:
    """The same predictions with the smallest penalty: a constant moves from the items to the users.

    The sweeps would find this constant, too, but slowly: the ratings say nothing about it.
    """
    shift = float(items.sum() - users.sum()) / int(rating.sum() + rated.sum())
    return users + shift * rating, items - shift * rated
