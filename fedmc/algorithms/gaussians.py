"""The mathematics of the Bayesian model: priors, what is learned from sums, and the evidence bound.

    rating = u'v + b + c + noise of precision alpha          (b: the user's bias, c: the item's; ratings are scaled)
    user   (u, b) ~ N(mean + W'x, precision^-1)              item  (v, c) ~ N(mean + W'x, precision^-1)

Both sides have q = rank + 1 free coordinates, factors first and the bias last. Row k of the weights W has the prior
N(0, (ridge_k precision)^-1), and the mean N(0, (MEAN_WEIGHT precision)^-1): with the regressors a = (x, 1) of a row,
W and mean together are a ridge regression of the rows. Its posterior is kept exactly, a matrix normal distribution
with the row covariance (sum a a' + ridge)^-1 and the column covariance precision^-1. The ridge is learned too: one
number for each group of regressors.

A symmetric matrix is packed as its lower triangle, line by line. Everything here is a pure function of sums over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from fedmc.types import Array

PRIOR_WEIGHT = 0.4  # the hyperprior of a precision counts as much as this share of the rows
FACTOR_VARIANCE, FACTOR_EXPONENT = 0.95, 0.3  # its guess of a factor's variance: 0.95 (typical ratings)^-0.3
WIDE_RANK, WIDE_EXPONENT = 20, 0.3  # beyond this rank it grows, by (rank / 20)^0.3
BIAS_VARIANCE = 0.1  # its guess of a bias's variance
MEAN_WEIGHT = 1.0  # the prior mean is drawn towards 0 by this many rows
RIDGE_WEIGHT = 0.1  # the hyperprior of a ridge counts as much as this share of its weights
NOISE_WEIGHT, NOISE_VARIANCE = 2.0, 0.5  # the noise's prior: this many ratings of this variance
WARM_NOISE, WARM_PRECISION = 1.2, 5.0  # noise and prior precision before they are learned


class Prior(NamedTuple):
    """The Gaussian prior of a side's rows: mean + weights'x for a row with the regressors x."""

    mean: Array
    precision: Array
    weights: Array  # a row for each regressor; none without regressors
    ridge: Array  # the relative prior precision of each row of the weights

    @classmethod
    def plain(cls, mean: Array, precision: Array) -> Prior:
        """A prior without regressors."""
        return cls(mean, precision, np.zeros((0, len(mean))), np.zeros(0))

    @property
    def pull(self) -> Array:
        """precision times mean"""
        return np.asarray(self.precision @ self.mean)

    def pulls(self, means: Array) -> Array:
        """precision times each of these prior means, a row each."""
        found: Array = np.einsum("ka,ab->kb", means, self.precision)  # avoids BLAS: bits must not depend on other rows
        return found

    def means(self, regressors: Array) -> Array:
        """The prior mean of each row with these regressors."""
        return np.asarray(self.mean + np.einsum("kx,xa->ka", regressors, self.weights))


class Group(NamedTuple):
    """Regressors that share a ridge, and the hyperprior's guess of it."""

    size: int
    guess: float


Groups = tuple[Sequence[Group], Sequence[Group]]  # of the users' and of the items' regressors


class Hyper(NamedTuple):
    """What the model learns besides rows: the precision of the noise, and both priors."""

    noise: float
    users: Prior
    items: Prior


class Rows(NamedTuple):
    """Sums over the rows of one side, with their regressors a = (x, 1)."""

    gram: Array  # sum a a'
    cross: Array  # sum a E[z]'
    second: Array  # sum E[z z'], packed
    log_det: float  # of the covariances

    @property
    def number(self) -> float:
        return float(self.gram[-1, -1])

    @property
    def mean(self) -> Array:
        """The sum of the means."""
        found: Array = self.cross[-1]
        return found


class Ratings(NamedTuple):
    """The number of ratings, and their expected squared error."""

    number: float
    error: float


def first_hyper(size: int) -> Hyper:
    """The noise and the priors of the first passes, in which neither is learned."""
    prior = Prior.plain(np.zeros(size), WARM_PRECISION * np.eye(size))
    return Hyper(WARM_NOISE, prior, prior)


def with_regressors(prior: Prior, groups: Sequence[Group]) -> Prior:
    """The prior with these regressors, whose weights are 0 as yet."""
    ridge = np.repeat([group.guess for group in groups], [group.size for group in groups])
    return prior._replace(weights=np.zeros((len(ridge), len(prior.mean))), ridge=ridge)


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


def lower_roots(covariances: Array) -> Array:
    """Packed lower triangular R with R'R the covariance: Cholesky's factors of the matrices read from their ends."""
    flipped = np.linalg.cholesky(unpacked(covariances)[:, ::-1, ::-1])
    return packed(np.swapaxes(flipped, 1, 2)[:, ::-1, ::-1])


def second_moments(means: Array, covariances: Array) -> Array:
    """E[z z'] of each row, packed."""
    rows, columns = triangle(means.shape[1])
    return np.asarray(means[:, rows] * means[:, columns] + covariances)


def summed(
    means: Array, covariances: Array, log_dets: Array, regressors: Array | None = None, squares: bool = True
) -> Rows:
    """The sums over rows with these posteriors and regressors x, in float64; without `squares`, the gram is 0."""
    rows, columns = triangle(means.shape[1])
    exact = means.astype(np.float64, copy=False)
    ones = np.ones((len(means), 1))
    a = ones if regressors is None else np.concatenate([regressors, ones], axis=1)
    products = np.einsum("ka,kb->ab", exact, exact)[rows, columns]  # avoids BLAS, whose threads compete with kernels
    second = products + covariances.sum(axis=0, dtype=np.float64)
    gram = np.einsum("ka,kb->ab", a, a) if squares else np.zeros((a.shape[1], a.shape[1]))
    return Rows(gram, np.einsum("ka,kb->ab", a, exact), second, float(log_dets.sum()))


def coefficients(rows: Rows, prior: Prior) -> tuple[Array, Array]:
    """The posterior of (weights, mean), by ridge regression: their expected value, and their row covariance."""
    covariance = np.linalg.inv(rows.gram + np.diag(penalties(prior)))
    covariance = (covariance + covariance.T) / 2
    return covariance @ rows.cross, covariance


def penalties(prior: Prior) -> Array:
    """The relative prior precision of each weight, and of the mean."""
    return np.append(prior.ridge, MEAN_WEIGHT)


def scatter(rows: Rows, prior: Prior) -> Array:
    """sum E[(z - B'a)(z - B'a)'] + B'RB, with B the (weights, mean) of the prior and R their penalties.

    The variance of B adds the same constant to the log density, whatever B and precision are.
    """
    B = np.concatenate([prior.weights, prior.mean[None]])
    cross = B.T @ rows.cross
    return np.asarray(
        unpacked(rows.second) - cross - cross.T + B.T @ rows.gram @ B + (B * penalties(prior)[:, None]).T @ B
    )


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


def learned_prior(rows: Rows, variances: Array, before: Prior, groups: Sequence[Group] = ()) -> Prior:
    """The prior that maximises the bound, given the rows and the hyperprior's guess of its variances.

    Weights, mean and precision at the ridge of before are maximised together, and then the ridge at these.
    """
    B, covariance = coefficients(rows, before)
    found = before._replace(mean=B[-1], weights=B[:-1])
    weight = PRIOR_WEIGHT * rows.number
    spread = scatter(rows, found) + weight * np.diag(variances)
    precision = np.linalg.inv(spread / (weight + rows.number))
    found = found._replace(precision=(precision + precision.T) / 2)
    return found._replace(ridge=learned_ridge(found, covariance, groups))


def learned_ridge(prior: Prior, covariance: Array, groups: Sequence[Group]) -> Array:
    """One ridge for each group of regressors, given the posterior of their weights."""
    q, start, found = len(prior.mean), 0, []
    for size, guess in groups:
        some = slice(start, start + size)
        W, start = prior.weights[some], start + size
        spread = float(np.einsum("ka,ab,kb->", W, prior.precision, W)) + q * float(np.diag(covariance)[some].sum())
        weight = RIDGE_WEIGHT * size * q
        found.append(np.full(size, (size * q + weight) / (spread + weight / guess)))
    return np.concatenate(found) if found else np.zeros(0)


def learned_noise(ratings: Ratings) -> float:
    """The precision of the noise that maximises the bound."""
    return (ratings.number + NOISE_WEIGHT) / (max(ratings.error, 0.0) + NOISE_WEIGHT * NOISE_VARIANCE)


def bound(
    hyper: Hyper, ratings: Ratings, users: Rows, items: Rows, variances: Array, groups: Groups = ((), ())
) -> float:
    """The evidence bound in nats, up to a constant: expected log likelihood minus the divergences from the priors.

    The log densities of the hyperpriors are part of it, so that every update that training makes raises it.
    """
    return sum(bound_terms(hyper, ratings, users, items, variances, groups))


def bound_terms(
    hyper: Hyper, ratings: Ratings, users: Rows, items: Rows, variances: Array, groups: Groups = ((), ())
) -> list[float]:
    """The terms of `bound`, whose size tells how exactly their sum is known."""
    log_noise = float(np.log(hyper.noise))
    terms = [ratings.number / 2 * (log_noise - float(np.log(2 * np.pi))), -hyper.noise / 2 * ratings.error]
    terms += [NOISE_WEIGHT / 2 * log_noise, -NOISE_WEIGHT / 2 * NOISE_VARIANCE * hyper.noise]
    for prior, rows, some in zip((hyper.users, hyper.items), (users, items), groups, strict=True):
        weight, size = PRIOR_WEIGHT * rows.number, len(prior.mean)
        log_det = float(np.linalg.slogdet(prior.precision)[1])
        terms += [rows.number / 2 * log_det, -float(np.sum(prior.precision * scatter(rows, prior))) / 2]
        terms += [rows.log_det / 2, rows.number * size / 2]
        terms += [weight / 2 * log_det, -weight / 2 * float(np.diag(prior.precision) @ variances)]
        terms += _weights_terms(prior, rows, some)
    return terms


def _weights_terms(prior: Prior, rows: Rows, groups: Sequence[Group]) -> list[float]:
    """The entropy of the weights and the mean relative to their prior, and the log densities of the ridges."""
    R, size = penalties(prior), len(prior.mean)
    terms = [size / 2 * float(np.log(R).sum()), -size / 2 * float(np.linalg.slogdet(rows.gram + np.diag(R))[1])]
    start = 0
    for number, guess in groups:
        ridge, weight = float(prior.ridge[start]), RIDGE_WEIGHT * number * size / 2
        terms += [weight * float(np.log(ridge)), -weight * ridge / guess]
        start += number
    return terms
