"""What a model takes from its training ratings at home, besides factors: their range, and the width of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse, special

from fedmc.algorithms.bayes_client import with_ones
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.posterior import GRID, Posterior, fit_users
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard, narrow, only
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

MAX_RATINGS = 200_000  # that intervals are calibrated on, at most
MAX_USERS, MIN_USERS = 2_000, 50  # who are cut down for it; with fewer it is left out
MAX_KEPT = 9  # ratings of a user who is cut down
NORMAL_WEIGHT = 100  # the normal distribution counts as this many ratings
LEVERAGE_OF_BOTH = 0.2  # of the variance due to both (docs/explanation/bayes.md has the validation figures)
MAX_LEVERAGE = 0.95  # of one rating on its own prediction
MIN_GAP = 1e-6  # between the two references


def rating_range(shards: Sequence[Shard], settings: Settings) -> tuple[float, float] | None:
    """The smallest and the largest training rating of these clients; None if they have no ratings, but events."""
    if settings.make_algorithm().of_events:
        return None
    data = [shard.by_user.data for shard in shards if shard.by_user.nnz]
    return (float(min(map(np.min, data))), float(max(map(np.max, data)))) if data else None


def calibrated(
    shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast, U: Array
) -> Posterior | None:
    """The posterior of these clients' users, U stacked in their order, with calibrated intervals."""
    known = broadcast.settings.make_algorithm().posterior(shards, states, broadcast)
    if known is None:
        return None
    algorithm, pairs = broadcast.settings.make_algorithm(), zip(shards, states, strict=True)
    tables = [algorithm.adjusted(shard, state, broadcast).by_user for shard, state in pairs]
    matrix = tables[0] if len(tables) == 1 else narrow(sparse.vstack(tables, format="csr"))
    problem = Problem(matrix, broadcast.settings.make_loss(), broadcast.scaling)
    many = left_out(problem, broadcast.V, U, known)
    features = [shard.features for shard in shards if shard.features is not None]
    stacked = np.concatenate(features) if len(features) == len(shards) else None
    few = cut_down(problem, broadcast.V, known, stacked)
    lines = [_line(errors, float(reference)) for errors, reference in (many, few if len(few[0]) else many)]
    lines[1][0] = max(lines[1][0], lines[0][0] + MIN_GAP)
    return replace(known, calibration=np.array(lines))


class Errors(NamedTuple):
    """Errors over their standard deviations, and the mean of noise times the variance due to the user."""

    standardised: Array
    reference: float


def left_out(problem: Problem, V: Array, U: Array, known: Posterior) -> Errors:
    """The errors on training ratings, each as if it had been left out.

    As in linear regression, leaving a rating out divides its error by 1 - h, with the leverage h = noise s, where s is
    the variance of the prediction. The variances due to the user and to the item grow likewise. Only a part of the
    variance due to both is leverage: an item's spread acts on a user's factors as a penalty, which does not depend on
    the rating.
    """
    chosen = slice(None, None, max(1, -(-problem.matrix.nnz // MAX_RATINGS)))
    predicted, ratings = subproblem.scores(problem, V, U)
    rows = np.repeat(np.arange(problem.matrix.shape[0]), np.diff(problem.matrix.indptr))[chosen]
    parts, noise = known.parts(rows, problem.matrix.indices[chosen], U), known.hyper.noise
    own = np.minimum(noise * parts[:, :2], MAX_LEVERAGE)
    h = np.minimum(noise * (parts[:, :2].sum(axis=1) + LEVERAGE_OF_BOTH * parts[:, 2]), MAX_LEVERAGE)
    variance = 1 / noise + (parts[:, :2] / (1 - own)).sum(axis=1) + parts[:, 2]
    return Errors((ratings - predicted)[chosen] / (1 - h) / np.sqrt(variance), float(noise * parts[:, 0].mean()))


def cut_down(problem: Problem, V: Array, known: Posterior, features: Array | None = None) -> Errors:
    """The errors on the other ratings of users who are cut down to 1 to 9 of theirs; none if there are few such users.

    The items' posteriors know these ratings: their leverage is taken out as in `left_out`.
    """
    some, kept, others = _cut(problem.matrix)
    if kept.shape[0] < MIN_USERS:
        return Errors(np.empty(0), 0.0)
    lines = moments.moment_lines(known.item_means, known.item_covariances)
    priors = known.prior_means(kept, None if features is None else features[some])
    fit = fit_users(problem._replace(matrix=kept), known, lines, priors, V.dtype)
    U, few = with_ones(fit.means), known.of_users(fit.covariances)
    predicted, ratings = subproblem.scores(problem._replace(matrix=others), V, U)
    rows = np.repeat(np.arange(others.shape[0]), np.diff(others.indptr))
    parts, noise = few.parts(rows, others.indices, U), known.hyper.noise
    h = np.minimum(noise * (parts[:, 1] + LEVERAGE_OF_BOTH * parts[:, 2]), MAX_LEVERAGE)
    variance = 1 / noise + parts[:, 0] + parts[:, 1] / (1 - h) + parts[:, 2]
    return Errors((ratings - predicted) / (1 - h) / np.sqrt(variance), float(noise * parts[:, 0].mean()))


def _cut(matrix: sparse.csr_array) -> tuple[Array, sparse.csr_array, sparse.csr_array]:
    """Some users who have at least 18 ratings, 1 to 9 random ones of these, and their other ratings."""
    rows = np.flatnonzero(np.diff(matrix.indptr) >= 2 * MAX_KEPT)
    rows = rows[:: max(1, -(-len(rows) // MAX_USERS))]
    some = narrow(matrix[rows])
    rng, number = np.random.default_rng(0), np.diff(some.indptr)
    order = np.lexsort((rng.random(some.nnz), np.repeat(np.arange(len(number)), number)))
    place = np.empty(some.nnz, np.int64)
    place[order] = np.arange(some.nnz) - np.repeat(some.indptr[:-1], number)
    keep = place < np.repeat(1 + np.arange(len(number)) % MAX_KEPT, number)
    return rows, only(some, keep), only(some, ~keep)


def _line(errors: Array, reference: float) -> Array:
    """The reference, and the quantiles of absolute errors; the normal distribution counts as some of them."""
    normal = special.ndtri((1 + (np.arange(NORMAL_WEIGHT) + 0.5) / NORMAL_WEIGHT) / 2)
    quantiles = np.quantile(np.concatenate([np.abs(errors), normal]), np.linspace(0, 1, GRID))
    return np.concatenate([[reference], quantiles])
