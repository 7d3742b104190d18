"""A prior for users with few ratings, learned at home from users with many.

The weights of implicit terms are learned from whole lists of items. For a user who rated 1 to 9 items, these few are
partly chance: they say less about the user, and not in the same proportions. So users with many ratings are cut down to
1 to 9 random items, and their factors, known from all of their ratings, are regressed on the regressors of these few:

    factors z_i ~ N(mean + W'a_i, precision^-1)        a_i: regressors from 1 to 9 of the user's items

by ridge regression towards the weights of all users. The residuals give the precision, which is smaller than that of
all users: few items explain less. The factors of the users depend a little on their prior, so this is repeated.

This is a part of the finished model, like the calibration of intervals: nothing of it is sent, and training, its sums
and its bound do not know it.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.algorithms.gaussians import Prior, unpacked
from fedmc.algorithms.posterior import BLOCK, FEW, Posterior, seen_sums
from fedmc.data.matrices import narrow, only, random_entries
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

MIN_USERS, MAX_USERS = 200, 10_000  # with many ratings: with fewer, the prior of all users is kept; more are not needed
CUTS = 2  # a user is cut down so often
RIDGE = 2.0  # of the weights, around those of all users
PRIOR_ROWS = 100.0  # the covariance of all users counts as that of so many users
PASSES = 3


def learned(problem: Problem, known: Posterior, seen: sparse.csr_array, features: Array | None = None) -> Prior | None:
    """The prior of users with few ratings; None if there are no implicit terms, or not enough users with many."""
    many = np.flatnonzero(np.diff(seen.indptr) >= FEW)
    if known.directions is None or len(many) < MIN_USERS:
        return None
    size = len(known.hyper.users.mean)
    rows = np.tile(some_of(many, size), CUTS)
    own = None if features is None else features[rows]
    lines = moments.moment_lines(known.item_means, known.item_covariances)
    some = problem._replace(matrix=narrow(problem.matrix[rows]))
    sums = moments.sum_moments(*subproblem.raw(some), lines, size).astype(np.float64)
    a = regressors(cut(seen[rows]), known.directions)
    before, means = known.hyper.users, known.prior_means(seen[rows], own)
    away = means - known.prior_means(seen[rows])  # what the users' own features explain
    prior = before
    for _ in range(PASSES):
        Z, covariances, _ = moments.posteriors(sums, known.hyper.noise, prior.precision, prior.pulls(means))
        prior = regressed(Z - away, covariances, a, before)
        means = prior.means(a[:, :-1]) + away
    return prior


def some_of(many: Array, size: int) -> Array:
    """At most MAX_USERS of these users, evenly spaced, and fewer of large ranks: their sums are in memory at once."""
    room = BLOCK // (8 * CUTS * moments.line_length(size))
    return many[:: -(-len(many) // min(MAX_USERS, max(MIN_USERS, room)))]


def regressors(seen: sparse.csr_array, directions: Array) -> Array:
    """The regressors of users who rated or saw these items, and a one."""
    return np.concatenate([seen_sums(seen, directions), np.ones((seen.shape[0], 1))], axis=1)


def cut(seen: sparse.csr_array) -> sparse.csr_array:
    """1 to 9 random items of each user, as many users of each number."""
    return only(narrow(seen), random_entries(seen, 1 + np.arange(seen.shape[0]) % (FEW - 1), seed=1))


def regressed(Z: Array, covariances: Array, a: Array, before: Prior) -> Prior:
    """The prior of rows with means Z, packed covariances and regressors a: each row counts 1 / CUTS."""
    B = np.concatenate([before.weights, before.mean[None]])
    penalty = np.append(np.full(len(before.weights), RIDGE), 1.0) * CUTS
    B = B + np.linalg.solve(a.T @ a + np.diag(penalty), a.T @ (Z - a @ B))
    error = Z - a @ B
    spread = error.T @ error + unpacked(covariances.sum(axis=0)) + CUTS * PRIOR_ROWS * np.linalg.inv(before.precision)
    precision = np.linalg.inv(spread / (len(Z) + CUTS * PRIOR_ROWS))
    return Prior(B[-1], (precision + precision.T) / 2, B[:-1], before.ridge)
