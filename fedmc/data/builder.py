"""Build sorted ids and a sorted sparse matrix from batches of rows in any order, with little extra memory.

Input ids are integers, strings, or strings with a dictionary (`Coded`). The output is the sorted distinct ids and int32
codes into them, so that the order of rows in a file never matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.errors import DataError, require, unknown
from fedmc.kernels import parsing
from fedmc.types import Array

Duplicates = Literal["refuse", "last", "mean"]
Merge = Duplicates | Literal["sum"]  # the sum is for events, which add up

LARGEST = 1e15
_MAX_SPAN = 1 << 26  # the largest span of integer ids for which a look-up table beats sorting


class Coded(NamedTuple):
    """Strings as codes into their distinct values; chunks of one column share the values, which may still grow."""

    codes: Array
    values: ArrayLike  # becomes an array at the end


Ids = Array | Coded


class Batch(NamedTuple):
    """Some rows of a rating table."""

    users: Ids
    items: Ids
    ratings: Array
    times: Array | None = None  # seconds since 1970
    groups: Ids | None = None  # the client that each row belongs to
    kinds: Coded | None = None  # the event type of each row
    note: str = ""  # what the reader guessed


class Built(NamedTuple):
    """The result; `groups` are the distinct client names and a code into them for each row of the matrix."""

    users: Array
    items: Array
    matrix: sparse.csr_array
    times: Array | None
    groups: tuple[Array, Array] | None
    notes: tuple[str, ...] = ()


class _Columns(NamedTuple):
    """All batches, as a list of chunks for each column."""

    users: list[Ids]
    items: list[Ids]
    ratings: list[Array]
    times: list[Array]
    groups: list[Ids]
    notes: dict[str, None]


def build(batches: Iterable[Batch], duplicates: Merge = "refuse") -> Built:
    """Encode the ids of all batches and sort their rows into a sparse matrix."""
    if duplicates not in ("refuse", "last", "mean", "sum"):
        raise unknown("way to treat duplicates", duplicates, ("refuse", "last", "mean"))
    users, items, ratings, times, groups, notes = _columns(batches)
    for name, column in (("times", times), ("groups", groups)):
        require(len(column) in (0, len(ratings)), f"some rows have {name} and some have none", DataError)
    require(sum(map(len, ratings)) > 0, "there are no ratings: the table is empty", DataError)
    user_ids, user_codes = encode(users)
    item_ids, item_codes = encode(items)
    of_users = _groups_of_users(user_ids, user_codes, groups) if groups else None
    timed = bool(times)
    matrix, stamps = to_rows((len(user_ids), len(item_ids)), user_codes, item_codes, ratings, times)
    stamps = resolve_duplicates(matrix, stamps, user_ids, item_ids, duplicates)
    return Built(user_ids, item_ids, matrix, stamps if timed else None, of_users, tuple(notes))


def _columns(batches: Iterable[Batch]) -> _Columns:
    """The batches as lists of chunks, one list per column; ratings in float32 if that is exact."""
    columns = users, items, ratings, times, groups, notes = _Columns([], [], [], [], [], {})
    exact = True
    for batch in batches:
        if len(batch.ratings) == 0:
            continue
        users.append(batch.users)
        items.append(batch.items)
        short = np.empty(len(batch.ratings), np.float32)
        same, largest = parsing.shorten(batch.ratings, short)
        require(
            largest <= LARGEST,
            f"ratings must lie within +-{LARGEST:g}, got one of size {largest:g}: rescale",
            DataError,
        )
        exact = exact and same
        ratings.append(short if exact else batch.ratings)
        if batch.times is not None:
            times.append(batch.times)
        if batch.groups is not None:
            groups.append(batch.groups)
        if batch.note:
            notes[batch.note] = None
    return columns


def encode(chunks: list[Ids]) -> tuple[Array, list[Array]]:
    """The sorted distinct ids, and each chunk as int32 codes into them. Empties the list to save memory."""
    span = _span(chunks)
    if span is None or span[1] - span[0] >= _MAX_SPAN:
        return _encode_strings(chunks)
    low, high = span
    present = np.zeros(high - low + 1, np.bool_)
    for chunk in chunks:
        parsing.mark(chunk, low, present)
    ids = np.flatnonzero(present) + low
    lookup = (np.cumsum(present, dtype=np.int32) - 1).astype(np.int32)
    codes = []
    while chunks:
        chunk = chunks.pop(0)
        codes.append(np.empty(len(chunk), np.int32))
        parsing.translate(chunk, low, lookup, codes[-1])
    return ids.astype(np.int64), codes


def _span(chunks: list[Ids]) -> tuple[int, int] | None:
    """The smallest and the largest id; None unless all ids are integers."""
    whole = [chunk for chunk in chunks if isinstance(chunk, np.ndarray) and chunk.dtype.kind == "i"]
    if len(whole) < len(chunks):
        return None
    return min(int(chunk.min()) for chunk in whole), max(int(chunk.max()) for chunk in whole)


def _encode_strings(chunks: list[Ids]) -> tuple[Array, list[Array]]:
    """`encode` by the distinct values of each chunk; a mixture of integers and strings becomes strings."""
    coded = []
    while chunks:
        chunk = chunks.pop(0)
        if not isinstance(chunk, Coded):
            values, codes = np.unique(chunk, return_inverse=True)
            chunk = Coded(codes.astype(np.int32), values)
        coded.append(chunk)
    shared = {id(chunk.values): chunk.values for chunk in coded}
    distinct = {key: np.asarray(values) for key, values in shared.items()}
    occurs = {key: np.zeros(len(values), bool) for key, values in distinct.items()}
    for chunk in coded:  # rows may have been left out since the values were collected
        occurs[id(chunk.values)][chunk.codes] = True
    if len({values.dtype.kind for values in distinct.values()}) > 1:
        distinct = {key: values.astype(np.str_) for key, values in distinct.items()}
    ids = np.unique(np.concatenate([values[occurs[key]] for key, values in distinct.items()]))
    if ids.dtype.kind == "i":
        ids = ids.astype(np.int64)
    places = {key: np.searchsorted(ids, values).astype(np.int32) for key, values in distinct.items()}
    made = []
    while coded:
        chunk = coded.pop(0)
        codes = chunk.codes if chunk.codes.flags.writeable else chunk.codes.copy()
        made.append(np.take(places[id(chunk.values)], codes, out=codes, mode="clip"))
    return ids, made


def to_rows(
    shape: tuple[int, int], rows: list[Array], columns: list[Array], values: list[Array], times: list[Array]
) -> tuple[sparse.csr_array, Array]:
    """Entries in any order to CSR rows sorted by column; repeated columns are kept, in their old order."""
    counts = np.zeros(shape[0], np.int64)
    for chunk in rows:
        parsing.count_rows(chunk, counts)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    total = int(indptr[-1])
    require(total < 2**31, f"{total:,} ratings are more than one table can hold ({2**31 - 1:,})", DataError)
    exact = all(chunk.dtype == np.float32 for chunk in values)
    indices, data = np.empty(total, np.int32), np.empty(total, np.float32 if exact else np.float64)
    stamps = np.empty(total if times else 0, np.int64)
    place, no_times = indptr[:-1].copy(), np.empty(0, np.int64)
    while rows:
        stamp = times.pop(0).astype(np.int64) if times else no_times
        parsing.scatter(rows.pop(0), columns.pop(0), values.pop(0), stamp, place, indices, data, stamps)
    parsing.sort_rows(indptr, indices, data, stamps)
    return _csr(data, indices, indptr, shape), stamps


def resolve_duplicates(matrix: sparse.csr_array, stamps: Array, users: Array, items: Array, duplicates: Merge) -> Array:
    """One value for each (user, item), in place: refuse repeats, keep the last value, or take the mean or the sum."""
    again = np.flatnonzero(matrix.indices[1:] == matrix.indices[:-1]) + 1
    again = np.setdiff1d(again, matrix.indptr, assume_unique=True)
    if not len(again):
        return stamps
    if duplicates == "refuse":
        row = int(np.searchsorted(matrix.indptr, again[0], side="right")) - 1
        raise DataError(
            f"{len(again):,} ratings repeat a (user, item) pair, the first one user {users[row]}, "
            f"item {items[matrix.indices[again[0]]]}: keep the last of each or their mean "
            "(duplicates='last' or duplicates='mean')"
        )
    if duplicates == "sum":
        return _add_up(matrix, stamps, again)
    indptr = matrix.indptr.astype(np.int64)
    if duplicates == "mean":
        matrix.data = matrix.data.astype(np.float64)
    size = parsing.merge_repeats(indptr, matrix.indices, matrix.data, stamps, duplicates == "mean")
    matrix.data, matrix.indices, matrix.indptr = matrix.data[:size], matrix.indices[:size], indptr.astype(np.int32)
    return stamps[:size]


def _add_up(matrix: sparse.csr_array, stamps: Array, again: Array) -> Array:
    """Add up the values of each (user, item), in place, and keep its latest time; `again`: the places of repeats."""
    first = np.ones(matrix.nnz, bool)
    first[again] = False
    starts = np.flatnonzero(first)
    total = np.add.reduceat(matrix.data.astype(np.float64), starts)
    short = total.astype(np.float32)
    before = np.concatenate([[0], np.cumsum(first)])
    matrix.data = short if np.array_equal(short, total) else total
    matrix.indices, matrix.indptr = matrix.indices[starts], before[matrix.indptr].astype(np.int32)
    return np.asarray(np.maximum.reduceat(stamps, starts)) if len(stamps) else stamps


def _csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> sparse.csr_array:
    matrix = sparse.csr_array((data, indices, indptr.astype(np.int32)), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def _groups_of_users(ids: Array, users: list[Array], groups: list[Ids]) -> tuple[Array, Array]:
    """The group of each user; a user in two groups is refused."""
    names, codes = encode(groups)
    low, high = np.full(len(ids), len(names), np.int32), np.full(len(ids), -1, np.int32)
    for who, group in zip(users, codes, strict=True):
        np.minimum.at(low, who, group)
        np.maximum.at(high, who, group)
    split = np.flatnonzero(low != high)
    if len(split):
        first = split[0]
        raise DataError(
            f"{len(split):,} users belong to more than one client, the first one user {ids[first]} to "
            f"{names[low[first]]} and {names[high[first]]}: give each user one"
        )
    return names, low
