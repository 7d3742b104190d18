"""The k-core of a table: every user has at least k items, and every item k users."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.types import Array


def k_core(ratings: Ratings, least: int) -> tuple[Ratings, str | None]:
    """Leave out users and items with fewer than `least` pairs, repeatedly, and tell how many; a pair counts once."""
    rows, columns = ratings.rows(), ratings.matrix.indices
    keep = np.ones(len(ratings), bool)
    while True:
        few_rows = np.bincount(rows[keep], minlength=len(ratings.users)) < least
        few_columns = np.bincount(columns[keep], minlength=len(ratings.items)) < least
        dropped = keep & (few_rows[rows] | few_columns[columns])
        if not dropped.any():
            break
        keep &= ~dropped
    require(
        bool(keep.any()),
        f"no event is left with min_events={least}: no group of users and items has at least {least} events each; "
        "lower it",
        DataError,
    )
    core = compact(ratings.with_entries(keep))
    users, items = len(ratings.users) - len(core.users), len(ratings.items) - len(core.items)
    if not users and not items:
        return core, None
    pairs = f"{len(ratings) - len(core):,} of {len(ratings):,} pairs"
    note = f"events: {users:,} users and {items:,} items with fewer than {least} events are left out ({pairs})"
    return core, note


def compact(ratings: Ratings) -> Ratings:
    """Without the users and items that have no entry."""
    matrix = ratings.matrix
    rows = np.diff(matrix.indptr) > 0
    columns = np.bincount(matrix.indices, minlength=len(ratings.items)) > 0
    place = (np.cumsum(columns) - 1).astype(np.int32)
    indptr = np.concatenate([matrix.indptr[:1], matrix.indptr[1:][rows]]).astype(np.int32)
    shape = int(rows.sum()), int(columns.sum())
    smaller = sparse.csr_array((matrix.data, place[matrix.indices], indptr), shape=shape)
    smaller.has_sorted_indices = True
    groups = None if ratings.groups is None else _groups(*ratings.groups, rows)
    kept = ratings.users[rows], ratings.items[columns]
    return replace(ratings, users=kept[0], items=kept[1], matrix=smaller, groups=groups)


def _groups(names: Array, codes: Array, rows: Array) -> tuple[Array, Array]:
    """The names of clients that still have users, and the number of each user's client."""
    left, numbers = np.unique(codes[rows], return_inverse=True)
    return names[left], numbers.astype(codes.dtype)
