"""The mathematics of the Bayesian model: priors, what is learned from sums, and the evidence bound.

    rating = u'v + b + c + noise of precision alpha          (b: the user's bias, c: the item's; ratings are scaled)
    user   (u, b) ~ N(mean, precision^-1)                    item  (v, c) ~ N(mean, precision^-1)

Both sides have q = rank + 1 free coordinates, factors first and the bias last. A symmetric matrix is packed as its
lower triangle, line by line. Everything here is a pure function of sums over rows.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from fedmc.types import Array

PRIOR_WEIGHT = 0.4  # the hyperprior of a precision counts as much as this share of the rows
FACTOR_VARIANCE, FACTOR_EXPONENT = 0.95, 0.3  # its guess of a factor's variance: 0.95 (typical ratings)^-0.3
WIDE_RANK, WIDE_EXPONENT = 20, 0.3  # beyond this rank it grows, by (rank / 20)^0.3
BIAS_VARIANCE = 0.1  # its guess of a bias's variance
MEAN_WEIGHT = 1.0  # the prior mean is drawn towards 0 by this many rows
NOISE_WEIGHT, NOISE_VARIANCE = 2.0, 0.5  # the noise's prior: this many ratings of this variance
WARM_NOISE, WARM_PRECISION = 1.2, 5.0  # noise and prior precision before they are learned


class Prior(NamedTuple):
    """The Gaussian prior of a side's rows."""

    mean: Array
    precision: Array

    @property
    def pull(self) -> Array:
        """precision times mean"""
        return np.asarray(self.precision @ self.mean)


class Hyper(NamedTuple):
    """What the model learns besides rows: the precision of the noise, and both priors."""

    noise: float
    users: Prior
    items: Prior


class Rows(NamedTuple):
    """Sums over the rows of one side: their number, means, packed E[z z'], and log determinants of covariances."""

    number: float
    mean: Array
    second: Array
    log_det: float


class Ratings(NamedTuple):
    """The number of ratings, and their expected squared error."""

    number: float
    error: float


def first_hyper(size: int) -> Hyper:
    """The noise and the priors of the first passes, in which neither is learned."""
    prior = Prior(np.zeros(size), WARM_PRECISION * np.eye(size))
    return Hyper(WARM_NOISE, prior, prior)


@cache
def triangle(size: int) -> tuple[Array, Array]:
    """Rows and columns of the packed numbers of a symmetric matrix."""
    return np.tril_indices(size)


@cache
def multiplicity(size: int) -> Array:
    """How often each packed number stands in the matrix: once on the diagonal, else twice."""
    rows, columns = triangle(size)
    return np.where(rows == columns, 1.0, 2.0)


def packed(matrices: Array) -> Array:
    """The lower triangles of the last two axes."""
    return np.ascontiguousarray(matrices[..., *triangle(matrices.shape[-1])])


def unpacked(lines: Array) -> Array:
    """Inverse of `packed`: the symmetric matrices."""
    size = (int(np.sqrt(8 * lines.shape[-1] + 1)) - 1) // 2
    rows, columns = triangle(size)
    found = np.zeros((*lines.shape[:-1], size, size), lines.dtype)
    found[..., rows, columns] = lines
    found[..., columns, rows] = lines
    return found


def second_moments(means: Array, covariances: Array) -> Array:
    """E[z z'] of each row, packed."""
    rows, columns = triangle(means.shape[1])
    return np.asarray(means[:, rows] * means[:, columns] + covariances)


def summed(means: Array, covariances: Array, log_dets: Array) -> Rows:
    """The sums over rows with these posteriors, in float64."""
    rows, columns = triangle(means.shape[1])
    exact = means.astype(np.float64, copy=False)
    products = np.einsum("ka,kb->ab", exact, exact)[rows, columns]  # avoids BLAS, whose threads compete with kernels
    second = products + covariances.sum(axis=0, dtype=np.float64)
    return Rows(len(means), exact.sum(axis=0), second, float(log_dets.sum()))


def scatter(rows: Rows, mean: Array) -> Array:
    """sum E[(z - mean)(z - mean)']"""
    cross = np.outer(mean, rows.mean)
    return np.asarray(unpacked(rows.second) - cross - cross.T + rows.number * np.outer(mean, mean))


def guess(size: int, typical: float) -> Array:
    """The hyperprior's guess of a prior covariance, a diagonal.

    `typical` is the number of ratings of an average user, times that of the item of an average rating: with more
    ratings, weaker factors can be told from noise. Among more factors than the default rank, each is drawn to 0 harder
    by the others' spread, and needs a larger variance.
    """
    wide = max(1.0, (size - 1) / WIDE_RANK) ** WIDE_EXPONENT
    found = np.full(size, wide * FACTOR_VARIANCE * max(typical, 1.0) ** -FACTOR_EXPONENT)
    found[-1] = BIAS_VARIANCE
    return found


def learned_prior(rows: Rows, variances: Array) -> Prior:
    """The prior that maximises the bound, given the rows and the hyperprior's guess of its variances."""
    mean = rows.mean / (rows.number + MEAN_WEIGHT)
    weight = PRIOR_WEIGHT * rows.number
    spread = scatter(rows, mean) + MEAN_WEIGHT * np.outer(mean, mean) + weight * np.diag(variances)
    precision = np.linalg.inv(spread / (weight + rows.number))
    return Prior(mean, (precision + precision.T) / 2)


def learned_noise(ratings: Ratings) -> float:
    """The precision of the noise that maximises the bound."""
    return (ratings.number + NOISE_WEIGHT) / (max(ratings.error, 0.0) + NOISE_WEIGHT * NOISE_VARIANCE)


def bound(hyper: Hyper, ratings: Ratings, users: Rows, items: Rows, variances: Array) -> float:
    """The evidence bound in nats, up to a constant: expected log likelihood minus the divergences from the priors.

    The log densities of the hyperpriors are part of it, so that every update that training makes raises it.
    """
    return sum(bound_terms(hyper, ratings, users, items, variances))


def bound_terms(hyper: Hyper, ratings: Ratings, users: Rows, items: Rows, variances: Array) -> list[float]:
    """The terms of `bound`, whose size tells how exactly their sum is known."""
    log_noise = float(np.log(hyper.noise))
    terms = [ratings.number / 2 * (log_noise - float(np.log(2 * np.pi))), -hyper.noise / 2 * ratings.error]
    terms += [NOISE_WEIGHT / 2 * log_noise, -NOISE_WEIGHT / 2 * NOISE_VARIANCE * hyper.noise]
    for prior, rows in ((hyper.users, users), (hyper.items, items)):
        weight, size = PRIOR_WEIGHT * rows.number, len(prior.mean)
        log_det = float(np.linalg.slogdet(prior.precision)[1])
        terms += [rows.number / 2 * log_det, -float(np.sum(prior.precision * scatter(rows, prior.mean))) / 2]
        terms += [rows.log_det / 2, rows.number * size / 2]
        terms += [weight / 2 * log_det, -weight / 2 * float(np.diag(prior.precision) @ variances)]
        terms += [-MEAN_WEIGHT / 2 * float(prior.mean @ prior.precision @ prior.mean)]
    return terms
