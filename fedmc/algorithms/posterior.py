"""What a Bayesian model knows besides means: covariances, noise and priors, and what follows for predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse, special

from fedmc.algorithms import gaussians
from fedmc.algorithms.gaussians import Hyper, Prior
from fedmc.data.days import day_numbers
from fedmc.data.days import find as find_days
from fedmc.errors import require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array, DType

FEW = 10  # users who rated or saw fewer items than this have a prior of their own (`few`)
CHANCE = 20.0  # regressors count as if chance had chosen so many items more
BLOCK = 1 << 28  # bytes of users' sums that are in memory at a time, about
GRID = 201  # levels at which the calibration is stored


class Fit(NamedTuple):
    """The posteriors of users: means (factors, bias), packed covariances, and their log determinants."""

    means: Array
    covariances: Array
    log_dets: Array


class KnownDays(NamedTuple):
    """Expected biases of users on the days on which they rated, in units of the scaled ratings."""

    users: Array  # rows of U, ascending
    numbers: Array  # days since 1970, in UTC
    biases: Array

    def at(self, rows: Array, times: Array) -> Array:
        """The biases of these users at these times, in seconds since 1970; 0 where none is known."""
        groups = find_days(self.users, self.numbers, rows.astype(np.int64), day_numbers(times))
        return np.append(self.biases, 0.0)[groups]

    def in_order(self, order: Array) -> KnownDays:
        """The same for users in another order: row k becomes that of user `order[k]`."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        by = np.lexsort((self.numbers, place[self.users]))
        return KnownDays(place[self.users][by], self.numbers[by], self.biases[by])


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posteriors of the items, and with them noise and priors; in a model also those of the users.

    Means and covariances are those of (factors, bias), in units of the scaled ratings; covariances are packed.
    """

    hyper: Hyper
    item_means: Array
    item_covariances: Array
    user_covariances: Array | None = None
    directions: Array | None = None  # of the users' regressors, a row for each item; None without implicit terms
    item_weights: Array | None = None  # of the items' public features
    days: KnownDays | None = None  # biases of users by day, at home
    home: Array | None = None  # weights of the users' own features, which never leave their client
    few: Prior | None = None  # of users who rated or saw few items, learned at home; None if it is that of all users
    calibration: Array | None = None  # two lines: noise times the variance due to a user, then errors at GRID levels
    newcomers: Array | None = None  # the line of newcomers, who are folded in, in place of the first

    def of_newcomers(self, covariances: Array) -> Posterior:
        """The posterior of users who are folded in."""
        calibration = self.calibration
        if calibration is not None and self.newcomers is not None:
            calibration = np.array([self.newcomers, calibration[1]])
        return self.of_users(covariances, calibration)

    def of_users(self, covariances: Array, calibration: Array | None = None) -> Posterior:
        return replace(self, user_covariances=covariances, calibration=calibration)

    def for_seen(self, number: int) -> Posterior:
        """The same for a user who rated or saw so many items: the prior of users is then that of such a user."""
        if self.few is None or number >= FEW:
            return self
        return replace(self, hyper=self.hyper._replace(users=self.few), few=None)

    @cached_property
    def seen_lines(self) -> Array:
        """What each item adds to the prior mean of those who rated or saw it: the item vectors of SVD++."""
        assert self.directions is not None
        return np.asarray(np.einsum("jx,xa->ja", self.directions, self.hyper.users.weights))

    def prior_means(self, seen: sparse.csr_array, features: Array | None = None) -> Array:
        """The prior mean of each user, from the items it rated or saw and from its own features."""
        prior, found = self.hyper.users, np.zeros((seen.shape[0], len(self.hyper.users.mean)))
        if self.directions is not None:
            found += seen_sums(seen, self.seen_lines)
        if features is not None and self.home is not None:
            found += np.einsum("kx,xa->ka", features, self.home)
        return np.asarray(prior.mean + found)

    def variances(self, rows: Array, columns: Array, U: Array) -> Array:
        """Variances of single ratings of (row, column) pairs, in units of the scaled ratings; U has rows [u, 1, b]."""
        return np.asarray(1 / self.hyper.noise + self.parts(rows, columns, U).sum(axis=1))

    def parts(self, rows: Array, columns: Array, U: Array) -> Array:
        """The variances of predictions: due to the user, to the item, and to both; without the noise."""
        assert self.user_covariances is not None
        spread = self.user_covariances
        if len(rows) < len(U):  # few pairs do not need the means of all users
            some, rows = np.unique(rows, return_inverse=True)
            U, spread = U[some], spread[some]
        arguments = free_part(U), spread, self.item_means, self.item_covariances
        return moments.prediction_variances(rows.astype(np.int64), columns.astype(np.int64), *arguments)

    def factors(self, level: float, parts: Array) -> Array:
        """Half the widths of intervals that hold a rating with probability `level`, in standard deviations.

        `parts` are the variances of the predictions (`parts`). Calibrated factors go from those of users with many
        ratings to those of users with few, by the part of the variance that is due to the user.
        """
        require(0 < level < 1, f"an interval's level must lie between 0 and 1, got {level:g}")
        if self.calibration is None:
            return np.full(len(parts), special.ndtri((1 + level) / 2))
        (many, *at_many), (few, *at_few) = self.calibration
        low, high = (np.interp(level, np.linspace(0, 1, GRID), line) for line in (at_many, at_few))
        share = np.clip((self.hyper.noise * parts[:, 0] - many) / (few - many), 0, 1)
        return np.asarray(low + share * (high - low))


def free_part(U: Array) -> Array:
    """Means (factors, bias) of user rows [factors, 1, bias]."""
    return np.ascontiguousarray(np.delete(U, U.shape[1] - 2, axis=1))


def seen_sums(seen: sparse.csr_array, lines: Array) -> Array:
    """Of each user, the weighted sum of the lines of the items it rated or saw."""
    total = sparse.csr_array((np.ones(len(seen.indices)), seen.indices, seen.indptr), shape=seen.shape) @ lines
    return np.asarray(total * seen_weights(seen)[:, None])


def seen_weights(seen: sparse.csr_array) -> Array:
    """What each item counts among those that a user rated or saw."""
    return np.asarray(seen_weight(np.diff(seen.indptr)))


def seen_weight(number: Array) -> Array:
    """One over the root of the number of items, as in SVD++, but less if they are so few that chance chose them."""
    return np.asarray(1 / np.sqrt(number + CHANCE))


def fit_at_home(
    problem: Problem, known: Posterior, seen: sparse.csr_array, dtype: DType, features: Array | None = None,
    lines: Array | None = None,
) -> Fit:  # fmt: skip
    """The posteriors of users of a finished model; those who rated or saw few items have their own prior.

    `lines` are the items' packed moments, if they are known already.
    """
    lines = moments.moment_lines(known.item_means, known.item_covariances) if lines is None else lines
    fit = fit_users(problem, known, lines, known.prior_means(seen, features), dtype)
    rows = few_rows(seen)
    if known.few is None or not len(rows):
        return fit
    own, chosen = known.for_seen(0), None if features is None else features[rows]
    some = problem._replace(matrix=problem.matrix[rows])
    for whole, part in zip(fit, fit_users(some, own, lines, own.prior_means(seen[rows], chosen), dtype), strict=True):
        whole[rows] = part
    return fit


def few_rows(seen: sparse.csr_array) -> Array:
    """The users who rated or saw few items."""
    return np.flatnonzero(np.diff(seen.indptr) < FEW)


def fit_users(problem: Problem, known: Posterior, lines: Array, prior_means: Array, dtype: DType) -> Fit:
    """The posteriors of users with these ratings, given those of the items (`lines`: their packed moments)."""
    rows, prior, size = problem.matrix.shape[0], known.hyper.users, len(known.hyper.users.mean)
    fits, block = [], max(1, BLOCK // (8 * moments.line_length(size)))
    for start in range(0, max(rows, 1), block):
        some = problem.matrix if rows <= block else problem.matrix[start : start + block]
        S = moments.sum_moments(*subproblem.raw(problem._replace(matrix=some)), lines, size)
        pulls = prior.pulls(prior_means[start : start + block])
        fits.append(Fit(*moments.posteriors(S, known.hyper.noise, prior.precision, pulls, dtype)))
    return fits[0] if len(fits) == 1 else Fit(*(np.concatenate(parts) for parts in zip(*fits, strict=True)))


def prior_row(prior: Prior, dtype: DType) -> tuple[Array, Array]:
    """Mean and packed covariance of a row that nothing is known about."""
    covariance = np.linalg.inv(prior.precision)
    return prior.mean.astype(dtype), gaussians.packed((covariance + covariance.T) / 2).astype(dtype)
