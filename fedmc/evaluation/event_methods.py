"""Methods of events that are not federated, as a comparison runs them: each returns its ranking metrics."""

from __future__ import annotations

from itertools import islice

import numpy as np
from scipy import sparse

from fedmc.algorithms.ials import IALS
from fedmc.algorithms.settings import Settings
from fedmc.data.matrices import narrow
from fedmc.data.recency import later_of
from fedmc.evaluation.harness import DEPTH, Measured, Parts, ranking_of
from fedmc.evaluation.pooled_events import (
    TOLERANCES,
    Factors,
    defaults_for,
    first_items,
    fitted,
    nearest_top,
    popular_top,
    quick_sweeps,
    sweeps_of,
    top_of_clients,
)
from fedmc.types import Array

SWEEPS, TOLERANCE = 30, 1e-3  # of iALS in one place: until V changes less than this


def popularity(parts: Parts, settings: Settings) -> Measured:
    """The items that most users have."""
    return ranking_of(popular_top(parts.train.matrix, _depth(parts)), parts)


def nearest(parts: Parts, settings: Settings) -> Measured:
    """Item-kNN: the items that are most similar to those of the user."""
    return ranking_of(nearest_top(parts.train.matrix, _depth(parts)), parts)


def pooled(parts: Parts, settings: Settings) -> Measured:
    """iALS with the same rank, weights and start on all events in one place, to convergence."""
    return ranking_of(_top(parts, np.zeros(len(parts.owner), np.int64), settings), parts)


def alone(parts: Parts, settings: Settings) -> Measured:
    """iALS of each client on the events of its own users, with weights that suit their number."""
    return ranking_of(_top(parts, parts.owner, settings), parts)


def _top(parts: Parts, owner: Array, settings: Settings) -> Array:
    """The best items of each user by the model of its owner; recent events count more, as in a federation."""
    events, times = parts.train.matrix, parts.train.time_table()
    later = None if times is None else later_of(times)

    def fit(mine: sparse.csr_array, rows: Array) -> Factors:
        algorithm, V = _converged(mine, settings)
        counted = mine if later is None else sparse.csr_array(algorithm.in_predictions(events, later)[rows])
        return fitted(algorithm, narrow(counted), V), V

    return top_of_clients(events, owner, _depth(parts), fit)


def weights_for(events: sparse.csr_array) -> IALS:
    """iALS with the weights that a federation would choose for these events."""
    users, items = events.shape
    return defaults_for(users, items, max(events.nnz, 1))


def _converged(events: sparse.csr_array, settings: Settings) -> tuple[IALS, Array]:
    """iALS with its weights, and V at its end, after quick sweeps at the start."""
    algorithm, events = weights_for(events), narrow(events)
    start = first_items(events.shape[1], settings.rank, settings.seed, settings.dtype)
    _, V = next(islice(quick_sweeps(algorithm, events, start), len(TOLERANCES) - 1, None))
    for sweep, (_, after) in enumerate(sweeps_of(algorithm, events, V), 1):
        change, V = np.linalg.norm(after - V), after
        if sweep >= SWEEPS or change <= TOLERANCE * np.linalg.norm(V):
            break
    return algorithm, V


def _depth(parts: Parts) -> int:
    return min(DEPTH, len(parts.train.items))
