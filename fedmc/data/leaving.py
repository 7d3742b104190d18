"""Users who leave: a client's data without them, in the same order and with the same held-out ratings of all others."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.data.days import Days
from fedmc.data.matrices import narrow
from fedmc.data.partition import Shard
from fedmc.types import Array


def shard_without(shard: Shard, gone: Array) -> Shard:
    """The shard without the users of this mask."""
    keep = ~gone
    return Shard.of(
        shard.client, np.arange(int(keep.sum())), _rows(shard.by_user, keep),
        *(None if part is None else _rows(part, keep) for part in (shard.test, shard.validation)),
        features=None if shard.features is None else shard.features[keep],
        also_seen=None if shard.also_seen is None else _rows(shard.also_seen, keep),
        days=None if shard.days is None else _days(shard.days, shard, keep),
        later=None if shard.later is None else shard.later[_entries(shard.by_user, keep)],
    )  # fmt: skip


def _rows(matrix: sparse.csr_array, keep: Array) -> sparse.csr_array:
    return narrow(sparse.csr_array(matrix[np.flatnonzero(keep)]))


def _entries(matrix: sparse.csr_array, keep: Array) -> Array:
    """Which stored entries are in the rows that stay."""
    return np.repeat(keep, np.diff(matrix.indptr))


def _days(days: Days, shard: Shard, keep: Array) -> Days:
    """The groups by user and day of those who stay, with new numbers for rows and groups."""
    stay = keep[days.users]
    rows, groups = np.cumsum(keep) - 1, np.append(np.cumsum(stay) - 1, -1)  # the last: no group

    def of(part: Array | None, matrix: sparse.csr_array | None) -> Array | None:
        return None if part is None or matrix is None else groups[part[_entries(matrix, keep)]]

    return Days(
        rows[days.users[stay]], days.numbers[stay], groups[days.of_ratings[_entries(shard.by_user, keep)]],
        of(days.of_test, shard.test), of(days.of_validation, shard.validation),
    )  # fmt: skip
