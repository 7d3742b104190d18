"""What a Python user passes to `fit`: a table of ratings or events, and the client of each user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data.builder import Batch, Duplicates, Merge
from fedmc.data.feedback import EventOptions, confidence, default_confidence, events_from
from fedmc.data.ids import as_ids
from fedmc.data.loading import as_ratings, clients_of_users
from fedmc.data.partition import assign_users, owners_from_names
from fedmc.data.ratings import Ratings, batch_of
from fedmc.data.recognition import check_explicit
from fedmc.data.rows import Columns, rows_given, values_given
from fedmc.errors import DataError, require
from fedmc.types import Array

Clients = Mapping[object, object] | Sequence[object] | Array | str


def ratings_given(
    X: object,
    y: ArrayLike | None,
    duplicates: Duplicates,
    events: EventOptions | None,
    groups: ArrayLike | None = None,
    columns: Columns | None = None,
) -> Ratings:
    """A table X, or (user, item) rows X with values y, as ratings; with `events`, as events.

    `groups` are the names of the client that each row comes from; `columns` are those of users and items in X.
    """
    if y is None:
        cure = "give the rows as X and their ratings as y, or use clients="
        require(groups is None, f"groups are those of rows, and a table of ratings has none: {cure}", DataError)
        found = as_ratings(X, duplicates=duplicates, events=events)
    else:
        users, items = rows_given(X, columns)
        batch = batch_of(users, items, values_given(y))
        batch = batch if groups is None else batch._replace(groups=_group_of_rows(groups, users))
        found = (
            Ratings.from_batches([batch], duplicates=duplicates)
            if events is None
            else events_from([batch], events, duplicates)
        )
    return found if events is None or events.recency else found.without_times()


def _group_of_rows(groups: ArrayLike, users: Array) -> Array:
    names = as_ids(groups, "group")
    each = f"there must be a group for each of {len(users):,} rows, got {len(names):,}: give as many"
    require(len(names) == len(users), each, DataError)
    return names


def scale_of(ratings: Ratings, events: EventOptions | None, given: str | None) -> str | None:
    """How amounts of events become confidences: as given, or by default; None for ratings, which must not be equal."""
    if events is None:
        check_explicit(ratings)
        return None
    return default_confidence(ratings.matrix.data) if given is None else given


def scaled(ratings: Ratings, scale: str | None) -> Ratings:
    """Amounts of events as confidences; without a scale, ratings as they are."""
    if scale is None:
        return ratings
    matrix = ratings.matrix.copy()
    matrix.data = confidence(matrix.data, scale).astype(matrix.data.dtype)
    return replace(ratings, matrix=matrix)


def names_given(
    ratings: Ratings, X: object, clients: Clients | None, events: EventOptions | None = None
) -> dict[object, object] | None:
    """The client of each user, as it was given; None if clients are to be drawn at random."""
    if ratings.groups is not None and clients is None:
        names, numbers = ratings.groups
        return dict(zip(ratings.users.tolist(), names[numbers].tolist(), strict=True))
    if clients is None:
        return None
    if isinstance(clients, str):
        clients = clients_of_users(X, clients, events)
    users = ratings.users.tolist()
    if isinstance(clients, Mapping):
        missing = [user for user in users if user not in clients]
        require(not missing, lambda: f"no client is given for user {missing[0]} ({len(missing)} users)", DataError)
        return {user: clients[user] for user in users}
    owners_from_names(cast(ArrayLike, clients), len(users))  # refuses another number of them
    return dict(zip(users, np.asarray(clients).tolist(), strict=True))


def owners_given(users: Array, names: Mapping[object, object] | None, number: int, seed: int) -> Array:
    """The number of each user's client: as given, or at random among `number` clients."""
    if names is None:
        return assign_users(len(users), number, seed)
    return owners_from_names(cast(ArrayLike, [names[user] for user in users.tolist()]), len(users))


def client_names(users: Array, names: Mapping[object, object] | None, owner: Array) -> list[object]:
    """The clients' names in the order of their numbers; the numbers themselves if users were assigned at random."""
    if names is None:
        return list(range(int(owner.max()) + 1))
    found = {int(number): names[user] for user, number in zip(users.tolist(), owner, strict=True)}
    return [found[number] for number in sorted(found)]


def with_new(table: Ratings, new: Ratings, merge: Merge) -> Ratings:
    """The ratings of both tables; of a pair that is in both, the new one counts, or the sum of both."""
    for side in ("users", "items"):
        old_ids, new_ids = getattr(table, side), getattr(new, side)
        same = old_ids.dtype.kind == new_ids.dtype.kind
        kinds = f"those of before {_example(old_ids)}, the new ones {_example(new_ids)}"
        require(same, f"ids of {side} must be all numbers or all text, but {kinds}: give ids of one kind", DataError)
    timed = table.times is not None and new.times is not None
    return Ratings.from_batches([_rows_of(table, timed), _rows_of(new, timed)], duplicates=merge)


def _rows_of(table: Ratings, timed: bool) -> Batch:
    times = table.times if timed else None
    return Batch(table.users[table.rows()], table.items[table.matrix.indices], table.matrix.data, times)


def _example(ids: Array) -> str:
    return f"are like {ids[0]!r}" if len(ids) else "are none"


def names_with_new(
    old: Mapping[object, object] | None, new: Mapping[object, object] | None
) -> Mapping[object, object] | None:
    """The clients of old and of new users: known users stay with theirs."""
    cure = "give `clients` to both fit and partial_fit, or to neither"
    require((old is None) == (new is None), f"the clients of some users only are given: {cure}", DataError)
    return None if old is None or new is None else {**new, **old}
