"""What a Python user passes to `fit`: a table of ratings or events, and the client of each user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data.builder import Duplicates
from fedmc.data.feedback import EventOptions, confidence, default_confidence
from fedmc.data.loading import as_ratings, clients_of_users
from fedmc.data.partition import assign_users, owners_from_names
from fedmc.data.ratings import Ratings
from fedmc.data.recognition import check_explicit
from fedmc.errors import DataError, require
from fedmc.types import Array

Clients = Mapping[object, object] | Sequence[object] | Array | str


def ratings_given(X: object, y: ArrayLike | None, duplicates: Duplicates, events: EventOptions | None) -> Ratings:
    """X, or (user, item) pairs X with values y, as ratings; with `events`, as events."""
    if y is not None:
        pairs = np.asarray(X)
        require(pairs.shape[1:] == (2,), f"with y, X must be (user, item) pairs, got {pairs.shape}", DataError)
        X = pairs[:, 0], pairs[:, 1], y
    found = as_ratings(X, duplicates=duplicates, events=events)
    return found if events is None or events.recency else found.without_times()


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


def owners_given(
    ratings: Ratings, X: object, clients: Clients | None, number: int, seed: int, events: EventOptions | None = None
) -> Array:
    """The client of each user: as given, or at random among `number` clients."""
    if clients is None:
        return assign_users(len(ratings.users), number, seed)
    if isinstance(clients, str):
        clients = clients_of_users(X, clients, events)
    if isinstance(clients, Mapping):
        missing = [user for user in ratings.users.tolist() if user not in clients]
        require(not missing, lambda: f"no client is given for user {missing[0]} ({len(missing)} users)", DataError)
        clients = [clients[user] for user in ratings.users.tolist()]
    return owners_from_names(cast(ArrayLike, clients), len(ratings.users))
