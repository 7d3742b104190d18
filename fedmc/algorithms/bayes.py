"""Variational Bayes by sums (`preset="bayes"`): a Gaussian posterior with a full covariance for every user and item.

The model is in `gaussians`. With w = (factors, 1) of the other side, a round is

    client   posterior of each of its users, given those of the items, the noise alpha and the users' prior:
                 covariance = (precision + alpha sum E[w w'])^-1
                 mean       = covariance (precision mean + alpha sum (m E[w] - E[w c]))      over the user's ratings m
             send the change since its last update of
                 S       [G, b] of each item: sum E[w w'] and sum (m E[w] - E[w b]) over the item's ratings
                 users   number of users, sum of their means, sum E[z z'], sum E[(m - b)^2], sum of log determinants,
                         number of ratings
    server   posterior of each item from [G, b], by the same formula; then, after the first passes, noise and priors in
             closed form, and the items' posteriors again

With extrapolation 0 every update maximises the same evidence bound over one block of it. A client that does not take
part keeps its posteriors, and its part stays in the sums. So the bound never falls between joins, whoever takes part.
A client that joins adds its terms. Extrapolation sends means that lie beyond the new ones, along the last change: the
bound is still one, but may fall for a round.

In the first passes noise and priors are fixed. If they were learned while few clients have joined, the factors that
the few cannot tell from noise would be pruned for good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.curvature import joined_rows, parted
from fedmc.algorithms.gaussians import Hyper, Prior, Ratings, Rows
from fedmc.algorithms.leakage import CurvatureLeakage
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Schema, Shared, Sums
from fedmc.algorithms.messages import Rows as SparseRows
from fedmc.algorithms.posterior import Fit, Posterior, fit_users
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard, together
from fedmc.errors import Diverged, InputError, require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.types import Array

WARM_PASSES = 2  # passes over the clients before noise and priors are learned
ROOTS, NOISE = "item_roots", "noise"
PRIORS = ("user_mean", "user_precision", "item_mean", "item_precision")
EIGENVALUES = 1e-3, 1e9  # of a prior's precision
NOISES = 1e-3, 1e9  # of the noise's precision
LARGEST = 1e6  # an entry of a covariance's root, or of a prior mean


class BayesState(NamedTuple):
    """The posteriors of a client's users, which never leave it."""

    U: Array  # their means, as rows [factors, 1, bias]
    Z: Array  # means (factors, bias) behind its contribution: beyond U by the extrapolation
    covariances: Array  # packed
    log_dets: Array


class ServerSums(NamedTuple):
    """What the server keeps: the clients' sums, noise and priors; `packed` as one vector."""

    items: Array  # [G, b] of each item
    users: Array
    hyper: Hyper

    def packed(self) -> Array:
        noise, users, items = self.hyper
        parts = self.items, self.users, np.array([noise]), *users, *items
        return np.concatenate([part.ravel() for part in parts])

    @classmethod
    def unpacked(cls, vector: Array, items: int, size: int) -> ServerSums:
        shapes = [(items, moments.line_length(size)), (user_numbers(size),), (1,), *[(size,), (size, size)] * 2]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = [part.reshape(shape) for part, shape in zip(np.split(vector, ends), shapes, strict=True)]
        return cls(parts[0], parts[1], Hyper(float(parts[2][0]), Prior(*parts[3:5]), Prior(*parts[5:])))


class Bayes(Algorithm):
    """Posterior means and covariances, learned noise and priors: nothing to tune, and an error bar for everything."""

    name = "bayes"
    state_types = (BayesState,)
    cumulative = True
    unused_settings = frozenset(
        {"beta", "beta_scale", "dual_step", "inner_steps", "passes", "fit_users_to", "entry_penalty"}
        | {"penalty_users", "penalty_items"}
    )
    leakage = CurvatureLeakage()
    remedy = "rescale the ratings"

    def check(self, settings: Settings) -> None:
        square = isinstance(settings.make_loss(), Square)
        require(square, f"algorithm='bayes' needs the square loss, got {settings.loss}")
        require(settings.biases, "algorithm='bayes' needs biases=True")
        standard = settings.normalise == "standard"
        require(standard, f"algorithm='bayes' needs normalise='standard', got {settings.normalise!r}")
        needed = settings.entry == "first-turn" and settings.fold_in
        require(needed, "algorithm='bayes' needs entry='first-turn' and fold_in=True")

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        return True  # a user's posterior depends only on the items' and on the user's own ratings

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[BayesState], Sums]:
        """The users' posteriors, and the change of the sums over them, or all of it if a client is new."""
        before = [_known(state) for state in states]
        whole = together(shards)
        fit = _fit(whole, broadcast)
        _check_finite(fit.means, whole, broadcast)
        after = [
            _state(one, old, broadcast.settings)
            for one, old in zip(zip(*(parted(part, shards) for part in fit), strict=True), before, strict=True)
        ]
        lines = joined_rows([_lines(new) - _lines(old) for new, old in zip(after, before, strict=True)])
        by_rated = by_user(whole, broadcast)._replace(matrix=whole.by_rated)
        change = moments.sum_moments(*subproblem.raw(by_rated), lines, len(free_users(broadcast.settings)))
        users = [
            user_sums(shard, new, broadcast) - user_sums(shard, old, broadcast)
            for shard, new, old in zip(shards, after, before, strict=True)
        ]
        sums = Sums.of(
            S=SparseRows(whole.rated, change, len(broadcast.V)),
            users=users[0][None] if len(shards) == 1 else SparseRows(np.zeros(len(users), np.int64), np.array(users), 1),
            joined=sum(state is None for state in states),
        )
        one_each = 8 * (len(shards) - 1)  # `joined` of every client
        return after, replace(sums, sent=sums.sent + one_each)

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        known = _known(state)
        assert known is not None
        by_rated = by_user(shard, broadcast)._replace(matrix=shard.by_rated)
        size = len(free_users(broadcast.settings))
        S = np.zeros((len(broadcast.V), moments.line_length(size)))
        S[shard.rated] = moments.sum_moments(*subproblem.raw(by_rated), _lines(known), size)
        return {"S": S, "users": user_sums(shard, known, broadcast)[None]}

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        """Posterior means, given the items' posteriors of this broadcast; `state` plays no part."""
        return with_ones(_fit(shard, broadcast).means)

    def posterior(self, shards: Sequence[Shard], broadcast: Broadcast) -> Posterior:
        covariances = joined_rows([_fit(shard, broadcast).covariances for shard in shards])
        return posterior_of(broadcast).of_users(covariances)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        broadcast, _ = normalised(ask, broadcast)
        items, size = len(broadcast.V), broadcast.settings.rank + 1
        zeros = np.zeros((items, moments.line_length(size)))
        sums = ServerSums(zeros, np.zeros(user_numbers(size)), gaussians.first_hyper(size))
        roots = np.zeros((items, size * (size + 1) // 2), broadcast.V.dtype)
        return Start(broadcast._replace(shared=_shared(sums.hyper, roots)), server_at(broadcast.V, sums.packed()))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        sums, size = _sums(server, broadcast.settings), broadcast.settings.rank + 1
        sums = sums._replace(items=sums.items + total["S"], users=sums.users + total["users"][0])
        if broadcast.round > warm_rounds(broadcast.settings, broadcast.clients):
            sums = sums._replace(hyper=learned(sums))
        means, _, _ = item_posteriors(sums)
        V = np.ones((len(means), size + 1))
        V[:, :size] = means
        return ServerState(sums.packed(), V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        if not server.seen:
            return broadcast.shared
        sums = _sums(server, broadcast.settings)
        _, covariances, _ = item_posteriors(sums)
        roots = gaussians.packed(np.linalg.cholesky(gaussians.unpacked(covariances)))
        return _shared(sums.hyper, roots.astype(broadcast.V.dtype))

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        if not server.seen:
            return None
        return gaussians.bound(*bound_parts(_sums(server, broadcast.settings)))

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        size = broadcast.settings.rank + 1
        return {
            "S": Part((items, moments.line_length(size)), SUM_BITS, cumulative=True, sparse=True),
            "users": Part((1, user_numbers(size)), cumulative=True),
            "joined": Part(),
        }

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse noise, priors and covariances that no honest server would send: no posterior may fail at them."""
        if broadcast.task == "moments":
            return
        size, arrays = broadcast.settings.rank + 1, broadcast.shared.arrays
        shapes = [(len(broadcast.V), size * (size + 1) // 2), (1,), *[(size,), (size, size)] * 2]
        for name, shape in zip((ROOTS, NOISE, *PRIORS), shapes, strict=True):
            if name not in arrays or arrays[name].shape != shape:
                raise InputError(f"the server's {name} is missing or has another shape than {shape}")
            finite = bool((np.abs(arrays[name]) <= max(LARGEST, NOISES[1], EIGENVALUES[1])).all())
            require(finite, f"the server's {name} has numbers that are not finite or too large")
        require(bool((np.abs(arrays[ROOTS]) <= LARGEST).all()), f"the items' covariances are beyond {LARGEST:g}")
        noise = float(arrays[NOISE][0])
        require(NOISES[0] <= noise <= NOISES[1], f"noise must be {NOISES[0]:g} to {NOISES[1]:g}, got {noise:g}")
        for name in ("user_precision", "item_precision"):
            eigenvalues = np.linalg.eigvalsh(arrays[name])
            inside = EIGENVALUES[0] <= eigenvalues[0] and eigenvalues[-1] <= EIGENVALUES[1]
            symmetric = bool(np.array_equal(arrays[name], arrays[name].T))
            require(inside and symmetric, f"the server's {name} is no precision: symmetric, eigenvalues {EIGENVALUES}")

    def state_numbers(self, sizes: Sizes) -> int:
        q = sizes.width - 1
        return sizes.users * (q + q * (q + 1) // 2 + 1)  # Z, covariances, log determinants


def _known(state: State | None) -> BayesState | None:
    assert state is None or isinstance(state, BayesState)
    return state


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


def user_numbers(size: int) -> int:
    """Numbers in the sums over users."""
    return 4 + size + size * (size + 1) // 2


def posterior_of(broadcast: Broadcast) -> Posterior:
    """The items' posteriors, noise and priors of a broadcast."""
    arrays, size = broadcast.shared.arrays, broadcast.settings.rank + 1

    def covariances() -> Array:
        roots = gaussians.unpacked(arrays[ROOTS].astype(np.float64), symmetric=False)
        return gaussians.packed(np.matmul(roots, np.swapaxes(roots, 1, 2))).astype(broadcast.V.dtype)

    users, items = Prior(arrays[PRIORS[0]], arrays[PRIORS[1]]), Prior(arrays[PRIORS[2]], arrays[PRIORS[3]])
    hyper = Hyper(float(arrays[NOISE][0]), users, items)
    means = np.ascontiguousarray(broadcast.V[:, :size])
    return Posterior(hyper, means, broadcast.shared.derive("covariances", covariances))


def lines_of(broadcast: Broadcast) -> Array:
    """The items' packed moments, computed once per broadcast."""

    def lines() -> Array:
        known = posterior_of(broadcast)
        return moments.moment_lines(known.item_means, known.item_covariances)

    return broadcast.shared.derive("lines", lines)


def _fit(shard: Shard, broadcast: Broadcast) -> Fit:
    """The posteriors of a client's users."""
    return fit_users(by_user(shard, broadcast), posterior_of(broadcast), lines_of(broadcast), broadcast.V.dtype)


def _state(fit: tuple[Array, Array, Array], before: BayesState | None, settings: Settings) -> BayesState:
    means, covariances, log_dets = fit
    Z = means
    if before is not None and settings.extrapolation:
        further = settings.extrapolation * (means - before.U[:, free_users(settings)])
        Z = (means + further).astype(means.dtype, copy=False)
    return BayesState(with_ones(means), Z, covariances, log_dets)


def _lines(state: BayesState | None) -> Array | float:
    """The packed moments behind a client's contribution; 0 if it has none."""
    return 0.0 if state is None else moments.moment_lines(state.Z, state.covariances)


def user_sums(shard: Shard, state: BayesState | None, broadcast: Broadcast) -> Array | float:
    """A client's part of the sums over users; 0 if it has none."""
    if state is None:
        return 0.0
    rows = gaussians.summed(state.Z, state.covariances, state.log_dets)
    number, plain, squares = _rating_sums(shard, broadcast)
    bias = state.Z[:, -1].astype(np.float64)
    error = squares.sum() - 2 * plain @ bias + number @ (bias**2 + state.covariances[:, -1])
    return np.concatenate([[rows.count], rows.mean, rows.second, [error, rows.log_det, number.sum()]])


def _rating_sums(shard: Shard, broadcast: Broadcast) -> tuple[Array, Array, Array]:
    """The number, sum and sum of squares of each user's scaled ratings."""
    matrix, (mean, scale) = shard.by_user, broadcast.scaling
    number = np.diff(matrix.indptr)
    m = (matrix.data.astype(np.float64) - mean) / scale
    rows = np.repeat(np.arange(len(number)), number)
    return number.astype(np.float64), *(np.bincount(rows, values, len(number)) for values in (m, m * m))


def _check_finite(means: Array, whole: Shard, broadcast: Broadcast) -> None:
    if broadcast.settings.privacy.failures_tell or np.isfinite(means).all():
        return  # under secure aggregation, an error could tell something
    raise Diverged(broadcast.round, f"client {whole.client} got user factors that are not finite", Bayes.remedy)


def _sums(server: ServerState, settings: Settings) -> ServerSums:
    assert server.S is not None
    return ServerSums.unpacked(server.S, len(server.V), settings.rank + 1)


def _shared(hyper: Hyper, roots: Array) -> Shared:
    values = hyper.users.mean, hyper.users.precision, hyper.items.mean, hyper.items.precision
    return Shared({ROOTS: roots, NOISE: np.array([hyper.noise]), **dict(zip(PRIORS, values, strict=True))})


def item_posteriors(sums: ServerSums) -> tuple[Array, Array, Array]:
    """Means, packed covariances and their log determinants, from the sums."""
    prior = sums.hyper.items
    return moments.posteriors(sums.items, sums.hyper.noise, prior.precision, prior.pull)


def learned(sums: ServerSums) -> Hyper:
    """Noise and priors that maximise the bound, given the users' posteriors and the items' that follow from them."""
    _, ratings, users, items, variances = bound_parts(sums)
    priors = [gaussians.learned_prior(rows, variances) for rows in (users, items)]
    return Hyper(gaussians.learned_noise(ratings), *priors)


def bound_parts(sums: ServerSums) -> tuple[Hyper, Ratings, Rows, Rows, Array]:
    """The arguments of `gaussians.bound`; the items are those that anybody rated."""
    size = len(sums.hyper.items.mean)
    means, covariances, log_dets = item_posteriors(sums)
    count, (error, log_det, number) = sums.users[0], sums.users[-3:]
    users = Rows(float(count), sums.users[1 : size + 1], sums.users[size + 1 : -3], float(log_det))
    G, b = sums.items[:, :-size], sums.items[:, -size:]
    second = gaussians.second_moments(means, covariances)
    error = float(error + np.sum((G * second) @ gaussians.multiplicity(size)) - 2 * np.sum(b * means))
    raters = G[:, -1]
    rated = raters > 0
    items = gaussians.summed(means[rated], covariances[rated], log_dets[rated])
    typical = float(number / max(count, 1e-9) * np.square(raters).sum() / max(float(raters.sum()), 1e-9))
    return sums.hyper, Ratings(float(number), error), users, items, gaussians.guess(size, typical)
