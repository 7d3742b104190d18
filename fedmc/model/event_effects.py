"""Explanations of a model of events: which of the user's items speak for another one. Computed at home.

The score of an item is a sum over the user's own items (`Algorithm.event_effects`): for iALS, with M the matrix of the
user's normal equations, v'u = sum over its items k of c_k v' M^-1 v_k. Each term is the effect of having item k. Where
recent events count more in predictions, c_k is what event k counts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.data.matrices import as_csr
from fedmc.data.ratings import Ratings
from fedmc.data.recency import later_of
from fedmc.model.explain import SMALLEST_REST, Effect, Id, ratings_of
from fedmc.types import Array


class Given(NamedTuple):
    """A user, and the confidences of training, with times if they had any; None if they are not known."""

    user: Id
    ratings: Ratings | None


def effects(
    broadcast: Broadcast, events: sparse.csr_array, column: int, items: Array, score: float, given: Given
) -> list[Effect]:
    """The effect of each of a user's events, the largest first; `rest` is what confidences that are not known add."""
    algorithm = broadcast.settings.make_algorithm()
    tried = [
        algorithm.event_effects(counted, column, broadcast) for counted in _counted(broadcast, events, items, given)
    ]
    found = min(tried, key=lambda one: abs(score - float(one.sum())))
    order = np.argsort(-np.abs(found), kind="stable")
    told = [Effect("seen", items[events.indices[k]].item(), float(found[k])) for k in order]
    rest = score - float(found.sum())
    return told + ([Effect("rest", None, rest)] if abs(rest) > SMALLEST_REST * max(1.0, abs(score)) * 1e3 else [])


def _counted(broadcast: Broadcast, events: sparse.csr_array, items: Array, given: Given) -> Iterator[sparse.csr_array]:
    """The user's events as they may have counted: as they are given and, if the times are, with recent ones more.

    A model does not tell whether the order was used: its score does.
    """
    user, ratings = given
    ids = items[events.indices]
    if ratings is not None:
        events = as_csr(ratings_of(ratings, user, ids), events.indices, events.indptr, events.shape[1])
    yield events
    times = None if ratings is None else ratings.time_table()
    if ratings is not None and times is not None:
        stamps = ratings_of(replace(ratings, matrix=times), user, ids)
        later = later_of(as_csr(stamps, events.indices, events.indptr, events.shape[1]))
        yield broadcast.settings.make_algorithm().in_predictions(events, later)
