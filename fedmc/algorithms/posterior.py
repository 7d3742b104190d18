"""What a Bayesian model knows besides means: covariances, noise and priors, and what follows for predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import sparse, special

from fedmc.algorithms import gaussians
from fedmc.algorithms.gaussians import Hyper, Prior
from fedmc.errors import require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array, DType

BLOCK = 1 << 16  # users whose sums are in memory at a time
GRID = 201  # levels at which the calibration is stored
MAX_CALIBRATED = 200_000  # ratings that it is computed from, at most
NORMAL_WEIGHT = 100  # it counts the normal distribution as this many ratings
LEVERAGE_OF_BOTH = 0.2  # of the variance due to both (docs/explanation/bayes.md has the validation figures)
MAX_LEVERAGE = 0.95  # of one rating on its own prediction


class Fit(NamedTuple):
    """The posteriors of users: means (factors, bias), packed covariances, and their log determinants."""

    means: Array
    covariances: Array
    log_dets: Array


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posteriors of the items, and with them noise and priors; in a model also those of the users.

    Means and covariances are those of (factors, bias), in units of the scaled ratings; covariances are packed.
    """

    hyper: Hyper
    item_means: Array
    item_covariances: Array
    user_covariances: Array | None = None
    calibration: Array | None = None  # standardised errors at GRID levels from 0 to 1

    def of_users(self, covariances: Array, calibration: Array | None = None) -> Posterior:
        return replace(self, user_covariances=covariances, calibration=calibration)

    def variances(self, rows: Array, columns: Array, U: Array) -> Array:
        """Variances of single ratings of (row, column) pairs, in units of the scaled ratings; U has rows [u, 1, b]."""
        return np.asarray(1 / self.hyper.noise + self._parts(rows, columns, U).sum(axis=1))

    def _parts(self, rows: Array, columns: Array, U: Array) -> Array:
        assert self.user_covariances is not None
        means = free_part(U)
        arguments = means, self.user_covariances, self.item_means, self.item_covariances
        return moments.prediction_variances(rows.astype(np.int64), columns.astype(np.int64), *arguments)

    def factor(self, level: float) -> float:
        """Half the width of an interval that holds a rating with probability `level`, in standard deviations."""
        require(0 < level < 1, f"an interval's level must lie between 0 and 1, got {level:g}")
        if self.calibration is None:
            return float(special.ndtri((1 + level) / 2))
        return float(np.interp(level, np.linspace(0, 1, GRID), self.calibration))

    def calibrated(self, matrix: sparse.csr_array, U: Array, errors: Array) -> Posterior:
        """With factors for intervals from the model's errors on its training ratings, each as if it were left out.

        `errors` are rating minus prediction, scaled, in the order of the matrix. Nothing of this leaves a client.
        """
        chosen = slice(None, None, max(1, -(-matrix.nnz // MAX_CALIBRATED)))
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[chosen]
        found = left_out(errors[chosen], self._parts(rows, matrix.indices[chosen], U), self.hyper.noise)
        normal = special.ndtri((1 + (np.arange(NORMAL_WEIGHT) + 0.5) / NORMAL_WEIGHT) / 2)
        quantiles = np.quantile(np.concatenate([np.abs(found), normal]), np.linspace(0, 1, GRID))
        return replace(self, calibration=quantiles)


def free_part(U: Array) -> Array:
    """Means (factors, bias) of user rows [factors, 1, bias]."""
    return np.ascontiguousarray(np.delete(U, U.shape[1] - 2, axis=1))


def left_out(errors: Array, parts: Array, noise: float) -> Array:
    """Standardised errors on ratings that the model was trained on, as if each of them had been left out.

    As in linear regression, leaving a rating out divides its error by 1 - h, with the leverage h = noise s, where s is
    the variance of the prediction. `parts` are the variances due to the user, to the item, and to both; the first two
    grow likewise. Only a part of the third is leverage: an item's spread acts on a user's factors as a penalty, which
    does not depend on the rating.
    """
    of_each = np.minimum(noise * parts[:, :2], MAX_LEVERAGE)
    h = np.minimum(noise * (parts[:, :2].sum(axis=1) + LEVERAGE_OF_BOTH * parts[:, 2]), MAX_LEVERAGE)
    variance = 1 / noise + (parts[:, :2] / (1 - of_each)).sum(axis=1) + parts[:, 2]
    return np.asarray(errors / (1 - h) / np.sqrt(variance))


def fit_users(problem: Problem, known: Posterior, lines: Array, dtype: DType) -> Fit:
    """The posteriors of users with these ratings, given those of the items (`lines`: their packed moments)."""
    rows, prior, size = problem.matrix.shape[0], known.hyper.users, len(known.hyper.users.mean)
    fits = []
    for start in range(0, max(rows, 1), BLOCK):
        some = problem.matrix if rows <= BLOCK else problem.matrix[start : start + BLOCK]
        S = moments.sum_moments(*subproblem.raw(problem._replace(matrix=some)), lines, size)
        fits.append(Fit(*moments.posteriors(S, known.hyper.noise, prior.precision, prior.pull, dtype)))
    return fits[0] if len(fits) == 1 else Fit(*(np.concatenate(parts) for parts in zip(*fits, strict=True)))


def prior_row(prior: Prior, dtype: DType) -> tuple[Array, Array]:
    """Mean and packed covariance of a row that nothing is known about."""
    covariance = np.linalg.inv(prior.precision)
    return prior.mean.astype(dtype), gaussians.packed((covariance + covariance.T) / 2).astype(dtype)
