"""A client's own features of its users: features and their weights stay at home, only sums over users travel.

A user's prior mean is that of the server, plus home'x for its features x. The weights have the prior
N(0, (ridge precision)^-1), and their posterior is again a ridge regression, of what the server's prior leaves
unexplained (`gaussians`). The client subtracts home'x from its users' means before it sums them, so that its messages
have the form of those of a client without features. Two of its sums get further terms: sum E[z z'] the penalty of the
weights, and the log determinants their entropy and the hyperprior of the ridge. So the evidence bound remains a lower
bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.gaussians import Group, Prior, Rows
from fedmc.data.partition import Shard
from fedmc.types import Array

RIDGE = 30.0  # the hyperprior's guess


class Home(NamedTuple):
    """Weights of the users' own features, and their ridge (one number)."""

    weights: Array
    ridge: Array

    @classmethod
    def empty(cls, shard: Shard, size: int) -> Home:
        count = 0 if shard.features is None else shard.features.shape[1]
        return cls(np.zeros((count, size)), np.array([RIDGE]))


def offsets(shard: Shard, home: Home) -> Array:
    """What the features add to the prior mean of each user."""
    if shard.features is None or not len(home.weights):  # another algorithm does not use them
        return np.zeros((len(shard.users), home.weights.shape[1]))
    return np.asarray(np.einsum("kx,xa->ka", shard.features, home.weights))


def fitted(shard: Shard, home: Home, unexplained: Array, precision: Array) -> Home:
    """The weights that maximise the bound, given what the server's prior leaves unexplained, and then their ridge."""
    X = shard.features
    if X is None or not X.shape[1]:
        return home
    covariance = np.linalg.inv(_gram(shard, home))
    weights = covariance @ np.einsum("kx,ka->xa", X, unexplained)
    size = weights.shape[1]
    prior = Prior(np.zeros(size), precision, weights, np.repeat(home.ridge, len(weights)))
    return Home(weights, gaussians.learned_ridge(prior, covariance, [Group(len(weights), RIDGE)])[:1])


def counted(rows: Rows, shard: Shard, home: Home) -> Rows:
    """The sums over users with the terms of the weights."""
    count, size = home.weights.shape
    if not count:
        return rows
    ridge = float(home.ridge[0])
    penalty = gaussians.packed(ridge * home.weights.T @ home.weights)
    entropy = size * (count * np.log(ridge) - np.linalg.slogdet(_gram(shard, home))[1])
    hyperprior = gaussians.RIDGE_WEIGHT * count * size * (np.log(ridge) - ridge / RIDGE)
    return rows._replace(second=rows.second + penalty, log_det=rows.log_det + float(entropy + hyperprior))


def _gram(shard: Shard, home: Home) -> Array:
    assert shard.features is not None
    found = np.einsum("kx,ky->xy", shard.features, shard.features)
    return np.asarray(found + float(home.ridge[0]) * np.eye(len(found)))
