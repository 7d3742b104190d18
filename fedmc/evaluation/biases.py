"""Biases only: the mean rating, an offset of each user and one of each item. It is computed shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.data.partition import Shard
from fedmc.types import Array

WEIGHT = 4.0  # as in `pooled.bias_fits`: close to the best on validation ratings (docs/explanation/algorithm.md)
SWEEPS, TOLERANCE = 100, 1e-5  # until the predictions change less than this, in standard deviations of ratings


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
    for shard in shards:
        of_items += np.bincount(shard.by_user.indices, minlength=columns)
        of_users[shard.users] = np.diff(shard.by_user.indptr)
    total = of_items.sum()
    mean = sum(float(shard.by_user.data.sum(dtype=np.float64)) for shard in shards) / total
    square = sum(float(np.sum(np.square(shard.by_user.data - mean, dtype=np.float64))) for shard in shards)
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
    for shard in shards:
        matrix, number = shard.by_user, len(shard.users)
        columns, of_users = matrix.indices, np.diff(matrix.indptr)
        rows = np.repeat(np.arange(number), of_users)
        centred = matrix.data - now.mean
        mine = np.bincount(rows, centred - now.items[columns], number) / (of_users + weight)
        now.users[shard.users] = mine
        sums += np.bincount(columns, centred - mine[rows], len(sums))
    return np.asarray(sums / (of_items + weight))


def _balanced(users: Array, items: Array, rating: Array, rated: Array) -> tuple[Array, Array]:
    """The same predictions with the smallest penalty: a constant moves from the items to the users.

    The sweeps would find this constant, too, but slowly: the ratings say nothing about it.
    """
    shift = float(items.sum() - users.sum()) / int(rating.sum() + rated.sum())
    return users + shift * rating, items - shift * rated
