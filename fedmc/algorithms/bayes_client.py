"""The client's side of the Bayesian model: what it keeps, the posteriors of its users, and its sums over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms import days, gaussians, home
from fedmc.algorithms.bayes_server import DIRECTIONS, lines_of, packed_users, posterior_of
from fedmc.algorithms.days import DayBiases
from fedmc.algorithms.home import Home
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.posterior import Fit, KnownDays, fit_users, seen_sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.types import Array

WARM_PASSES = 2  # passes over the clients before noise and priors are learned


class BayesState(NamedTuple):
    """The posteriors of a client's users, which never leave it."""

    U: Array  # their means, as rows [factors, 1, bias]
    Z: Array  # means (factors, bias) behind its contribution: beyond U by the extrapolation
    covariances: Array  # packed
    log_dets: Array
    regressors: Array  # from who rated what, at the client's first update
    home: Array  # weights of the users' own features, and their ridge
    ridge: Array
    days: Array = np.zeros(0)  # expected biases by user and day, their variances and their ridge
    day_variances: Array = np.zeros(0)
    day_ridge: Array = np.zeros(0)


def known_state(state: State | None) -> BayesState | None:
    """The state of this algorithm, without what secure aggregation or clipping keep beside it."""
    inner = getattr(state, "inner", state)
    return inner if isinstance(inner, BayesState) else None


def free_users(settings: Settings) -> Array:
    """The columns of U that are not fixed: factors, then the bias."""
    return np.array([*range(settings.rank), settings.rank + 1])


def with_ones(means: Array) -> Array:
    """User rows [factors, 1, bias] from means (factors, bias)."""
    U = np.ones((len(means), means.shape[1] + 1), means.dtype)
    U[:, :-2], U[:, -1] = means[:, :-1], means[:, -1]
    return U


def warm_rounds(settings: Settings, clients: int) -> int:
    """The rounds before noise and priors are learned."""
    return WARM_PASSES * math.ceil(clients / min(settings.active, clients))


def server_priors(shard: Shard, broadcast: Broadcast) -> Array:
    """The prior mean of each user, without what its own features add."""
    return posterior_of(broadcast).prior_means(shard.incidence)


def fit(shard: Shard, broadcast: Broadcast, priors: Array) -> Fit:
    """The posteriors of a client's users."""
    return fit_users(by_user(shard, broadcast), posterior_of(broadcast), lines_of(broadcast), priors, broadcast.V.dtype)


def days_of(shard: Shard, state: BayesState | None) -> DayBiases:
    if state is None or not len(state.day_ridge):
        return DayBiases.empty(shard)
    return DayBiases(state.days, state.day_variances, state.day_ridge)


def adjusted(shard: Shard, state: BayesState | None, broadcast: Broadcast) -> Shard:
    """The client's ratings without the biases of their days."""
    return days.adjusted(shard, days_of(shard, state), broadcast.scaling.scale)


def errors_of(shard: Shard, Z: Array, broadcast: Broadcast) -> Array:
    """The errors of the users' predictions, in units of the scaled ratings."""
    predicted, ratings = subproblem.scores(by_user(shard, broadcast), broadcast.V, with_ones(Z))
    return np.asarray(ratings - predicted, np.float64)


def home_of(shard: Shard, state: BayesState | None, size: int) -> Home:
    return Home.empty(shard, size) if state is None else Home(state.home, state.ridge)


def regressors_of(shard: Shard, state: BayesState | None, broadcast: Broadcast) -> Array:
    """The users' regressors from who rated what, which stay as they were at the client's first update."""
    if state is not None:
        return state.regressors
    directions = broadcast.shared.arrays.get(DIRECTIONS)
    if directions is None:
        return np.zeros((len(shard.users), 0))
    return seen_sums(shard.incidence, directions.astype(np.float64, copy=False)).astype(broadcast.V.dtype, copy=False)


def state_of(fit: Fit, regressors: Array, own: Home, before: BayesState | None, settings: Settings) -> BayesState:
    means, covariances, log_dets = fit
    Z = means
    if before is not None and settings.extrapolation:
        further = settings.extrapolation * (means - before.U[:, free_users(settings)])
        Z = (means + further).astype(means.dtype, copy=False)
    return BayesState(with_ones(means), Z, covariances, log_dets, regressors, *own)


def with_days(shard: Shard, state: BayesState, before: BayesState | None, broadcast: Broadcast) -> BayesState:
    """The state with biases of days that fit the users' new means."""
    if shard.days is None:
        return state
    errors, noise = errors_of(shard, state.Z, broadcast), posterior_of(broadcast).hyper.noise
    found = days.fitted(shard, days_of(shard, before), errors, noise)
    return state._replace(days=found.means, day_variances=found.variances, day_ridge=found.ridge)


def average_home(shards: Sequence[Shard], states: Sequence[BayesState | None]) -> Array | None:
    """The weights of the users' own features; over several clients, averaged by their users."""
    pairs = zip(shards, states, strict=True)
    known = [(len(shard.users), state.home) for shard, state in pairs if state is not None and state.home.size]
    if not known:
        return None
    users = np.array([number for number, _ in known], np.float64)
    return np.asarray(np.einsum("c,cxa->xa", users / users.sum(), np.array([weights for _, weights in known])))


def known_days(shards: Sequence[Shard], states: Sequence[BayesState | None]) -> KnownDays | None:
    """The biases by user and day of several clients; their users are numbered in this order."""
    parts, start = [], 0
    for shard, state in zip(shards, states, strict=True):
        if shard.days is not None and state is not None and len(state.days):
            parts.append((shard.days.users + start, shard.days.numbers, state.days))
        start += len(shard.users)
    return KnownDays(*map(np.concatenate, zip(*parts, strict=True))) if parts else None


def change(part: Callable[[BayesState], Array], now: BayesState, before: BayesState | None) -> Array:
    """A part of a client's contribution now, minus that of before, if there was one."""
    return part(now) if before is None else np.asarray(part(now) - part(before))


def lines(state: BayesState) -> Array:
    """The packed moments behind a client's contribution."""
    return moments.moment_lines(state.Z, state.covariances)


def user_sums(shard: Shard, state: BayesState, broadcast: Broadcast, joins: bool = True) -> Array:
    """A client's part of the sums over users; unless it `joins`, without what never changes: their regressors."""
    own = Home(state.home, state.ridge)
    means = state.Z - home.offsets(shard, own)
    rows = gaussians.summed(means, state.covariances, state.log_dets, state.regressors, squares=joins)
    rows = home.counted(rows, shard, own)
    number, plain, squares = _rating_sums(adjusted(shard, state, broadcast), broadcast)
    bias = state.Z[:, -1].astype(np.float64)
    error = (squares - 2 * plain * bias + number * (bias**2 + state.covariances[:, -1])).sum()
    more, log_det = days.terms(shard, days_of(shard, state))
    rows = rows._replace(log_det=rows.log_det + log_det)
    return packed_users(rows, float(error) + more, float(number.sum()))


def changed_users(shard: Shard, now: BayesState, before: BayesState | None, broadcast: Broadcast) -> Array:
    """The change of a client's part of the sums over users."""
    joins = before is None
    return change(lambda state: user_sums(shard, state, broadcast, joins), now, before)


def _rating_sums(shard: Shard, broadcast: Broadcast) -> Array:
    """The number, sum and sum of squares of each user's scaled ratings; without days, computed once per broadcast."""

    def sums() -> Array:
        matrix, (mean, scale) = shard.by_user, broadcast.scaling
        m = (matrix.data.astype(np.float64) - mean) / scale
        rows = np.repeat(np.arange(len(shard.users)), np.diff(matrix.indptr))
        return np.array([np.bincount(rows, values, len(shard.users)) for values in (None, m, m * m)])

    return sums() if shard.days is not None else broadcast.shared.derive(f"rating sums of {shard.client}", sums)
