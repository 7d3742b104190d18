"""Ratings: who rated what how highly, with the ids their owner uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from fedmc.data.builder import Batch, Duplicates, build
from fedmc.errors import DataError, require
from fedmc.types import Array


@dataclass(frozen=True, eq=False)
class Ratings:
    """A users x items matrix whose stored entries are the ratings (a stored 0 is a rating of 0), with its ids."""

    users: Array
    items: Array
    matrix: sparse.csr_array
    times: Array | None = None  # seconds since 1970, one for each stored entry
    groups: tuple[Array, Array] | None = None  # names of clients, and which of them each user belongs to

    def __len__(self) -> int:
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        return f"Ratings({len(self.users):,} users x {len(self.items):,} items, {len(self):,} ratings)"

    @classmethod
    def from_arrays(
        cls, users: Any, items: Any, ratings: Any, times: Any = None, *, duplicates: Duplicates = "refuse"
    ) -> Ratings:
        """Three arrays of equal length, in any order, and optionally times (seconds since 1970)."""
        users, items = as_ids(users, "user"), as_ids(items, "item")
        values = _as_numbers(ratings)
        lengths = len(users), len(items), len(values)
        require(len(set(lengths)) == 1, f"users, items and ratings must be equally long, got {lengths}", DataError)
        bad = np.flatnonzero(~np.isfinite(values))
        require(
            not len(bad),
            lambda: (
                f"rating {bad[0] + 1} (user {users[bad[0]]}, item {items[bad[0]]}) is {values[bad[0]]}: "
                "ratings must be finite numbers; drop these rows"
            ),
            DataError,
        )
        stamps = None if times is None else np.asarray(times, np.int64)
        return cls.from_batches([Batch(users, items, values, stamps)], duplicates=duplicates)

    @classmethod
    def from_batches(cls, batches: Iterable[Batch], *, duplicates: Duplicates = "refuse") -> Ratings:
        """Batches of rows with finite ratings, in any order."""
        return cls(*build(batches, duplicates))

    def with_entries(self, keep: Array) -> Ratings:
        """The same users and items with only the stored entries that `keep` (a mask) selects."""
        before = np.concatenate([[0], np.cumsum(keep)])
        indptr = before[self.matrix.indptr].astype(np.int32)
        parts = self.matrix.data[keep], self.matrix.indices[keep], indptr
        matrix = sparse.csr_array(parts, shape=self.matrix.shape)
        times = None if self.times is None else self.times[keep]
        return Ratings(self.users, self.items, matrix, times, self.groups)

    def rows(self) -> Array:
        """The row of each stored entry."""
        return np.repeat(np.arange(len(self.users), dtype=np.int32), np.diff(self.matrix.indptr))


def as_ratings(X: Any, *, duplicates: Duplicates = "refuse") -> Ratings:
    """Ratings from a DataFrame, a scipy sparse matrix, three arrays, or a 2-D array with NaN where unknown."""
    if isinstance(X, Ratings):
        require(len(X) > 0, "there are no ratings: the table is empty", DataError)
        return X
    if hasattr(X, "__arrow_c_stream__"):
        from fedmc.data.readers import from_arrow  # pyarrow is not needed before

        return Ratings.from_batches(from_arrow(X), duplicates=duplicates)
    if sparse.issparse(X):
        entries = sparse.coo_array(X)
        return _numbered(entries.row, entries.col, entries.data, entries.shape, duplicates)
    if isinstance(X, tuple | list) and len(X) == 3:
        return Ratings.from_arrays(*X, duplicates=duplicates)
    if isinstance(X, np.ndarray) and X.ndim == 2:
        rows, columns = np.nonzero(~np.isnan(X))
        return _numbered(rows, columns, X[rows, columns], X.shape, duplicates)
    raise DataError(
        f"cannot read ratings from a {type(X).__name__}: pass a DataFrame with user, item and rating columns, "
        "a scipy sparse matrix, a 2-D array with NaN where unknown, or the three arrays (users, items, ratings)"
    )


_TIME_NAMES = ("timestamp", "time", "date", "datetime", "rated_at", "created_at")
_COLUMN_NAMES = {
    "user": ("user", "userid", "user_id", "customer", "customer_id", "uid", "patient", "patient_id"),
    "item": ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "product", "product_id", "iid"),
    "rating": ("rating", "score", "value", "stars"),
}


def find_columns(names: Sequence[str], wanted: Sequence[str] | None = None) -> tuple[str, str, str]:
    """Which columns hold user, item and rating: those `wanted`, or by their usual names."""
    if wanted is not None:
        require(
            len(wanted) == 3,
            f"name three columns (user, item, rating), got {len(wanted)}: {list(wanted)}",
            DataError,
        )
        require(
            len(set(wanted)) == 3,
            f"user, item and rating must be three different columns, got {list(wanted)}",
            DataError,
        )
        for name in wanted:
            require(name in names, f"there is no column {name!r}: the table has {', '.join(names)}", DataError)
        return wanted[0], wanted[1], wanted[2]
    lower = {name.strip().lower(): name for name in reversed(names)}
    found = []
    for role, usual in _COLUMN_NAMES.items():
        known = [lower[name] for name in usual if name in lower]
        require(
            bool(known),
            f"no {role} column found: the table has {', '.join(names)}; call it {role!r} "
            "or name the three columns (columns='USER,ITEM,RATING')",
            DataError,
        )
        found.append(known[0])
    return found[0], found[1], found[2]


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


def as_ids(ids: Any, role: str) -> Array:
    """Ids as int64 where they are whole numbers, else as strings; what a file without pickle can hold."""
    array = np.atleast_1d(np.asarray(ids))
    require(array.ndim == 1, f"{role} ids must be one-dimensional, got shape {array.shape}", DataError)
    kind = array.dtype.kind
    if kind == "i" or (kind == "u" and array.max(initial=0) < 2**63):
        return array.astype(np.int64)
    if kind == "f":
        whole = (
            np.isfinite(array).all() and np.abs(array).max(initial=0) < 2**53 and bool((array == np.floor(array)).all())
        )
        require(
            whole, f"{role} ids must be whole numbers or strings, got {array.dtype} with fractions or NaN", DataError
        )
        return array.astype(np.int64)
    if kind == "S":
        return np.char.decode(array, "utf-8", "backslashreplace")
    return _object_ids(array, role) if kind == "O" else array.astype(np.str_)


def _object_ids(array: Array, role: str) -> Array:
    """Python objects: whole numbers if all are, else their text, provided that two different ids stay different."""
    values = array.tolist()
    if all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values):
        return array.astype(np.int64)
    for place, value in enumerate(values):
        missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
        require(not missing, f"{role} id {place + 1} is missing: give every row one", DataError)
    texts = [str(value) for value in values]
    require(
        len(set(values)) == len(set(texts)),
        f"{role} ids mix numbers and strings that look alike: use one kind",
        DataError,
    )
    return np.array(texts, dtype=np.str_)


def _as_numbers(ratings: Any) -> Array:
    try:
        return np.atleast_1d(np.asarray(ratings)).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"ratings must be numbers: {error}") from None


def _numbered(rows: Array, columns: Array, values: Array, shape: tuple[int, int], duplicates: Duplicates) -> Ratings:
    """Ratings of a matrix: its ids are the row and column numbers, also of those without any rating."""
    found = Ratings.from_arrays(rows, columns, values, duplicates=duplicates)
    indptr = np.zeros(shape[0] + 1, np.int32)
    indptr[found.users + 1] = np.diff(found.matrix.indptr)
    indices = found.items[found.matrix.indices].astype(np.int32)
    matrix = sparse.csr_array((found.matrix.data, indices, np.cumsum(indptr, dtype=np.int32)), shape=shape)
    return Ratings(np.arange(shape[0]), np.arange(shape[1]), matrix)
