"""Which columns of a table are wanted, and how Arrow columns become the arrays of a Batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedmc.data.builder import Batch, Coded
from fedmc.data.ratings import as_ids, find_columns, find_time_column
from fedmc.errors import DataError, require
from fedmc.types import Array


class Wanted(NamedTuple):
    """What the caller asked for: column names (or None: the usual ones), times, a column of client names."""

    columns: tuple[str, ...] | None = None
    times: bool = False
    group: str | None = None


class Roles(NamedTuple):
    """The columns of one table that hold what is wanted."""

    user: str
    item: str
    rating: str
    time: str | None
    group: str | None

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in self if name is not None))


def roles(names: Sequence[str], wanted: Wanted, where: str) -> Roles:
    """Find the wanted columns among those a table has."""
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{where} has more than one column {twice[:1]}: rename one", DataError)
    columns = wanted.columns
    user, item, rating = find_columns(names, None if columns is None else columns[:3])
    time = None
    if wanted.times:
        time = columns[3] if columns is not None and len(columns) > 3 else find_time_column(names)
        require(time in names, f"{where} has no column {time!r}: it has {', '.join(names)}", DataError)
    if wanted.group is not None:
        known = ", ".join(names)
        require(
            wanted.group in names, f"{where} has no column {wanted.group!r} for the clients: it has {known}", DataError
        )
    return Roles(user, item, rating, time, wanted.group)


class Growing:
    """The distinct strings of a column as its chunks come; chunks hold codes into them."""

    def __init__(self, numbers: bool) -> None:
        self.values = pa.array([], pa.string())
        self.numbers = numbers  # from text, where 17 may be a number; a typed column's strings stay strings

    def codes(self, column: pa.Array, what: str) -> Array:
        found = pc.index_in(column, value_set=self.values)
        if found.null_count:
            new = pc.unique(column.filter(pc.is_null(found)))
            empty = pc.any(pc.equal(pc.utf8_trim_whitespace(new), "")).as_py()
            require(not empty, f"{what} id is empty", DataError)
            self.values = pa.concat_arrays([self.values, new])
            found = pc.index_in(column, value_set=self.values)
        return np.array(found.to_numpy(zero_copy_only=False), np.int32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """The strings so far, without space around them, or whole numbers where all are written so."""
        return strings(pc.utf8_trim_whitespace(self.values), self.numbers)


class Memo:
    """The distinct strings of each column of one table."""

    def __init__(self, numbers: bool = False) -> None:
        self.numbers = numbers
        self.columns: dict[str, Growing] = {}

    def of(self, role: str) -> Growing:
        return self.columns.setdefault(role, Growing(self.numbers))


def to_batch(columns: dict[str, Any], role: Roles, where: str, memo: Memo) -> Batch:
    """A Batch from Arrow arrays; missing values, odd types and ratings that are not finite are refused."""
    return Batch(
        ids(columns[role.user], "user", where, memo),
        ids(columns[role.item], "item", where, memo),
        ratings(columns[role.rating], where),
        None if role.time is None else seconds(columns[role.time], where),
        None if role.group is None else ids(columns[role.group], "group", where, memo),
    )


def ids(column: pa.Array, role: str, where: str, memo: Memo) -> Any:
    """Whole numbers as they are; strings as codes and distinct values, whole numbers where all are written so."""
    require(column.null_count == 0, f"{where}: a {role} id is missing", DataError)
    kind = column.type
    if pa.types.is_integer(kind):
        numbers = np.asarray(column.to_numpy(zero_copy_only=False))
        return np.array(numbers, np.int32 if numbers.dtype == np.int32 else np.int64)  # a copy: Arrow's can go
    if pa.types.is_floating(kind):
        return as_ids(np.asarray(column.to_numpy(zero_copy_only=False)), role)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    known = memo.of(role)
    return Coded(known.codes(column.cast(pa.string()), f"{where}: a {role}"), known)


def strings(values: pa.Array, numbers: bool) -> Array:
    """Strings as numpy's; with `numbers` as int64, where every one is a whole number as Python would write it."""
    if numbers and len(values) and pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,18})$")).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # 19 digits may be too many
            return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return np.asarray(values.to_pylist() or [""], dtype=np.str_)[: len(values)]


def ratings(column: pa.Array, where: str) -> Array:
    """Finite numbers."""
    try:
        numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: ratings must be numbers, got {column.type}: {error}") from None
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad) or column.null_count:
        at = int(bad[0]) if len(bad) else 0
        raise DataError(
            f"{where}: rating {at + 1} of a batch is {numbers[at]}: ratings must be finite, drop these rows"
        )
    return numbers


def seconds(column: pa.Array, where: str) -> Array:
    """Times in seconds since 1970, from numbers of seconds, dates or timestamps."""
    require(column.null_count == 0, f"{where}: a time is missing", DataError)
    kind = column.type
    try:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False)).astype(np.int64)
        return np.asarray(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: times must be seconds since 1970 or dates like 2005-12-31: {error}") from None
