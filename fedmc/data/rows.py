"""(user, item) rows, as scikit-learn passes them: X, with a rating for each in y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.data import readers
from fedmc.data.builder import Coded, Ids
from fedmc.data.ids import as_ids
from fedmc.data.readers.columnar import ArrowStream, collected
from fedmc.data.readers.columns import ColumnSelection
from fedmc.data.readers.usual import COLUMN_NAMES, find_usual
from fedmc.errors import DataError, InputError, quoted, require
from fedmc.types import Array

Columns = Sequence[str | int]
PANDAS_INDEX = "__index_level_"  # how Arrow calls the index of a pandas DataFrame without a name
CURE = "name them, such as columns=('who', 'what'), or columns=(0, 1) by position"


class Rows(NamedTuple):
    """Ids of users and items, row by row."""

    users: Array
    items: Array


def check_columns(columns: object) -> None:
    """Refuse columns that are not two different names or positions."""
    pair = isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) == 2
    good = pair and all(isinstance(one, str | int) and not isinstance(one, bool) for one in columns)  # type: ignore[attr-defined]
    require(
        columns is None or (good and columns[0] != columns[1]),  # type: ignore[index]
        f"columns must be two different names or positions, of users and items, such as ('who', 'what') or (0, 1), "
        f"got {quoted(columns)}",
    )


def rows_given(X: object, columns: Columns | None = None) -> Rows:
    """The users and items of an array or a DataFrame: these `columns`, else those with the usual names, or its two."""
    check_columns(columns)
    X = collected(X)
    if isinstance(X, ArrowStream):
        return _of_frame(X, columns)
    require(not sparse.issparse(X), "X of rows cannot be sparse: give a sparse matrix of ratings without y", DataError)
    table = np.asarray(X)
    shape = f"got {table.ndim}D array of shape={table.shape}"
    require(table.ndim == 2, f"Expected 2D array of (user, item) rows, {shape}. Reshape your data.", DataError)
    require(table.dtype.kind != "c", "Complex data not supported: ids are whole numbers or strings", DataError)
    width = table.shape[1]
    if columns is None:
        needed = f"X needs 2 columns, users and items, got n_features = {width}"
        require(
            width == 2, f"{needed} ({width} feature(s) (shape={table.shape}) while 2 are required): {CURE}", DataError
        )
    found = (0, 1) if columns is None else columns
    places: list[int] = []
    for column in found:
        if isinstance(column, str):
            raise InputError(f"X is an array, which has no column {column!r}: give a DataFrame, or positions")
        places.append(column)
        inside = f"X has no column {column}: it has {width} feature(s) (shape={table.shape}) while a minimum of "
        require(-width <= column < width, f"{inside}{column + 1} is required.", DataError)
    users, items = (table[:, column] for column in places)
    return Rows(_ids(users, "user"), _ids(items, "item"))


def values_given(y: ArrayLike) -> Array:
    """The ratings of rows, finite numbers; a column is one too."""
    require(not sparse.issparse(y), "y cannot be sparse: give an array of ratings", DataError)
    values = np.asarray(y)
    values = values.ravel() if values.ndim == 2 and values.shape[1] == 1 else values
    require(values.ndim == 1, f"y must have one rating for each row, got shape {values.shape}", DataError)
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"ratings must be numbers: {error}") from None


def _ids(column: Array, role: str) -> Array:
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise DataError(f"a {role} id is NaN or infinity: leave these rows out")
    return as_ids(column, role)


def _of_frame(frame: ArrowStream, columns: Columns | None) -> Rows:
    names = [name for name in readers.header(frame).names if not name.startswith(PANDAS_INDEX)]
    user, item = _chosen(names, columns)
    batches = list(readers.from_arrow(frame, ColumnSelection((user, item), rating="none")))
    return Rows(_joined([batch.users for batch in batches]), _joined([batch.items for batch in batches]))


def _chosen(names: Sequence[str], columns: Columns | None) -> tuple[str, str]:
    """The names of the columns of users and items."""
    known = f"X has the columns {', '.join(names)}"
    if columns is not None:
        for column in columns:
            there = column in names if isinstance(column, str) else -len(names) <= column < len(names)
            require(there, f"X has no column {column!r}: {known}", DataError)
        user, item = (one if isinstance(one, str) else names[one] for one in columns)
        return user, item
    found = [find_usual(names, COLUMN_NAMES[role]) for role in ("user", "item")]
    if len(names) == 2 and None in found:
        return names[0], names[1]
    if found[0] is None or found[1] is None:
        raise DataError(f"which columns hold users and items? {known}: {CURE}")
    return found[0], found[1]


def _joined(chunks: list[Ids]) -> Array:
    plain = [np.asarray(one.values)[one.codes] if isinstance(one, Coded) else one for one in chunks]
    return np.concatenate(plain) if plain else np.empty(0, np.int64)
