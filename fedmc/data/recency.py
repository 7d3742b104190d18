"""The order of a user's events, and how much more the recent ones count when the user's factors are for predictions.

With k later events of the same user, an event's confidence is multiplied by 1 + FACTOR 2^(-k / HALF_LIFE). Events at
the same time are ordered by their items, as in the split `last:K`. The order stays with the client, as its events do.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.data.matrices import as_csr, only
from fedmc.types import Array

FACTOR, HALF_LIFE = 2.0, 3.0  # chosen on validation events of six sets
MOST = 65_535  # later events that are counted; the factor is exactly 1 long before
TOLD = "events: they have times: a user's recent ones count more in recommendations (all alike with --no-recency)"


def later_of(times: sparse.csr_array) -> Array:
    """The number of later events of the same row, for each stored entry, from a table that holds their times."""
    rows = np.repeat(np.arange(times.shape[0]), np.diff(times.indptr))
    order = np.lexsort((times.data, rows))  # stable: at the same time, a later column is later
    later = np.empty(len(rows), np.uint16)
    later[order] = np.minimum(times.indptr[rows + 1] - 1 - np.arange(len(rows)), MOST)
    return later


def later_among(later: Array, events: sparse.csr_array, kept: Array) -> Array:
    """The number of later ones among the entries that are `kept`, a mask; `later` is that among all."""
    order = as_csr(-later.astype(np.int32), events.indices, events.indptr, events.shape[1])
    return later_of(only(order, kept))


def recent(events: sparse.csr_array, later: Array) -> sparse.csr_array:
    """The events with their confidences as they count in predictions."""
    data = events.data * (1 + FACTOR * np.exp2(later / -HALF_LIFE))
    return as_csr(data, events.indices, events.indptr, events.shape[1])
