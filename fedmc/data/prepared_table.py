"""Prepared shards as one table, for comparisons and studies, which draw a split of their own for each seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from fedmc.data.feedback import EventOptions
from fedmc.data.matrices import narrow
from fedmc.data.partition import Shard
from fedmc.data.prepared import Prepared, open_prepared
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.types import Array

COLUMN = "client"  # `column:client` is the partition into these shards


def table_of(path: Path, group: str | None = None, events: EventOptions | None = None) -> Ratings:
    """The ratings of all shards, with those held out; `group` must be None or `client`."""
    opened = open_prepared(path)
    cure = "prepared events are for `train`: compare methods on the table that they were made of"
    require(events is None and opened.events is None, f"{path}: {cure}", DataError)
    known = f"prepared shards have no column {group!r}: column:{COLUMN} keeps their clients"
    require(group in (None, COLUMN), known, DataError)
    held_out = sum(0 if shard.test is None else shard.test.nnz for shard in opened.shards)
    users, order = _users(opened)
    matrix = _stacked(opened, order)
    owner = np.repeat(np.arange(len(opened.shards)), [len(ids) for ids in opened.ids])[order]
    notes: tuple[str, ...] = (
        f"{len(opened.shards)} prepared shards as one table: --partition column:{COLUMN} keeps their clients",
    )
    notes += (f"their {held_out:,} held-out ratings are in it, and are split anew",) if held_out else ()
    found = Ratings(users, opened.catalogue.items, matrix, notes=notes)
    return found if group is None else replace(found, groups=(np.arange(len(opened.shards)), owner))


def _users(opened: Prepared) -> tuple[Array, Array]:
    """The ids of all users, ascending, and the stacked row of each; numbers if an id is in several shards."""
    ids = np.concatenate(opened.ids)
    users, first = np.unique(ids, return_index=True)
    return (users, first) if len(users) == len(ids) else (np.arange(len(ids)), np.arange(len(ids)))


def _stacked(opened: Prepared, order: Array) -> sparse.csr_array:
    """The rows of all shards in this order, one shard at a time."""
    rows = np.concatenate([[0], np.cumsum([len(ids) for ids in opened.ids])])
    sizes = np.concatenate([_sizes(shard) for shard in opened.shards])
    indptr = np.concatenate([[0], np.cumsum(sizes[order])])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))  # of each stacked row
    data, indices = np.empty(indptr[-1], np.float32), np.empty(indptr[-1], np.int32)
    for number, shard in enumerate(opened.shards):
        matrix = shard.by_user if shard.test is None else narrow(sparse.csr_array(shard.by_user + shard.test))
        starts = indptr[place[rows[number] : rows[number + 1]]]
        at = np.repeat(starts - matrix.indptr[:-1], np.diff(matrix.indptr)) + np.arange(matrix.nnz)
        data[at], indices[at] = matrix.data, matrix.indices
    shape = len(order), len(opened.catalogue)
    return sparse.csr_array((data, indices, indptr.astype(np.int32)), shape=shape)


def _sizes(shard: Shard) -> Array:
    """How many ratings each user has."""
    held_out = 0 if shard.test is None else np.diff(shard.test.indptr)
    return np.asarray(np.diff(shard.by_user.indptr) + held_out)
