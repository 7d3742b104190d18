"""Ratings from Python objects, and from files, folders, archives and databases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from scipy import sparse

from fedmc.data import readers
from fedmc.data.builder import Duplicates
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columnar import ArrowStream
from fedmc.data.readers.columns import ColumnSelection
from fedmc.errors import DataError, require
from fedmc.types import Array


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of `read_source`."""

    query: str | None
    times: bool
    group: str | None
    duplicates: Duplicates


def read_source(
    source: str | Path,
    columns: Sequence[str] | None = None,
    *,
    query: str | None = None,
    times: bool = False,
    group: str | None = None,
    duplicates: Duplicates = "refuse",
) -> Ratings:
    """Ratings from a file, a folder, an archive or a database.

    `columns` names the columns of user, item, rating (and time). `times` also reads the times; `group` names a column
    with the client of each user.
    """
    selection = ColumnSelection(tuple(columns) if columns else None, times, group)
    return Ratings.from_batches(readers.batches(source, selection, query), duplicates=duplicates)


def as_ratings(X: object, *, duplicates: Duplicates = "refuse") -> Ratings:
    """Ratings from a DataFrame, a scipy sparse matrix, arrays, or a 2-D array with NaN where unknown.

    Arrays are users, items, ratings and, optionally, times in seconds since 1970.
    """
    if isinstance(X, Ratings):
        require(len(X) > 0, "there are no ratings: the table is empty", DataError)
        return X
    if isinstance(X, ArrowStream):
        return Ratings.from_batches(readers.from_arrow(X), duplicates=duplicates)
    if sparse.issparse(X):
        entries = sparse.coo_array(X)
        return _numbered(entries.row, entries.col, entries.data, entries.shape, duplicates)
    if isinstance(X, tuple | list) and len(X) in (3, 4):
        return Ratings.from_arrays(*X, duplicates=duplicates)
    if isinstance(X, np.ndarray) and X.ndim == 2:
        rows, columns = np.nonzero(~np.isnan(X))
        return _numbered(rows, columns, X[rows, columns], X.shape, duplicates)
    raise DataError(
        f"cannot read ratings from a {type(X).__name__}: pass a DataFrame with user, item and rating columns, "
        "a scipy sparse matrix, a 2-D array with NaN where unknown, or the three arrays (users, items, ratings)"
    )


def clients_of_users(X: object, column: str) -> Array:
    """Which client each user belongs to, from a column of a DataFrame."""
    if not isinstance(X, ArrowStream):
        raise DataError(f"clients={column!r} names a column: pass a DataFrame")
    groups = Ratings.from_batches(readers.from_arrow(X, column), duplicates="last").groups
    assert groups is not None
    return np.asarray(groups[0][groups[1]])


def _numbered(rows: Array, columns: Array, values: Array, shape: tuple[int, int], duplicates: Duplicates) -> Ratings:
    """Ratings of a matrix: ids are the row and column numbers, including those without any rating."""
    found = Ratings.from_arrays(rows, columns, values, duplicates=duplicates)
    indptr = np.zeros(shape[0] + 1, np.int32)
    indptr[found.users + 1] = np.diff(found.matrix.indptr)
    indices = found.items[found.matrix.indices].astype(np.int32)
    matrix = sparse.csr_array((found.matrix.data, indices, np.cumsum(indptr, dtype=np.int32)), shape=shape)
    return Ratings(np.arange(shape[0]), np.arange(shape[1]), matrix)
