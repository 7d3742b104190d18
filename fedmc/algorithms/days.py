"""A bias for each user and day, which stays at the client: people are stricter on some days.

    rating = u'v + b + c + day + noise        day ~ N(0, 1 / ridge), one for each user and day with a training rating

A client subtracts the expected biases from its ratings (`adjusted`), so that its messages have the form of those of a
client without times. It adds the variances of the biases to the expected squared error, and minus their divergence from
the prior to the log determinants: the evidence bound remains a lower bound. Each client learns its own ridge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.gaussians import RIDGE_WEIGHT
from fedmc.data.partition import Shard
from fedmc.types import Array

RIDGE = 100.0  # the hyperprior's guess


class DayBiases(NamedTuple):
    """The posterior of a client's biases by user and day, in units of the scaled ratings, and their ridge."""

    means: Array
    variances: Array
    ridge: Array

    @classmethod
    def empty(cls, shard: Shard) -> DayBiases:
        count = 0 if shard.days is None else len(shard.days.users)
        return cls(np.zeros(count), np.full(count, 1 / RIDGE), np.array([RIDGE]))


def adjusted(shard: Shard, biases: DayBiases, scale: float) -> Shard:
    """The client's ratings without the expected biases of their days, also where they are held out."""
    if shard.days is None or not biases.means.any():
        return shard
    days, known = shard.days, np.append(biases.means * scale, 0.0)  # -1: no bias is known
    by_user = _minus(shard.by_user, known[days.of_ratings])
    by_rated = _minus(shard.by_rated, known[days.of_ratings][shard.to_rated])
    held_out = ((shard.test, days.of_test), (shard.validation, days.of_validation))
    test, validation = (
        part if part is None or groups is None else _minus(part, known[groups]) for part, groups in held_out
    )
    return replace(shard, by_user=by_user, by_rated=by_rated, test=test, validation=validation)


def _minus(matrix: sparse.csr_array, values: Array) -> sparse.csr_array:
    """The matrix with these values subtracted from its stored entries."""
    data = (matrix.data - values).astype(matrix.data.dtype, copy=False)
    found = sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False)
    found.has_sorted_indices = True
    return found


def fitted(shard: Shard, biases: DayBiases, errors: Array, noise: float) -> DayBiases:
    """The biases that maximise the bound, given the errors of predictions without them, and then their ridge."""
    if shard.days is None:
        return biases
    counts, ridge = shard.days.counts, float(biases.ridge[0])
    variances = 1 / (ridge + noise * counts)
    means = noise * variances * np.bincount(shard.days.of_ratings, errors, len(counts))
    weight = RIDGE_WEIGHT * len(counts)
    spread = float(np.sum(means**2 + variances)) + weight / RIDGE
    return DayBiases(means, variances, np.array([(len(counts) + weight) / spread]))


def terms(shard: Shard, biases: DayBiases) -> tuple[float, float]:
    """What the biases add to the expected squared error, and to the log determinants of the bound."""
    if shard.days is None or not len(biases.means):
        return 0.0, 0.0
    ridge, count = float(biases.ridge[0]), len(biases.means)
    prior = count * np.log(ridge) - ridge * float(np.sum(biases.means**2 + biases.variances)) + count
    hyperprior = RIDGE_WEIGHT * count * (np.log(ridge) - ridge / RIDGE)
    error = float(shard.days.counts @ biases.variances)
    return error, float(np.log(biases.variances).sum() + prior + hyperprior)
