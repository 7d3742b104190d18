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

from fedmc.data.days import Days, days_of
from fedmc.data.feature_rows import Features
from fedmc.data.matrices import as_csr, rows_of, stacked, without
from fedmc.data.matrices import narrow as narrow  # these three re-exported for older imports
from fedmc.data.matrices import only as only
from fedmc.data.matrices import rated_rows as rated_rows
from fedmc.data.ratings import Ratings
from fedmc.data.recency import MOST, later_of
from fedmc.data.splits import NewUsers
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
    features: Array | None = None  # a row of standardised features for each user; they never leave the client
    also_seen: sparse.csr_array | None = None  # the pattern of events without a rating: views, purchases
    days: Days | None = None  # of the ratings, if their times are known
    later: Array | None = None  # of events with times: how many later ones the user has, by entries of `by_user`

    @classmethod
    def of(
        cls,
        client: int,
        users: Array,
        by_user: sparse.csr_array,
        *held_out: sparse.csr_array | None,
        features: Array | None = None,
        also_seen: sparse.csr_array | None = None,
        days: Days | None = None,
        later: Array | None = None,
    ) -> Shard:
        test, validation = (*held_out, None, None)[:2]
        rows = rated_rows(by_user)
        return cls(client, users, by_user, *rows, test, validation, features, also_seen, days, later)

    def pattern(self) -> sparse.csr_array:
        """The positions of the ratings, without their values."""
        matrix = self.by_user
        return sparse.csr_array((np.ones(matrix.nnz, np.int8), matrix.indices, matrix.indptr), shape=matrix.shape)

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """Who rated or saw what: the pattern of ratings and of events without a rating. Its values mean nothing."""
        if self.also_seen is None:
            return self.by_user
        union = narrow(sparse.csr_array(self.pattern() + self.also_seen))
        return as_csr(np.ones(union.nnz, np.int8), union.indices, union.indptr, union.shape[1])

    @cached_property
    def to_rated(self) -> Array:
        """The places in `by_user` of the entries of `by_rated`."""
        return np.argsort(self.by_user.indices, kind="stable")

    def renumbered(self, client: int) -> Shard:
        """The same ratings under another client number."""
        return replace(self, client=client)

    @cached_property
    def by_item(self) -> sparse.csr_array:
        """The transpose of `by_user`: `by_rated` with a row for every item, without a copy of the data."""
        counts = np.zeros(self.by_user.shape[1] + 1, np.int32)
        counts[self.rated + 1] = np.diff(self.by_rated.indptr)
        return as_csr(self.by_rated.data, self.by_rated.indices, np.cumsum(counts, dtype=np.int32), len(self.users))


def together(shards: Sequence[Shard]) -> Shard:
    """Several clients as one shard: users and rated items are stacked, so an item can occur once per client."""
    if len(shards) == 1:
        return shards[0]
    first = np.cumsum([0, *(len(shard.users) for shard in shards)])
    by_user = stacked([shard.by_user for shard in shards], np.zeros(len(shards), np.int32), shards[0].by_user.shape[1])
    by_rated = stacked([shard.by_rated for shard in shards], first[:-1].astype(np.int32), int(first[-1]))
    users = np.concatenate([shard.users for shard in shards])
    rated = np.concatenate([shard.rated for shard in shards])
    more = _features_of(shards), _also_seen_by(shards)
    return Shard(shards[0].client, users, by_user, rated, by_rated, None, None, *more, later=_later_of(shards))


def _later_of(shards: Sequence[Shard]) -> Array | None:
    """The order of all clients' events; those of a client without times all count alike."""
    if all(shard.later is None for shard in shards):
        return None
    unknown = (np.full(shard.by_user.nnz, MOST, np.uint16) for shard in shards)
    return np.concatenate(
        [alike if shard.later is None else shard.later for shard, alike in zip(shards, unknown, strict=True)]
    )


def _features_of(shards: Sequence[Shard]) -> Array | None:
    """The features of all users, zeros for clients without any; refused unless all have the same number of them."""
    widths = {shard.features.shape[1] for shard in shards if shard.features is not None}
    if not widths:
        return None
    require(len(widths) == 1, f"clients have different numbers of user features: {sorted(widths)}", DataError)
    empty = [np.zeros((len(shard.users), *widths)) for shard in shards]
    return np.concatenate(
        [nothing if shard.features is None else shard.features for shard, nothing in zip(shards, empty, strict=True)]
    )


def _also_seen_by(shards: Sequence[Shard]) -> sparse.csr_array | None:
    """The events of all clients; a client without any counts as one whose users saw nothing else."""
    if all(shard.also_seen is None for shard in shards):
        return None
    columns = shards[0].by_user.shape[1]
    parts = []
    for shard in shards:
        nothing = as_csr(np.empty(0, np.int8), np.empty(0, np.int32), np.zeros(len(shard.users) + 1, np.int32), columns)
        parts.append(nothing if shard.also_seen is None else shard.also_seen)
    return stacked(parts, np.zeros(len(shards), np.int32), columns)


class Federation(NamedTuple):
    """All simulated clients, and the ids of the users and items of their rows and columns."""

    shards: list[Shard]
    users: Array
    items: Array
    report: str | None = None  # about ratings that were dropped
    item_features: Array | None = None  # a row of standardised, public features for each item
    notes: tuple[str, ...] = ()  # about features and events: what was read and what was left out
    item_table: Features | None = None  # names, titles and values of the item features
    user_feature_names: tuple[str, ...] = ()
    confidence_scale: str | None = None  # of events: how amounts became the confidences that the shards hold
    client_names: tuple[str, ...] = ()  # with a partition by column, in the order of the numbers
    new_users: NewUsers | None = None  # who take no part in training and are folded in afterwards
    period: tuple[int, int] | None = None  # first and last time of all ratings or events, if times were read


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
    try:
        owner: Array = np.unique(array, return_inverse=True)[1]
    except TypeError:
        kinds = ", ".join(sorted({type(name).__name__ for name in array.tolist()}))
        raise DataError(f"names of clients must be all numbers or all text, got {kinds}") from None
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
    train: Ratings,
    owner: Array,
    dtype: DTypeLike,
    test: Ratings | None = None,
    validation: Ratings | None = None,
    features: Array | None = None,
    also_seen: sparse.csr_array | None = None,
    events: bool = False,
) -> list[Shard]:
    """One shard per client; a client without a single training rating is refused.

    `features` has a row for each user. Of `also_seen`, the events without a rating, held-out pairs are left out:
    otherwise a test would ask for ratings of items that are known to be rated. Times, if there are any, give the
    days of ratings, or the order of `events`.
    """
    shards = []
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(int(owner.max()) + 2))
    parts = [None if part is None else narrow(part.matrix[order].astype(dtype)) for part in (train, test, validation)]
    seen = None if also_seen is None else narrow(without(also_seen[order], *parts[1:]))
    times = [None if part is None else _times(part, order) for part in (train, test, validation)]
    for client in range(len(bounds) - 1):
        here = slice(bounds[client], bounds[client + 1])
        by_user, *held_out = (None if part is None else rows_of(part, here) for part in parts)
        require(
            by_user is not None and by_user.nnz > 0,
            lambda: (
                f"client {client} has no training ratings ({here.stop - here.start} users): "  # noqa: B023
                "use fewer clients or a smaller test share"
            ),
            DataError,
        )
        of_users = None if features is None else features[order[here]]
        also = None if seen is None else rows_of(seen, here)
        stamps = [None if part is None else rows_of(part, here) for part in times]
        days, later = _of_times(stamps, events)
        about = by_user, *held_out
        shards.append(Shard.of(client, order[here], *about, features=of_users, also_seen=also, days=days, later=later))
    return shards


def _of_times(stamps: Sequence[sparse.csr_array | None], events: bool) -> tuple[Days | None, Array | None]:
    """The days of a client's ratings, or the order of its events, from the times of each part, if they are known."""
    if stamps[0] is None:
        return None, None
    return (None, later_of(stamps[0])) if events else (days_of(stamps[0], *stamps[1:]), None)


def _times(ratings: Ratings, order: Array) -> sparse.csr_array | None:
    """The times of the ratings in the places of the ratings, with rows in this order; None if they have none."""
    times = ratings.time_table()
    return None if times is None else narrow(times[order])


def _checked(clients: int, users: int, seed: int) -> int:
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    require(clients >= 1, f"the number of clients must be at least 1, got {clients}")
    too_many = f"there are more clients ({clients}) than users ({users}): at most {users} clients (--clients)"
    require(clients <= users, too_many)
    return clients


def _by_shares(users: int, shares: Array, seed: int) -> Array:
    """Users in random order, divided among clients by these shares, at least one user each."""
    spare = users - len(shares)
    sizes = 1 + np.floor(shares * spare).astype(np.int64)
    sizes[np.argsort(-(shares * spare % 1), kind="stable")[: users - sizes.sum()]] += 1
    owner = np.empty(users, np.int64)
    owner[np.random.default_rng([seed, 1]).permutation(users)] = np.repeat(np.arange(len(shares)), sizes)
    return owner
