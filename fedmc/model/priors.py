"""What a Bayesian model's posterior says beyond its means: rows for the unknown, and the spread of expected ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmc.algorithms.bayes_client import with_ones
from fedmc.algorithms.posterior import Posterior, prior_row
from fedmc.types import Array

PAIRS = 1_000_000  # (user, item) pairs whose variances are computed at a time


def fill(known: Posterior, U: Array, rows: Array, V: Array, columns: Array) -> None:
    """Put the priors' means, in place, into the factors of pairs where -1 stands for the user or for the item."""
    users, items = rows < 0, columns < 0
    if users.any():
        U[users] = with_ones(prior_row(known.for_seen(0).hyper.users, V.dtype)[0][None])
    if items.any():
        V[items] = np.append(prior_row(known.hyper.items, V.dtype)[0], 1)


def parts(known: Posterior, rows: Array, columns: Array, U: Array) -> Array:
    """`Posterior.parts`, where -1 stands for a user or an item without ratings."""
    if min(rows.min(initial=0), columns.min(initial=0)) >= 0:
        return known.parts(rows, columns, U)
    assert known.user_covariances is not None
    users, rows = np.unique(rows, return_inverse=True)
    items, columns = np.unique(columns, return_inverse=True)
    U, means = U[users], known.item_means[items]
    spreads = known.user_covariances[users], known.item_covariances[items]
    sides = (users, known.for_seen(0).hyper.users), (items, known.hyper.items)
    for (ids, prior), spread in zip(sides, spreads, strict=True):
        spread[ids < 0] = prior_row(prior, spread.dtype)[1]
    U[users < 0] = with_ones(prior_row(known.for_seen(0).hyper.users, U.dtype)[0][None])
    means[items < 0] = prior_row(known.hyper.items, means.dtype)[0]
    some = replace(known, user_covariances=spreads[0], item_means=means, item_covariances=spreads[1])
    return some.parts(rows, columns, U)


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
