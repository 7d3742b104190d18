"""Explanations of a model of events: which of the user's items speak for another one. Computed at home.

The score of an item is a sum over the user's own items (`Algorithm.event_effects`): for iALS, with M the matrix of the
user's normal equations, v'u = sum over its items k of c_k v' M^-1 v_k. Each term is the effect of having item k.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.protocol import Algorithm
from fedmc.model.explain import SMALLEST_REST, Effect
from fedmc.types import Array


def effects(
    algorithm: Algorithm, broadcast: Broadcast, events: sparse.csr_array, column: int, items: Array, score: float
) -> list[Effect]:
    """The effect of each of a user's events, the largest first; `rest` is what confidences that are not known add."""
    found = algorithm.event_effects(events, column, broadcast)
    order = np.argsort(-np.abs(found), kind="stable")
    told = [Effect("seen", items[events.indices[k]].item(), float(found[k])) for k in order]
    rest = score - float(found.sum())
    return told + ([Effect("rest", None, rest)] if abs(rest) > SMALLEST_REST * max(1.0, abs(score)) * 1e3 else [])
