"""What a model takes from its training ratings at home: their range, the width of intervals, users with few ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse, special

from fedmc.algorithms import few
from fedmc.algorithms.bayes_client import with_ones
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.posterior import FEW, GRID, Posterior, few_rows, fit_at_home
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.matrices import narrow, only, random_entries, stacked
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.training import newcomers
from fedmc.training.newcomers import MAX_LEVERAGE, Errors
from fedmc.types import Array

MAX_RATINGS = 200_000  # that intervals are calibrated on, at most
MAX_USERS, MIN_USERS = 2_000, 50  # who are cut down for it; with fewer it is left out
MAX_KEPT = FEW - 1  # ratings of a user who is cut down
NORMAL_WEIGHT = 100  # the normal distribution counts as this many ratings
LEVERAGE_OF_BOTH = 0.2  # of the variance due to both (docs/explanation/bayes.md has the validation figures)
MIN_GAP = 1e-6  # between the two references


def rating_range(shards: Sequence[Shard], settings: Settings) -> tuple[float, float] | None:
    """The smallest and the largest training rating of these clients; None if they have no ratings, but events."""
    if settings.make_algorithm().of_events:
        return None
    data = [shard.by_user.data for shard in shards if shard.by_user.nnz]
    return (float(min(map(np.min, data))), float(max(map(np.max, data)))) if data else None


def finished(
    shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast, U: Array
) -> tuple[Array, Posterior | None]:
    """U, stacked in the order of these clients, and the posterior with calibrated intervals.

    Users with few ratings get their own prior here (`few`), so their rows of U change.
    """
    algorithm = broadcast.settings.make_algorithm()
    known = algorithm.posterior(shards, states, broadcast)
    if known is None:
        return U, None
    pairs = zip(shards, states, strict=True)
    problem = Problem(
        _stacked([algorithm.adjusted(shard, state, broadcast).by_user for shard, state in pairs]),
        broadcast.settings.make_loss(),
        broadcast.scaling,
    )
    features = [shard.features for shard in shards if shard.features is not None]
    own = np.concatenate(features) if len(features) == len(shards) else None
    seen = _stacked([shard.incidence for shard in shards])
    known = replace(known, few=few.learned(problem, known, seen, own))
    U, known = with_few(problem, U, known, seen, own)
    return U, calibrated(problem, broadcast.V, U, known, own)


def _stacked(tables: Sequence[sparse.csr_array]) -> sparse.csr_array:
    columns = tables[0].shape[1]
    return tables[0] if len(tables) == 1 else stacked(tables, np.zeros(len(tables), np.int32), columns)


def with_few(
    problem: Problem, U: Array, known: Posterior, seen: sparse.csr_array, features: Array | None
) -> tuple[Array, Posterior]:
    """U and the posterior, with the users who rated or saw few items fitted anew under their own prior."""
    rows = few_rows(seen)
    if known.few is None or not len(rows):
        return U, known
    assert known.user_covariances is not None
    some, own = problem._replace(matrix=problem.matrix[rows]), None if features is None else features[rows]
    fit = fit_at_home(some, known, seen[rows], U.dtype, own)
    U, covariances = U.copy(), known.user_covariances.copy()
    U[rows], covariances[rows] = with_ones(fit.means), fit.covariances
    return U, replace(known, user_covariances=covariances)


def calibrated(problem: Problem, V: Array, U: Array, known: Posterior, features: Array | None) -> Posterior:
    """The posterior with calibrated intervals."""
    many, cut = left_out(problem, V, U, known), cut_down(problem, V, known, features)
    new = newcomers.left_out(problem, U, known, features)
    lines = [_line(*(errors if len(errors.standardised) else many)) for errors in (many, cut, new)]
    lines[1][0] = max(lines[1][0], lines[0][0] + MIN_GAP, lines[2][0] + MIN_GAP)
    return replace(known, calibration=np.array(lines[:2]), newcomers=lines[2])


def left_out(problem: Problem, V: Array, U: Array, known: Posterior) -> Errors:
    """The errors on training ratings, each as if it had been left out.

    As in linear regression, leaving a rating out divides its error by 1 - h, with the leverage h = noise s, where s is
    the variance of the prediction. The variances due to the user and to the item grow likewise. Only a part of the
    variance due to both is leverage: an item's spread acts on a user's factors as a penalty, which does not depend on
    the rating.
    """
    chosen = slice(None, None, max(1, -(-problem.matrix.nnz // MAX_RATINGS)))
    rows = np.repeat(np.arange(problem.matrix.shape[0]), np.diff(problem.matrix.indptr))[chosen]
    predicted, ratings = subproblem.scores_at(problem, V, U, rows, chosen)
    parts, noise = known.parts(rows, problem.matrix.indices[chosen], U), known.hyper.noise
    own = np.minimum(noise * parts[:, :2], MAX_LEVERAGE)
    h = np.minimum(noise * (parts[:, :2].sum(axis=1) + LEVERAGE_OF_BOTH * parts[:, 2]), MAX_LEVERAGE)
    variance = 1 / noise + (parts[:, :2] / (1 - own)).sum(axis=1) + parts[:, 2]
    return Errors((ratings - predicted) / (1 - h) / np.sqrt(variance), float(noise * parts[:, 0].mean()))


def cut_down(problem: Problem, V: Array, known: Posterior, features: Array | None = None) -> Errors:
    """The errors on the other ratings of users who are cut down to 1 to 9 of theirs; none if there are few such users.

    The items' posteriors know these ratings: their leverage is taken out as in `left_out`.
    """
    some, kept, others = _cut(problem.matrix)
    if kept.shape[0] < MIN_USERS:
        return Errors(np.empty(0), 0.0)
    own = None if features is None else features[some]
    fit = fit_at_home(problem._replace(matrix=kept), known, kept, V.dtype, own)
    U, cut = with_ones(fit.means), known.of_users(fit.covariances)
    predicted, ratings = subproblem.scores(problem._replace(matrix=others), V, U)
    rows = np.repeat(np.arange(others.shape[0]), np.diff(others.indptr))
    parts, noise = cut.parts(rows, others.indices, U), known.hyper.noise
    h = np.minimum(noise * (parts[:, 1] + LEVERAGE_OF_BOTH * parts[:, 2]), MAX_LEVERAGE)
    variance = 1 / noise + parts[:, 0] + parts[:, 1] / (1 - h) + parts[:, 2]
    return Errors((ratings - predicted) / (1 - h) / np.sqrt(variance), float(noise * parts[:, 0].mean()))


def _cut(matrix: sparse.csr_array) -> tuple[Array, sparse.csr_array, sparse.csr_array]:
    """Some users who have at least 18 ratings, 1 to 9 random ones of these, and their other ratings."""
    rows = np.flatnonzero(np.diff(matrix.indptr) >= 2 * MAX_KEPT)
    rows = rows[:: max(1, -(-len(rows) // MAX_USERS))]
    some = narrow(matrix[rows])
    keep = random_entries(some, 1 + np.arange(len(rows)) % MAX_KEPT, seed=0)
    return rows, only(some, keep), only(some, ~keep)


def _line(errors: Array, reference: float) -> Array:
    """The reference, and the quantiles of absolute errors; the normal distribution counts as some of them."""
    normal = special.ndtri((1 + (np.arange(NORMAL_WEIGHT) + 0.5) / NORMAL_WEIGHT) / 2)
    quantiles = np.quantile(np.concatenate([np.abs(errors), normal]), np.linspace(0, 1, GRID))
    return np.concatenate([[reference], quantiles])
