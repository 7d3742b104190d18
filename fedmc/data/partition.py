"""Partition users among clients, and build each client's shard: its ratings by user and by item."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, InputError, require
from fedmc.types import Array


@dataclass(frozen=True, eq=False)
class Shard:
    """The ratings of one client, by its users and by the items that any of them rated."""

    client: int  # its number
    users: Array  # this client's rows of the whole table
    by_user: sparse.csr_array
    rated: Array  # the items, ascending
    by_rated: sparse.csr_array  # one row per rated item: the transpose of `by_user` without its empty rows
    test: sparse.csr_array | None = None
    validation: sparse.csr_array | None = None

    @classmethod
    def of(cls, client: int, users: Array, by_user: sparse.csr_array, *held_out: sparse.csr_array | None) -> Shard:
        return cls(client, users, by_user, *rated_rows(by_user), *held_out)

    def pattern(self) -> sparse.csr_array:
        """The positions of the ratings, without their values."""
        matrix = self.by_user
        return sparse.csr_array((np.ones(matrix.nnz, np.int8), matrix.indices, matrix.indptr), shape=matrix.shape)

    def renumbered(self, client: int) -> Shard:
        """The same ratings under another client number."""
        return replace(self, client=client)

    @cached_property
    def by_item(self) -> sparse.csr_array:
        """The transpose of `by_user`: `by_rated` with a row for every item, without a copy of the data."""
        counts = np.zeros(self.by_user.shape[1] + 1, np.int32)
        counts[self.rated + 1] = np.diff(self.by_rated.indptr)
        return _as_csr(self.by_rated.data, self.by_rated.indices, np.cumsum(counts, dtype=np.int32), len(self.users))


def together(shards: Sequence[Shard]) -> Shard:
    """Several clients as one shard: users and rated items are stacked, so an item can occur once per client."""
    if len(shards) == 1:
        return shards[0]
    first = np.cumsum([0, *(len(shard.users) for shard in shards)])
    by_user = _below([shard.by_user for shard in shards], np.zeros(len(shards), np.int32), shards[0].by_user.shape[1])
    by_rated = _below([shard.by_rated for shard in shards], first[:-1].astype(np.int32), int(first[-1]))
    users = np.concatenate([shard.users for shard in shards])
    return Shard(shards[0].client, users, by_user, np.concatenate([shard.rated for shard in shards]), by_rated)


def _below(parts: Sequence[sparse.csr_array], moved: Array, columns: int) -> sparse.csr_array:
    """The rows of all parts stacked, with the column numbers of each part increased by `moved`."""
    counts = [len(part.indices) for part in parts]
    starts = np.cumsum([0, *counts[:-1]], dtype=np.int32)
    indptr = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=True)]
    indices = np.concatenate([part.indices for part in parts])
    if moved.any():
        indices += np.repeat(moved, counts)
    data = np.concatenate([part.data for part in parts])
    return _as_csr(data, indices, np.concatenate([np.zeros(1, np.int32), *indptr]), columns)


class Federation(NamedTuple):
    """All simulated clients, and the ids of the users and items of their rows and columns."""

    shards: list[Shard]
    users: Array
    items: Array
    report: str | None = None  # about ratings that were dropped


def assign_users(users: int, clients: int, seed: int) -> Array:
    """Assign users to clients uniformly at random; sizes differ by at most one."""
    return _by_shares(users, np.full(_checked(clients, users, seed), 1 / clients), seed)


def assign_dirichlet(users: int, clients: int, concentration: float, seed: int) -> Array:
    """Unequal sizes, with shares from a Dirichlet distribution: a smaller concentration is more unequal."""
    _checked(clients, users, seed)
    require(concentration > 0, f"the Dirichlet concentration must be above 0, got {concentration}")
    return _by_shares(users, np.random.default_rng(seed).dirichlet(np.full(clients, concentration)), seed)


def assign_power_law(users: int, clients: int, exponent: float, seed: int) -> Array:
    """Unequal sizes: client k's share is proportional to k^-exponent."""
    _checked(clients, users, seed)
    require(exponent >= 0, f"the exponent of the power law must be at least 0, got {exponent}")
    shares = np.arange(1, clients + 1, dtype=float) ** -exponent
    return _by_shares(users, shares / shares.sum(), seed)


def owners_from_names(names: ArrayLike, users: int) -> Array:
    """Client numbers from one client name per user; clients are numbered in the sorted order of their names."""
    array = np.asarray(names)
    require(array.shape == (users,), f"name one client per user: got {array.shape}, expected ({users},)", DataError)
    owner: Array = np.unique(array, return_inverse=True)[1]
    return owner


def owners_from_file(path: str | Path, ratings: Ratings) -> Array:
    """Client numbers from a text file of `user,client` lines."""
    path = Path(path)
    require(path.is_file(), f"there is no file {path}", DataError)
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    for number, row in lines:
        require(len(row) == 2, f"{path}, line {number}: expected user,client, got {row}", DataError)
    client_of = {row[0].strip(): row[1].strip() for _, row in lines}
    missing = [user for user in ratings.users.astype(str).tolist() if user not in client_of]
    require(not missing, lambda: f"{path} names no client for user {missing[0]} ({len(missing)} users)", DataError)
    return owners_from_names([client_of[user] for user in ratings.users.astype(str).tolist()], len(ratings.users))


def parse(spec: str, ratings: Ratings, clients: int, seed: int) -> Array:
    """A partition from its spec: uniform, one-user, dirichlet:A, power:A, file:PATH, column:NAME."""
    users = len(ratings.users)
    name, _, value = spec.partition(":")
    if name == "column":
        require(ratings.groups is not None, f"these ratings have no column {value!r} of clients", DataError)
        assert ratings.groups is not None
        return ratings.groups[1].astype(np.int64)
    if name == "file":
        return owners_from_file(value, ratings)
    if spec == "one-user":
        return np.arange(users)
    if spec == "uniform":
        return assign_users(users, clients, seed)
    unequal: dict[str, Callable[[int, int, float, int], Array]] = {
        "dirichlet": assign_dirichlet,
        "power": assign_power_law,
    }
    if name not in unequal:
        known = "uniform, one-user, dirichlet:A, power:A, file:PATH or column:NAME"
        raise InputError(f"unknown partition {spec!r}: choose {known}")
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"partition {spec!r}: {value!r} is not a number") from None
    return unequal[name](users, clients, number, seed)


def make_shards(
    train: Ratings, owner: Array, dtype: DTypeLike, test: Ratings | None = None, validation: Ratings | None = None
) -> list[Shard]:
    """One shard per client; a client without a single training rating is refused."""
    shards = []
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(int(owner.max()) + 2))
    parts = [None if part is None else narrow(part.matrix[order].astype(dtype)) for part in (train, test, validation)]
    for client in range(len(bounds) - 1):
        here = slice(bounds[client], bounds[client + 1])
        by_user, *held_out = (None if part is None else _rows(part, here) for part in parts)
        require(
            by_user is not None and by_user.nnz > 0,
            lambda: (
                f"client {client} has no training ratings ({here.stop - here.start} users): "  # noqa: B023
                "use fewer clients or a smaller test share"
            ),
            DataError,
        )
        shards.append(Shard.of(client, order[here], by_user, *held_out))
    return shards


def rated_rows(by_user: sparse.csr_array) -> tuple[Array, sparse.csr_array]:
    """The items that were rated, and the ratings of each."""
    items = by_user.shape[1]
    rated = np.flatnonzero(np.bincount(by_user.indices, minlength=items)).astype(np.int32)
    place = np.empty(items, np.int32)
    place[rated] = np.arange(len(rated))
    narrowed = _as_csr(by_user.data, place[by_user.indices], by_user.indptr, len(rated))
    return rated, narrow(narrowed.T.tocsr())


def only(matrix: sparse.csr_array, chosen: Array) -> sparse.csr_array:
    """The chosen entries of a matrix, in its shape."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    parts = matrix.data[chosen], matrix.indices[chosen], before[matrix.indptr]
    return narrow(sparse.csr_array(parts, shape=matrix.shape))


def narrow(matrix: sparse.csr_array) -> sparse.csr_array:
    """Sorted int32 indices, so that each kernel is compiled once and every sum has a fixed order."""
    matrix.sort_indices()
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix


def _rows(matrix: sparse.csr_array, rows: slice) -> sparse.csr_array:
    """A range of rows, without a copy of the data."""
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    here = slice(indptr[0], indptr[-1])
    return _as_csr(matrix.data[here], matrix.indices[here], indptr - indptr[0], matrix.shape[1])


def _as_csr(data: Array, indices: Array, indptr: Array, columns: int) -> sparse.csr_array:
    """A CSR matrix from arrays that are already sorted."""
    matrix = sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns), copy=False)
    matrix.has_sorted_indices = True
    return matrix


def _checked(clients: int, users: int, seed: int) -> int:
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    require(clients >= 1, f"the number of clients must be at least 1, got {clients}")
    require(clients <= users, f"there are more clients ({clients}) than users ({users}): at most {users} clients")
    return clients


def _by_shares(users: int, shares: Array, seed: int) -> Array:
    """Users in random order, divided among clients by these shares, at least one user each."""
    spare = users - len(shares)
    sizes = 1 + np.floor(shares * spare).astype(np.int64)
    sizes[np.argsort(-(shares * spare % 1), kind="stable")[: users - sizes.sum()]] += 1
    owner = np.empty(users, np.int64)
    owner[np.random.default_rng([seed, 1]).permutation(users)] = np.repeat(np.arange(len(shares)), sizes)
    return owner
