"""Ratings from Python objects, and from files, folders, archives and databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from scipy import sparse

from fedmc.data import readers
from fedmc.data.addresses import without_password
from fedmc.data.builder import Batch, Duplicates
from fedmc.data.feedback import EventOptions, events_from, events_of
from fedmc.data.forms import Wide
from fedmc.data.ratings import Ratings, batch_of
from fedmc.data.readers.columnar import ArrowStream, collected
from fedmc.data.readers.columns import ColumnSelection
from fedmc.data.readers.wide import Matrix
from fedmc.errors import DataError, require
from fedmc.types import Array


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of `read_source`."""

    query: str | None
    times: bool
    group: str | None
    duplicates: Duplicates
    events: EventOptions | None
    wide: Wide | bool | None


def read_source(
    source: str | Path,
    columns: Sequence[str] | None = None,
    *,
    query: str | None = None,
    times: bool = False,
    group: str | None = None,
    duplicates: Duplicates = "refuse",
    events: EventOptions | None = None,
    wide: Wide | bool | None = None,
) -> Ratings:
    """Ratings from a file, a folder, an archive or a database.

    `columns` names the columns of user, item, rating (and time). `times` also reads the times; `group` names a column
    with the client of each user. With `events` the values are amounts (`fedmc.data.feedback`): `columns` may name
    user and item only, and repeated pairs add up unless `duplicates` asks for the last or the mean.

    `wide=Wide(missing=99)`, or `wide=True`, reads a matrix with a row for each user and a column for each item;
    `columns` may then name the column of users. False: each row is one rating, even if it looks like such a matrix.
    """
    if isinstance(wide, Wide) or wide:
        form = wide if isinstance(wide, Wide) else Wide()
        _check_wide(times, group, events)
        return _read_wide(readers.wide_matrix(source, form, columns, query), duplicates, events)
    if events is not None:

        def read(options: EventOptions) -> Ratings:
            wanted = options.selection(columns, times, group)._replace(long=wide is False)
            return events_from(_with_rows(readers.batches(source, wanted, query), source), options, duplicates)

        return events_with_times(read, events)
    selection = ColumnSelection(tuple(columns) if columns else None, times, group, long=wide is False)
    return Ratings.from_batches(_with_rows(readers.batches(source, selection, query), source), duplicates=duplicates)


def _check_wide(times: bool, group: str | None, events: EventOptions | None) -> None:
    """Refuse what a wide matrix cannot hold."""
    require(not times, "a wide matrix holds no times: leave out splits and options that need them", DataError)
    require(
        group is None, f"a wide matrix has no column {group!r} for the clients: choose another partition", DataError
    )
    if events is not None:
        events.check_without_columns("a wide matrix")


def _read_wide(matrix: Matrix, duplicates: Duplicates, events: EventOptions | None) -> Ratings:
    if events is None:
        found = Ratings.from_batches(matrix, duplicates=duplicates)
    else:
        found = events_from(matrix, replace(events, recency=False), duplicates)
    return replace(found, notes=(*matrix.notes, *found.notes))


def events_with_times(read: Callable[[EventOptions], Ratings], events: EventOptions) -> Ratings:
    """The events with their times, if there are any that can be read; otherwise without, and this is told."""
    try:
        return read(events)
    except DataError as error:
        if not events.recency:
            raise
        try:
            found = read(replace(events, recency=False))
        except DataError:
            raise error from None
        return replace(found, notes=(*found.notes, f"events: the times are not used, as they cannot be read: {error}"))


def _with_rows(batches: Iterable[Batch], source: str | Path) -> Iterator[Batch]:
    """The batches of a source; refused at the end if there was no row."""
    rows = 0
    for batch in batches:
        rows += len(batch.ratings)
        yield batch
    shown = without_password(str(source))
    require(rows > 0, f"there are no ratings or events: {shown} has no rows of users and items", DataError)


def as_ratings(
    X: object, *, duplicates: Duplicates = "refuse", events: EventOptions | None = None, times: bool = False
) -> Ratings:
    """Ratings from a DataFrame, a scipy sparse matrix, arrays, or a 2-D array with NaN where unknown.

    Arrays are users, items, ratings and, optionally, times in seconds since 1970. With `events` the values are amounts
    (`fedmc.data.feedback`), 1 if there are none: a DataFrame or two arrays of users and items are enough. With `times`,
    a DataFrame's column of times is read too.
    """
    X = collected(X)
    if events is not None:
        return _as_events(X, duplicates, events)
    if isinstance(X, Ratings):
        require(len(X) > 0, "there are no ratings: the table is empty", DataError)
        return X
    if isinstance(X, ArrowStream):
        return Ratings.from_batches(readers.from_arrow(X, ColumnSelection(times=times)), duplicates=duplicates)
    batch, shape = _cells(X, 3)
    found = Ratings.from_batches([batch], duplicates=duplicates)
    return found if shape is None else _numbered(found, shape)


def _as_events(X: object, duplicates: Duplicates, events: EventOptions) -> Ratings:
    if isinstance(X, ArrowStream):
        return events_with_times(
            lambda options: events_from(readers.from_arrow(X, options.selection()), options, duplicates), events
        )
    if isinstance(X, Ratings):
        require(len(X) > 0, "there are no events: the table is empty", DataError)
        return events_of(X, events)
    batch, shape = _cells(X, 2)
    events.check_without_columns(f"a {type(X).__name__}")
    found = events_from([batch], events, duplicates)
    return found if shape is None or events.min_events > 1 else _numbered(found, shape)


def _cells(X: object, least: int) -> tuple[Batch, tuple[int, int] | None]:
    """The entries of a matrix, with its shape, or of at least so many arrays."""
    if sparse.issparse(X):
        entries = sparse.coo_array(X)
        return batch_of(entries.row, entries.col, entries.data), entries.shape
    if isinstance(X, tuple | list) and least <= len(X) <= 4:
        return batch_of(*X), None
    if isinstance(X, np.ndarray) and X.ndim == 2:
        require(
            X.dtype.kind in "biuf",
            f"a 2-D array of ratings holds numbers, got {X.dtype}: convert it with X.astype(float); rows of "
            "(user, item) ids come with their ratings, as in fit(X, y)",
            DataError,
        )
        rows, columns = np.nonzero(~np.isnan(X))
        return batch_of(rows, columns, X[rows, columns]), (X.shape[0], X.shape[1])
    raise DataError(
        f"cannot read ratings from a {type(X).__name__}: pass a DataFrame with user, item and rating columns, "
        "a scipy sparse matrix, a 2-D array with NaN where unknown, or the three arrays (users, items, ratings)"
        + ("; for events, two are enough (users, items)" if least == 2 else "")
        + ("; fedmc.data.datasets.load_source(PATH) reads a file of ratings" if isinstance(X, str | Path) else "")
    )


def clients_of_users(X: object, column: str, events: EventOptions | None = None) -> Array:
    """Which client each user belongs to, from a column of a DataFrame, which is read as `as_ratings` does."""
    X = collected(X)
    if not isinstance(X, ArrowStream):
        raise DataError(f"clients={column!r} names a column: pass a DataFrame")
    if events is not None:
        untimed = replace(events, recency=False)
        groups = events_from(readers.from_arrow(X, untimed.selection(group=column)), untimed).groups
    else:
        batches = readers.from_arrow(X, ColumnSelection(group=column))
        groups = Ratings.from_batches(batches, duplicates="last").groups
    assert groups is not None
    return np.asarray(groups[0][groups[1]])


def _numbered(found: Ratings, shape: tuple[int, int]) -> Ratings:
    """Ratings of a matrix: ids are the row and column numbers, including those without any rating."""
    indptr = np.zeros(shape[0] + 1, np.int32)
    indptr[found.users + 1] = np.diff(found.matrix.indptr)
    indices = found.items[found.matrix.indices].astype(np.int32)
    matrix = sparse.csr_array((found.matrix.data, indices, np.cumsum(indptr, dtype=np.int32)), shape=shape)
    return Ratings(np.arange(shape[0]), np.arange(shape[1]), matrix, notes=found.notes)
