"""Ratings: a sparse users x items matrix with the owner's own ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.data.builder import Batch, Duplicates, Merge, build
from fedmc.data.describing import html_of
from fedmc.data.forms import Wide
from fedmc.data.ids import as_ids as as_ids  # re-exported for older imports
from fedmc.data.readers import from_arrow
from fedmc.data.readers.columnar import ArrowStream, collected
from fedmc.data.readers.columns import ColumnSelection
from fedmc.data.readers.wide import of_object
from fedmc.errors import DataError, require
from fedmc.types import Array


@dataclass(frozen=True, eq=False)
class Ratings:
    """A users x items matrix whose stored entries are the ratings (a stored 0 is a rating of 0), with its ids."""

    users: Array
    items: Array
    matrix: sparse.csr_array
    times: Array | None = None  # seconds since 1970, one for each stored entry
    groups: tuple[Array, Array] | None = None  # names of clients, and the number of each user's client
    notes: tuple[str, ...] = ()  # what reading left out

    def __len__(self) -> int:
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        return f"Ratings({len(self.users):,} users x {len(self.items):,} items, {len(self):,} ratings)"

    def _repr_html_(self) -> str:
        return html_of(self)

    @classmethod
    def from_arrays(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        ratings: ArrayLike,
        times: ArrayLike | None = None,
        *,
        duplicates: Duplicates = "refuse",
    ) -> Ratings:
        """Three arrays of equal length, in any order, and optionally times (seconds since 1970)."""
        return cls.from_batches([batch_of(users, items, ratings, times)], duplicates=duplicates)

    @classmethod
    def from_dataframe(
        cls,
        frame: object,
        *,
        user: str = "user",
        item: str = "item",
        rating: str | None = "rating",
        time: str | None = None,
        duplicates: Merge = "refuse",
    ) -> Ratings:
        """The columns with these names of a pandas or polars DataFrame (also lazy), or of another table of Arrow's.

        With `rating=None` each row is an event that counts 1; `duplicates="sum"` adds up repeated pairs. Times are
        seconds since 1970, dates or timestamps.
        """
        frame = collected(frame)
        kind = "pass a pandas or polars DataFrame, or an Arrow table; arrays go to Ratings.from_arrays"
        if not isinstance(frame, ArrowStream):
            raise DataError(f"cannot read columns from a {type(frame).__name__}: {kind}")
        named = (user, item, rating or "") if time is None else (user, item, rating or "", time)
        require(len(set(named)) == len(named), f"each role needs a column of its own, got {list(named)}", DataError)
        wanted = ColumnSelection(named, time is not None, rating="required" if rating else "none")
        found = cls.from_batches(from_arrow(frame, wanted), duplicates=duplicates)
        require(len(found) > 0, "there are no ratings: the table is empty", DataError)
        return found

    @classmethod
    def from_batches(cls, batches: Iterable[Batch], *, duplicates: Merge = "refuse") -> Ratings:
        """Batches of rows with finite ratings, in any order."""
        return cls(*build(batches, duplicates))

    @classmethod
    def from_wide(
        cls, matrix: object, missing: str | float | None = None, *, duplicates: Duplicates = "refuse"
    ) -> Ratings:
        """A DataFrame or 2-D array with a row for each user and a column for each item.

        Cells that are NaN or None, or equal to `missing` (a number, or several as in "99,-1"), are no ratings. Items
        are the columns' names. Users are in a column such as `user` or in the index of a DataFrame, or else the rows'
        numbers from 0.
        """
        found = of_object(matrix, Wide(missing))
        return replace(cls.from_batches(found, duplicates=duplicates), notes=found.notes)

    def with_entries(self, keep: Array) -> Ratings:
        """The same users and items with only the stored entries that `keep` (a mask) selects."""
        before = np.concatenate([[0], np.cumsum(keep)])
        indptr = before[self.matrix.indptr].astype(np.int32)
        parts = self.matrix.data[keep], self.matrix.indices[keep], indptr
        matrix = sparse.csr_array(parts, shape=self.matrix.shape)
        times = None if self.times is None else self.times[keep]
        return Ratings(self.users, self.items, matrix, times, self.groups, self.notes)

    def with_users(self, rows: Array) -> Ratings:
        """The ratings of the users in these rows, which rise, with all items."""
        keep = np.zeros(len(self.users), bool)
        keep[rows] = True
        kept = self.with_entries(keep[self.rows()])
        matrix = sparse.csr_array(kept.matrix[rows])
        groups = None if self.groups is None else (self.groups[0], self.groups[1][rows])
        return Ratings(self.users[rows], self.items, matrix, kept.times, groups, self.notes)

    def time_table(self) -> sparse.csr_array | None:
        """The times in the places of the ratings, if they have any."""
        if self.times is None:
            return None
        return sparse.csr_array((self.times, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape)

    def without_times(self) -> Ratings:
        return self if self.times is None else replace(self, times=None)

    def columns(self) -> dict[str, Array]:
        """One row for each rating, by user and item: the columns user, item, rating and, if known, timestamp."""
        found = {"user": self.users[self.rows()], "item": self.items[self.matrix.indices], "rating": self.matrix.data}
        return found if self.times is None else found | {"timestamp": self.times}

    def rows(self) -> Array:
        """The row of each stored entry."""
        return np.repeat(np.arange(len(self.users), dtype=np.int32), np.diff(self.matrix.indptr))


def batch_of(
    users: ArrayLike, items: ArrayLike, ratings: ArrayLike | None = None, times: ArrayLike | None = None
) -> Batch:
    """Arrays of equal length as one batch; without ratings, each is 1."""
    user_ids, item_ids = as_ids(users, "user"), as_ids(items, "item")
    values = np.ones(len(user_ids)) if ratings is None else _as_numbers(ratings)
    lengths = len(user_ids), len(item_ids), len(values)
    require(len(set(lengths)) == 1, f"users, items and ratings must be equally long, got {lengths}", DataError)
    bad = np.flatnonzero(~np.isfinite(values))
    require(
        not len(bad),
        lambda: (
            f"rating {bad[0] + 1} (user {user_ids[bad[0]]}, item {item_ids[bad[0]]}) is {values[bad[0]]}: "
            "ratings must be finite numbers; drop these rows"
        ),
        DataError,
    )
    stamps = None if times is None else np.asarray(times, np.int64)
    if stamps is not None:
        each = f"there must be a time for each of {len(user_ids)} rows, got {stamps.size}: give as many"
        require(stamps.shape == user_ids.shape, each, DataError)
    return Batch(user_ids, item_ids, values, stamps)


def _as_numbers(ratings: ArrayLike) -> Array:
    try:
        return np.atleast_1d(np.asarray(ratings)).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"ratings must be numbers: {error}") from None
