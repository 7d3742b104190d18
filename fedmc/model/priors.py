"""What a Bayesian model's posterior says beyond its means: rows for the unknown, and the spread of expected ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmc.algorithms.bayes_client import with_ones
from fedmc.algorithms.posterior import Posterior, prior_row
from fedmc.types import Array

PAIRS = 1_000_000  # (user, item) pairs whose variances are computed at a time


def appended(U: Array, V: Array, known: Posterior) -> tuple[Array, Array, Posterior]:
    """The factors and the posterior with the priors as one more user and item, which -1 refers to."""
    assert known.user_covariances is not None
    (user, user_spread), (item, item_spread) = (
        prior_row(prior, V.dtype) for prior in (known.for_seen(0).hyper.users, known.hyper.items)
    )
    wider = replace(
        known,
        user_covariances=np.vstack([known.user_covariances, user_spread]),
        item_means=np.vstack([known.item_means, item]),
        item_covariances=np.vstack([known.item_covariances, item_spread]),
    )
    return np.vstack([U, with_ones(user[None])]), np.vstack([V, np.append(item, 1).astype(V.dtype)]), wider


def spread(known: Posterior, U: Array, rows: Array) -> Array:
    """Standard deviations of the expected scores of these users for all items, before they are scaled to ratings."""
    count = len(known.item_means)
    found = np.empty((len(rows), count))
    for start in range(0, len(rows), max(1, PAIRS // count)):
        some = rows[start : start + max(1, PAIRS // count)]
        pairs = np.repeat(some, count), np.tile(np.arange(count), len(some))
        variances = known.variances(*pairs, U) - 1 / known.hyper.noise
        found[start : start + len(some)] = np.sqrt(np.maximum(variances, 0)).reshape(len(some), count)
    return found
