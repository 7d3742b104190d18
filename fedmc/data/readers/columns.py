"""Selects the columns of a table, and converts Arrow columns to the arrays of a Batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedmc.data.builder import Batch, Coded
from fedmc.data.ids import as_ids
from fedmc.errors import DataError, require
from fedmc.types import Array, DType


class ColumnSelection(NamedTuple):
    """The caller's request: column names (None: the usual ones), times, a column of client names, and ratings."""

    columns: tuple[str, ...] | None = None
    times: bool = False
    group: str | None = None
    rated: bool = True  # False: events without a rating, with the usual names of columns


class Roles(NamedTuple):
    """The columns of one table, by role."""

    user: str
    item: str
    rating: str | None
    time: str | None
    group: str | None

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in self if name is not None))


def roles(names: Sequence[str], selection: ColumnSelection, where: str) -> Roles:
    """Find the selected columns among those of a table."""
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{where} has more than one column {twice[:1]}: rename one", DataError)
    columns = selection.columns
    user: str
    item: str
    rating: str | None = None
    if selection.rated:
        user, item, rating = find_columns(names, None if columns is None else columns[:3])
    else:
        user, item = (_usual_column(names, role, f"{where}: ", "") for role in ("user", "item"))
    time = None
    if selection.times:
        time = columns[3] if columns is not None and len(columns) > 3 else find_time_column(names)
        require(time in names, f"{where} has no column {time!r}: it has {', '.join(names)}", DataError)
    group = selection.group
    if group is not None:
        known = ", ".join(names)
        require(group in names, f"{where} has no column {group!r} for the clients: it has {known}", DataError)
    return Roles(user, item, rating, time, group)


_TIME_NAMES = ("timestamp", "time", "date", "datetime", "rated_at", "created_at")
COLUMN_NAMES = {
    "user": ("user", "userid", "user_id", "customer", "customer_id", "uid", "patient", "patient_id"),
    "item": ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "product", "product_id", "iid"),
    "rating": ("rating", "score", "value", "stars"),
}


def find_columns(names: Sequence[str], given: Sequence[str] | None = None) -> tuple[str, str, str]:
    """Which columns hold user, item and rating: those `given`, else those with a usual name."""
    if given is not None:
        require(
            len(given) == 3,
            f"name three columns (user, item, rating), got {len(given)}: {list(given)}",
            DataError,
        )
        require(
            len(set(given)) == 3,
            f"user, item and rating must be three different columns, got {list(given)}",
            DataError,
        )
        for name in given:
            require(name in names, f"there is no column {name!r}: the table has {', '.join(names)}", DataError)
        return given[0], given[1], given[2]
    cure = " or name the three columns (columns='USER,ITEM,RATING')"
    user, item, rating = (_usual_column(names, role, "", cure) for role in COLUMN_NAMES)
    return user, item, rating


def _usual_column(names: Sequence[str], role: str, where: str, cure: str) -> str:
    """The column with a usual name of this role."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    known = [lower[name] for name in COLUMN_NAMES[role] if name in lower]
    found = f"{where}no {role} column found: the table has {', '.join(names)}"
    require(bool(known), f"{found}; call it {role!r}{cure}", DataError)
    return known[0]


def find_time_column(names: Sequence[str]) -> str:
    """The column that holds the time, by its usual names."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    known = [lower[name] for name in _TIME_NAMES if name in lower]
    require(
        bool(known),
        f"no time column found: the table has {', '.join(names)}; call it 'timestamp' "
        "or name it fourth (columns='USER,ITEM,RATING,TIME')",
        DataError,
    )
    return known[0]


class Dictionary:
    """The distinct strings of a column, extended by each chunk; chunks hold codes into them."""

    def __init__(self, numbers: bool) -> None:
        self.values = pa.array([], pa.string())
        self.numbers = numbers  # True for text files, where 17 may be a number; strings of typed columns stay strings

    def codes(self, column: pa.Array, what: str) -> Array:
        found = pc.index_in(column, value_set=self.values)
        if found.null_count:
            new = pc.unique(column.filter(pc.is_null(found)))
            empty = pc.any(pc.equal(pc.utf8_trim_whitespace(new), "")).as_py()
            require(not empty, f"{what} id is empty", DataError)
            self.values = pa.concat_arrays([self.values, new])
            found = pc.index_in(column, value_set=self.values)
        return np.array(found.to_numpy(zero_copy_only=False), np.int32)

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        """The strings so far, stripped; integers if all of them are written as such."""
        return strings(pc.utf8_trim_whitespace(self.values), self.numbers)


class Dictionaries:
    """The distinct strings of each column of one table."""

    def __init__(self, numbers: bool = False) -> None:
        self.numbers = numbers
        self.columns: dict[str, Dictionary] = {}

    def of(self, role: str) -> Dictionary:
        return self.columns.setdefault(role, Dictionary(self.numbers))


def to_batch(columns: dict[str, pa.Array], role: Roles, where: str, dictionaries: Dictionaries) -> Batch:
    """A Batch from Arrow arrays; missing values, odd types and ratings that are not finite are refused."""
    return Batch(
        ids(columns[role.user], "user", where, dictionaries),
        ids(columns[role.item], "item", where, dictionaries),
        np.ones(len(columns[role.user])) if role.rating is None else ratings(columns[role.rating], where),
        None if role.time is None else seconds(columns[role.time], where),
        None if role.group is None else ids(columns[role.group], "group", where, dictionaries),
    )


def ids(column: pa.Array, role: str, where: str, dictionaries: Dictionaries) -> Array | Coded:
    """Integers as they are; strings as codes into their distinct values."""
    require(column.null_count == 0, f"{where}: a {role} id is missing", DataError)
    kind = column.type
    if pa.types.is_integer(kind):
        numbers = np.asarray(column.to_numpy(zero_copy_only=False))
        return np.array(numbers, np.int32 if numbers.dtype == np.int32 else np.int64)  # a copy: Arrow frees its own
    if pa.types.is_floating(kind):
        return as_ids(np.asarray(column.to_numpy(zero_copy_only=False)), role)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    known = dictionaries.of(role)
    return Coded(known.codes(column.cast(pa.string()), f"{where}: a {role}"), known)


def strings(values: pa.Array, numbers: bool) -> Array:
    """Strings as a numpy array; with `numbers`, as int64 if every one is an integer as Python would write it."""
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
