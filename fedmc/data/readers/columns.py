"""Selects the columns of a table, and converts Arrow columns to the arrays of a Batch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedmc.data.builder import Batch, Coded
from fedmc.data.ids import as_ids
from fedmc.data.readers.decimals import check_texts
from fedmc.data.readers.shapes import names_of
from fedmc.data.readers.times import find_time_column, seconds
from fedmc.data.readers.told import guessed
from fedmc.data.readers.usual import COLUMN_NAMES, EVENT_NAMES, find_usual, guess
from fedmc.errors import DataError, require
from fedmc.types import Array, DType

Need = Literal["required", "number", "optional", "none"]  # number: of events, which need a rating or an amount
EVENTS_CURE = "holds no ratings but events: use feedback='implicit' (--feedback implicit)"


class ColumnSelection(NamedTuple):
    """The caller's request: column names (None: the usual ones), times, a column of client names, and ratings.

    Events need no rating: `columns` may then end after user and item, and an empty third name means none.
    """

    columns: tuple[str, ...] | None = None
    times: bool = False
    group: str | None = None
    rating: Need = "required"
    amount: str | None = None  # a column of numbers to read instead of the rating, such as hours
    typed: bool = False  # read the event types too,
    event: str | None = None  # from this column (None: the usual names)
    any_times: bool = False  # read the times if there are any
    long: bool = False  # each row is one rating, even if the table looks like a wide matrix


class Roles(NamedTuple):
    """The columns of one table, by role."""

    user: str
    item: str
    rating: str | None
    time: str | None
    group: str | None
    event: str | None = None
    label: str = "rating"  # how messages call the numbers
    told: str = ""  # what was guessed

    @property
    def names(self) -> list[str]:
        named = self.user, self.item, self.rating, self.time, self.group, self.event
        return list(dict.fromkeys(name for name in named if name is not None))


class Header(NamedTuple):
    """The names of a table's columns (without a header: user, item, column 3, time), and the first event types."""

    names: tuple[str, ...]
    event_types: tuple[str, ...] = ()  # of the column with a usual name of event types, the most frequent first


def roles(names: Sequence[str], selection: ColumnSelection, where: str) -> Roles:
    """Find the selected columns among those of a table."""
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{where} has more than one column {twice[:1]}: rename one", DataError)
    group = selection.group
    if group is not None:
        known = ", ".join(names)
        require(group in names, f"{where} has no column {group!r} for the clients: it has {known}", DataError)
    user, item, rating = _main_columns(names, selection, where)
    time = _time_column(names, selection, where, (user, item, rating))
    event = _event_column(names, selection.event, where) if selection.typed else None
    found = Roles(user, item, rating, time, group, event, selection.amount or "rating")
    return found._replace(told=_told(found, selection))


def _told(found: Roles, selection: ColumnSelection) -> str:
    """Which columns were found by their names alone."""
    main = selection.columns is None
    return guessed(
        {
            "user": found.user if main else None,
            "item": found.item if main else None,
            "rating": found.rating if main and selection.amount is None else None,
            "time": found.time if len(selection.columns or ()) < 4 else None,
            "event": found.event if selection.event is None else None,
        }
    )


def _main_columns(names: Sequence[str], selection: ColumnSelection, where: str) -> tuple[str, str, str | None]:
    """The columns of user, item, and rating or amount; None if there is none and none is needed."""
    columns, amount = selection.columns, selection.amount
    if selection.rating == "required":
        return find_columns(names, None if columns is None else columns[:3], selection.group)
    third = None
    if columns is None:
        cure = "" if selection == ColumnSelection(times=selection.times, rating="none") else EVENT_COLUMNS_CURE
        user, item = _ids(names, f"{where}: ", cure, selection.group)
    else:
        require(len(columns) >= 2, f"name two columns at least (user, item), got {list(columns)}", DataError)
        user, item, third = columns[0], columns[1], (columns[2] or None) if len(columns) > 2 else None
    rating = amount or third
    require(
        third in (None, rating),
        f"the amounts come from one column, but both {third!r} and {amount!r} are named: leave one out",
        DataError,
    )
    if rating is None and (selection.rating == "number" or (columns is None and selection.rating == "optional")):
        rating = guess(names, COLUMN_NAMES["rating"], "rating", "name one (columns='USER,ITEM,RATING')")
    if rating is None and selection.rating == "number":
        known = f"{where}: no rating column found: the table has {names_of(names)}"
        raise DataError(f"{known}; name it (columns='USER,ITEM,RATING'), or leave min_rating out")
    chosen = [name for name in (user, item, rating) if name is not None]
    for name in chosen:
        require(name in names, f"{where} has no column {name!r}: it has {', '.join(names)}", DataError)
    require(
        len(set(chosen)) == len(chosen), f"user, item and amount must be different columns, got {chosen}", DataError
    )
    return user, item, rating


def _time_column(
    names: Sequence[str], selection: ColumnSelection, where: str, others: Sequence[str | None]
) -> str | None:
    """The column of times: the fourth that is named, else one with a usual name; None if none is there or asked for."""
    if not selection.times and not selection.any_times:
        return None
    columns = selection.columns or ()
    found = columns[3] if len(columns) > 3 else find_time_column(names, selection.times)
    known = found is None or found in names
    require(known, f"{where} has no column {found!r}: it has {', '.join(names)}", DataError)
    return found if selection.times or found not in others else None


def _event_column(names: Sequence[str], given: str | None, where: str) -> str:
    """The column of event types: the one that is named, else one with a usual name."""
    found = guess(names, EVENT_NAMES, "event type", "name one (event='COLUMN')") if given is None else given
    known = ", ".join(names)
    if found is None:
        raise DataError(f"{where} has no column of event types: it has {known}; name it (event='COLUMN')")
    require(found in names, f"{where} has no column {found!r} for the event types: it has {known}", DataError)
    return found


EVENT_COLUMNS_CURE = " or name the columns (columns='USER,ITEM')"


def find_columns(
    names: Sequence[str], given: Sequence[str] | None = None, group: str | None = None
) -> tuple[str, str, str]:
    """Which columns hold user, item and rating: those `given`, else those with a usual name."""
    if given is not None:
        require(len(given) == 3, f"name three columns (user, item, rating), got {len(given)}: {list(given)}", DataError)
        require(
            len(set(given)) == 3,
            f"user, item and rating must be three different columns, got {list(given)}",
            DataError,
        )
        for name in given:
            require(name in names, f"there is no column {name!r}: the table has {names_of(names)}", DataError)
        return given[0], given[1], given[2]
    cure = " or name the three columns (columns='USER,ITEM,RATING')"
    user, item = _ids(names, "", cure, group)
    return user, item, _usual_column(names, "rating", "", f"{cure}; a table without a rating {EVENTS_CURE}")


def _ids(names: Sequence[str], where: str, cure: str, group: str | None) -> tuple[str, str]:
    """The columns of users and items, by their usual names; the one with the names of clients is another."""
    others = [name for name in names if name != group]
    user, item = (_usual_column(others, role, where, cure) for role in ("user", "item"))
    return user, item


def _usual_column(names: Sequence[str], role: str, where: str, cure: str) -> str:
    """The column with a usual name of this role."""
    known = guess(names, COLUMN_NAMES[role], role, cure.partition(";")[0].removeprefix(" or "))
    if known is None:
        found = f"{where}no {role} column found: the table has {names_of(names)}"
        raise DataError(f"{found}; call it {role!r}{cure}")
    return known


def header_of(names: Sequence[str], first: Mapping[str, pa.Array]) -> Header:
    """The names of a table's columns, and the event types among its first rows."""
    column = find_usual(names, EVENT_NAMES)
    if column is None or column not in first:
        return Header(tuple(names))
    codes, values = kinds(first[column])
    counts = np.bincount(codes, minlength=len(np.asarray(values)))
    types = np.asarray(values)[np.argsort(-counts, kind="stable")].tolist()
    return Header(tuple(names), tuple(name for name in types if name))


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
        np.ones(len(columns[role.user])) if role.rating is None else ratings(columns[role.rating], where, role.label),
        None if role.time is None else seconds(columns[role.time], where),
        None if role.group is None else ids(columns[role.group], "group", where, dictionaries),
        None if role.event is None else kinds(columns[role.event]),
        role.told,
    )


def kinds(column: pa.Array) -> Coded:
    """Event types as strings; a missing one is empty."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    coded = texts.dictionary_encode()
    codes = np.array(coded.indices.to_numpy(zero_copy_only=False), np.int32)
    return Coded(codes, np.array(coded.dictionary.to_pylist(), np.str_))


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
    require(not pa.types.is_nested(kind), f"{where}: {role} ids must be whole numbers or text, got {kind}", DataError)
    known = dictionaries.of(role)
    return Coded(known.codes(column.cast(pa.string()), f"{where}: a {role}"), known)


def strings(values: pa.Array, numbers: bool) -> Array:
    """Strings as a numpy array; with `numbers`, as int64 if every one is an integer as Python would write it."""
    if numbers and len(values) and pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,18})$")).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # 19 digits may be too many
            return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return np.asarray(values.to_pylist() or [""], dtype=np.str_)[: len(values)]


def ratings(column: pa.Array, where: str, label: str = "rating") -> Array:
    """Finite numbers."""
    try:
        numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        check_texts(f"{where}: the {label}", column.to_pylist())
        raise DataError(f"{where}: {_many(label)} must be numbers, got {column.type}: {error}") from None
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad) or column.null_count:
        at = int(bad[0]) if len(bad) else 0
        raise DataError(
            f"{where}: {label} {at + 1} of a batch is {numbers[at]}: {_many(label)} must be finite, drop these rows"
        )
    return numbers


def _many(label: str) -> str:
    return "ratings" if label == "rating" else f"values of {label!r}"
