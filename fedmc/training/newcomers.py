"""Errors of newcomers: users of the model, predicted as if they had not taken part in its training.

A model is a little better for the users that it was trained on than for newcomers who are folded in, because the items'
factors have adapted to each of them. Leaving the rating m of a user out of an item with the mean v and the covariance C
is, as in linear regression,

    v - noise C w e / (1 - h)        C + noise C w (C w)' / (1 - h)        h = noise w'C w,  w = (the user's factors, 1)

with e the error of the prediction of m. So each of some users is fitted to four fifths of its ratings, given the items
without it, and its other ratings are predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.posterior import FEW, Posterior, free_part
from fedmc.data.matrices import narrow, only, random_entries
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

MAX_USERS, MIN_USERS = 300, 50  # who are left out, one at a time; with fewer there are no errors of newcomers
HELD_OUT = 5  # every fifth rating of a user is predicted
BLOCK = 1 << 27  # bytes of the covariances of a user's items: users with more ratings are not left out
MAX_LEVERAGE = 0.95  # of one rating on its own prediction


class Errors(NamedTuple):
    """Errors over their standard deviations, and the mean of noise times the variance due to the user."""

    standardised: Array
    reference: float


class Items(NamedTuple):
    """Means and covariances of some items."""

    means: Array
    covariances: Array

    def moments(self) -> tuple[Array, Array]:
        """E[w w'] and E[w c] of each, with w = (factors, 1) and c the bias."""
        w, spread = with_one(self.means), self.covariances.copy()
        cross = w * self.means[:, -1:]
        cross[:, :-1] += spread[:, :-1, -1]
        spread[:, -1], spread[:, :, -1] = 0, 0
        return np.einsum("ja,jb->jab", w, w) + spread, cross


def with_one(means: Array) -> Array:
    """(factors, 1) of rows (factors, bias)."""
    return np.concatenate([means[:, :-1], np.ones((len(means), 1))], axis=1)


def left_out(problem: Problem, U: Array, known: Posterior, features: Array | None = None) -> Errors:
    """The errors of users who are left out of the items; none if there are few users."""
    number, most = np.diff(problem.matrix.indptr), BLOCK // (8 * len(known.hyper.users.mean) ** 2)
    rows = np.flatnonzero((number - number // HELD_OUT >= FEW) & (number <= most))
    if len(rows) < MIN_USERS:
        return Errors(np.empty(0), 0.0)
    rows = rows[:: -(-len(rows) // MAX_USERS)]
    matrix = narrow(problem.matrix[rows])
    held_out = random_entries(matrix, np.diff(matrix.indptr) // HELD_OUT, seed=2)
    priors = known.prior_means(only(matrix, ~held_out), None if features is None else features[rows])
    scaled = (matrix.data.astype(np.float64) - problem.scaling.mean) / problem.scaling.scale
    found = []
    for k, z in enumerate(free_part(U[rows]).astype(np.float64)):
        some = slice(*matrix.indptr[k : k + 2])
        items = without(z, scaled[some], *_items(known, matrix.indices[some]), known.hyper.noise)
        found.append(_errors(items, scaled[some], held_out[some], priors[k], known))
    errors, due = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Errors(errors, float(known.hyper.noise * due.mean()))


def _items(known: Posterior, columns: Array) -> Items:
    means, covariances = known.item_means[columns], known.item_covariances[columns]
    return Items(means.astype(np.float64), gaussians.unpacked(covariances.astype(np.float64)))


def without(z: Array, ratings: Array, means: Array, covariances: Array, noise: float) -> Items:
    """The items without the ratings of a user with the factors and bias z, one rating of each."""
    w = np.append(z[:-1], 1.0)
    spread = np.einsum("jab,b->ja", covariances, w)
    rest = 1 - np.minimum(noise * spread @ w, MAX_LEVERAGE)
    error = ratings - means @ w - z[-1]
    wider = noise * np.einsum("ja,jb->jab", spread, spread) / rest[:, None, None]
    return Items(means - noise * spread * (error / rest)[:, None], covariances + wider)


def _errors(items: Items, ratings: Array, held_out: Array, prior: Array, known: Posterior) -> tuple[Array, Array]:
    """Standardised errors on the ratings held out of one user's fit, and the variances due to the user."""
    noise, precision, kept = known.hyper.noise, known.hyper.users.precision, ~held_out
    square, cross = Items(items.means[kept], items.covariances[kept]).moments()
    pull = with_one(items.means[kept]).T @ ratings[kept] - cross.sum(axis=0)
    covariance = np.linalg.inv(precision + noise * square.sum(axis=0))
    z = covariance @ (precision @ prior + noise * pull)
    w, mine, spread = with_one(items.means[held_out]), np.append(z[:-1], 1.0), items.covariances[held_out]
    of_user = np.einsum("ja,ab,jb->j", w, covariance, w)
    of_item = np.einsum("a,jab,b->j", mine, spread, mine)
    both = np.einsum("ab,jab->j", covariance[:-1, :-1], spread[:, :-1, :-1])
    error = ratings[held_out] - w @ z - items.means[held_out, -1]
    return error / np.sqrt(1 / noise + of_user + of_item + both), of_user
