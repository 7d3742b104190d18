"""Ratings: who rated what how highly, with the ids their owner uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedmc.errors import DataError, require, unknown

Array = NDArray[Any]
Duplicates = Literal["refuse", "last", "mean"]


@dataclass(frozen=True, eq=False)
class Ratings:
    """A users x items matrix whose stored entries are the ratings (a stored 0 is a rating of 0), with its ids."""

    users: Array
    items: Array
    matrix: sparse.csr_array

    def __len__(self) -> int:
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        return f"Ratings({len(self.users):,} users x {len(self.items):,} items, {len(self):,} ratings)"

    @classmethod
    def from_arrays(cls, users: Any, items: Any, ratings: Any, *, duplicates: Duplicates = "refuse") -> Ratings:
        """Three arrays of equal length, in any order."""
        users, items = as_ids(users, "user"), as_ids(items, "item")
        values = _as_numbers(ratings)
        lengths = len(users), len(items), len(values)
        require(len(set(lengths)) == 1, f"users, items and ratings must be equally long, got {lengths}", DataError)
        require(len(values) > 0, "there are no ratings: the table is empty", DataError)
        bad = np.flatnonzero(~np.isfinite(values))
        require(
            not len(bad),
            lambda: (
                f"rating {bad[0] + 1} (user {users[bad[0]]}, item {items[bad[0]]}) is {values[bad[0]]}: "
                "ratings must be finite numbers; drop these rows"
            ),
            DataError,
        )
        user_ids, rows = np.unique(users, return_inverse=True)
        item_ids, columns = np.unique(items, return_inverse=True)
        shape = len(user_ids), len(item_ids)
        rows, columns, values = _settle_duplicates(rows, columns, values, user_ids, item_ids, duplicates)
        return cls(user_ids, item_ids, _csr(rows, columns, values, shape))

    def with_entries(self, keep: Array) -> Ratings:
        """The same users and items with only the stored entries that `keep` (a mask) selects."""
        rows = np.repeat(np.arange(len(self.users)), np.diff(self.matrix.indptr))[keep]
        matrix = _csr(rows, self.matrix.indices[keep], self.matrix.data[keep], self.matrix.shape)
        return Ratings(self.users, self.items, matrix)


def as_ratings(X: Any, *, duplicates: Duplicates = "refuse") -> Ratings:
    """Ratings from a DataFrame, a scipy sparse matrix, three arrays, or a 2-D array with NaN where unknown."""
    if isinstance(X, Ratings):
        require(len(X) > 0, "there are no ratings: the table is empty", DataError)
        return X
    if hasattr(X, "columns") and hasattr(X, "__getitem__"):
        user, item, rating = find_columns([str(name) for name in X.columns])
        table = dict(zip(map(str, X.columns), X.columns, strict=True))
        return Ratings.from_arrays(
            *(np.asarray(X[table[name]]) for name in (user, item, rating)), duplicates=duplicates
        )
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
            "or name the three columns (--columns USER,ITEM,RATING)",
            DataError,
        )
        found.append(known[0])
    return found[0], found[1], found[2]


def as_ids(ids: Any, role: str) -> Array:
    """Ids as int64 where they are whole numbers, else as strings; what a file without pickle can hold."""
    array = np.atleast_1d(np.asarray(ids))
    require(array.ndim == 1, f"{role} ids must be one-dimensional, got shape {array.shape}", DataError)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        whole = array.astype(np.int64, copy=True) if np.isfinite(array).all() else None
        require(
            whole is not None and bool((whole == array).all()),
            f"{role} ids must be whole numbers or strings, got {array.dtype} with fractions or NaN",
            DataError,
        )
        return whole  # type: ignore[return-value]
    if array.dtype.kind == "O":
        kinds = {type(value) for value in array}
        if kinds and all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
            return array.astype(np.int64)
        missing = np.array([value is None or value != value for value in array], dtype=bool)
        require(
            not missing.any(),
            f"{role} id {int(missing.argmax()) + 1} is missing: give every row one",
            DataError,
        )
    return array.astype(np.str_)


def _as_numbers(ratings: Any) -> Array:
    try:
        return np.atleast_1d(np.asarray(ratings)).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"ratings must be numbers: {error}") from None


def _numbered(rows: Array, columns: Array, values: Array, shape: tuple[int, int], duplicates: Duplicates) -> Ratings:
    """Ratings of a matrix: its ids are the row and column numbers, also of those without any rating."""
    found = Ratings.from_arrays(rows, columns, values, duplicates=duplicates)
    entries = sparse.coo_array(found.matrix)
    matrix = _csr(found.users[entries.row], found.items[entries.col], entries.data, shape)
    return Ratings(np.arange(shape[0]), np.arange(shape[1]), matrix)


def _settle_duplicates(
    rows: Array, columns: Array, values: Array, users: Array, items: Array, duplicates: Duplicates
) -> tuple[Array, Array, Array]:
    """One value for each (user, item): refuse a second one, keep the last, or take the mean."""
    key = rows.astype(np.int64) * len(items) + columns
    order = np.argsort(key, kind="stable")
    key = key[order]
    last = np.append(key[1:] != key[:-1], True)
    if not last.all():
        first = order[np.flatnonzero(~last)[0]]
        if duplicates == "refuse":
            raise DataError(
                f"{int((~last).sum()):,} ratings repeat a (user, item) pair, the first one user {users[rows[first]]}, "
                f"item {items[columns[first]]}: keep the last of each or their mean (--duplicates last|mean)"
            )
        if duplicates == "mean":
            group = np.cumsum(np.append(0, last[:-1]))
            means = np.bincount(group, values[order]) / np.bincount(group)
            return rows[order][last], columns[order][last], means
        if duplicates != "last":
            raise unknown("way to treat duplicates", duplicates, ("refuse", "last", "mean"))
    order = order[last]
    return rows[order], columns[order], values[order]


def _csr(rows: Array, columns: Array, values: Array, shape: tuple[int, int]) -> sparse.csr_array:
    """A CSR matrix with sorted int32 columns; stored zeros stay."""
    order = np.lexsort((columns, rows))
    indptr = np.zeros(shape[0] + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
    indices = columns[order].astype(np.int32)
    matrix = sparse.csr_array((values[order], indices, indptr.astype(np.int32)), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def split(ratings: Ratings, share: float, seed: int) -> tuple[Ratings, Ratings]:
    """Split off a random share of the ratings, the same whatever the order of the rows in the file: (rest, share)."""
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    require(0 <= share < 1, f"the share to split off must be at least 0 and below 1, got {share}")
    count = round(share * len(ratings))
    require(len(ratings) - count > 0, f"a share of {share} of {len(ratings)} ratings leaves none to train on")
    chosen = np.zeros(len(ratings), bool)
    chosen[np.random.default_rng(seed).permutation(len(ratings))[:count]] = True
    return ratings.with_entries(~chosen), ratings.with_entries(chosen)
