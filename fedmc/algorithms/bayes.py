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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes_server import (
    NAMES,
    ServerSums,
    added,
    bound_parts,
    check_broadcast,
    item_roots,
    learned,
    lines_of,
    posterior_of,
    shared_of,
    sums_of,
    user_numbers,
)  # fmt: skip
from fedmc.algorithms.curvature import joined_rows, parted
from fedmc.algorithms.leakage import CurvatureLeakage, Leakage
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Schema, Shared, Sums
from fedmc.algorithms.messages import Rows as SparseRows
from fedmc.algorithms.posterior import Fit, Posterior, fit_users
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard, together
from fedmc.errors import Diverged, require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.types import Array

WARM_PASSES = 2  # passes over the clients before noise and priors are learned


class BayesState(NamedTuple):
    """The posteriors of a client's users, which never leave it."""

    U: Array  # their means, as rows [factors, 1, bias]
    Z: Array  # means (factors, bias) behind its contribution: beyond U by the extrapolation
    covariances: Array  # packed
    log_dets: Array


class BayesLeakage(CurvatureLeakage):
    """As for the curvature update: a message holds the second moments of user factors, item by item."""

    def user_bias(self, broadcast: Broadcast, u: Array, left: float) -> float:
        """From the last line of precision (u, bias) = pull + noise (sums): noise and prior are known to the server."""
        noise, users, _ = posterior_of(broadcast).hyper
        return float((noise * left + users.pull[-1] - users.precision[-1, :-1] @ u) / users.precision[-1, -1])


class Bayes(Algorithm):
    """Posterior means and covariances, learned noise and priors: nothing to tune, and an error bar for everything."""

    name = "bayes"
    state_types: tuple[type[State], ...] = (BayesState,)
    tasks = Algorithm.tasks - {"start"}
    cumulative = True
    unused_settings = frozenset(
        {"beta", "beta_scale", "dual_step", "inner_steps", "passes", "fit_users_to", "entry_penalty"}
        | {"penalty_users", "penalty_items"}
    )
    leakage: Leakage = BayesLeakage()
    remedy = "rescale the ratings"

    def check(self, settings: Settings) -> None:
        square, needs = isinstance(settings.make_loss(), Square), f"algorithm={self.name!r} needs"
        require(square, f"{needs} the square loss, got {settings.loss}")
        require(settings.biases, f"{needs} biases=True")
        standard = settings.normalise == "standard"
        require(standard, f"{needs} normalise='standard', got {settings.normalise!r}")
        needed = settings.entry == "first-turn" and settings.fold_in
        require(needed, f"{needs} entry='first-turn' and fold_in=True")

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        return True  # a user's posterior depends only on the items' and on the user's own ratings

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        """The users' posteriors, and the change of the sums over them, or all of it if a client is new."""
        before = [_known(state) for state in states]
        whole = together(shards)
        after = self.moved(shards, whole, before, broadcast)
        _check_finite([state.U for state in after], whole, broadcast)
        lines = joined_rows([_change(_lines, new, old) for new, old in zip(after, before, strict=True)])
        by_rated = by_user(whole, broadcast)._replace(matrix=whole.by_rated)
        change = moments.sum_moments(*subproblem.raw(by_rated), lines, len(free_users(broadcast.settings)))
        users = [
            _change(lambda state, shard=shard: user_sums(shard, state, broadcast), new, old)  # type: ignore[misc]
            for shard, new, old in zip(shards, after, before, strict=True)
        ]
        sums = Sums.of(
            S=SparseRows(whole.rated, change, len(broadcast.V)),
            users=users[0][None]
            if len(shards) == 1
            else SparseRows(np.zeros(len(users), np.int64), np.array(users), 1),
            joined=sum(state is None for state in states),
        )
        apart = sums["joined"].nbytes * (len(shards) - 1)  # one from every client
        numbers = 0 if len(shards) == 1 else 8 * len(shards)  # of the rows of `users`, which no client sends
        return after, replace(sums, sent=sums.sent + apart - numbers)

    def moved(
        self, shards: Sequence[Shard], whole: Shard, before: Sequence[BayesState | None], broadcast: Broadcast
    ) -> list[BayesState]:
        """The clients' states after a round; `whole` is their shards together."""
        fit = zip(*(parted(part, shards) for part in _fit(whole, broadcast)), strict=True)
        return [_state(one, old, broadcast.settings) for one, old in zip(fit, before, strict=True)]

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
        return Start(broadcast._replace(shared=shared_of(sums.hyper, roots)), server_at(broadcast.V, sums.packed()))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        sums, size = sums_of(server, broadcast.settings), broadcast.settings.rank + 1
        sums = added(sums, total)
        ratings = sums.users[-1]
        if ratings > 0 and broadcast.round > warm_rounds(broadcast.settings, broadcast.clients):
            sums = sums._replace(hyper=learned(sums))
        means, _ = item_roots(sums)
        V = np.ones((len(means), size + 1))
        V[:, :size] = means
        return ServerState(sums.packed(), V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        if not server.seen:
            return broadcast.shared
        sums = sums_of(server, broadcast.settings)
        _, roots = item_roots(sums)
        return shared_of(sums.hyper, roots.astype(broadcast.V.dtype))

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        if not server.seen:
            return None
        return gaussians.bound(*bound_parts(sums_of(server, broadcast.settings)))

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
        check_broadcast(broadcast)
        strange = sorted(broadcast.shared.arrays.keys() - set(NAMES))
        require(not strange, lambda: f"the server sends {strange[0]}, which this algorithm does not know")

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


def _change(part: Callable[[BayesState], Array], now: BayesState, before: BayesState | None) -> Array:
    """A part of a client's contribution now, minus that of before, if there was one."""
    return part(now) if before is None else np.asarray(part(now) - part(before))


def _lines(state: BayesState) -> Array:
    """The packed moments behind a client's contribution."""
    return moments.moment_lines(state.Z, state.covariances)


def user_sums(shard: Shard, state: BayesState, broadcast: Broadcast) -> Array:
    """A client's part of the sums over users."""
    rows = gaussians.summed(state.Z, state.covariances, state.log_dets)
    number, plain, squares = _rating_sums(shard, broadcast)
    bias = state.Z[:, -1].astype(np.float64)
    error = (squares - 2 * plain * bias + number * (bias**2 + state.covariances[:, -1])).sum()
    return np.concatenate([[rows.number], rows.mean, rows.second, [error, rows.log_det, number.sum()]])


def _rating_sums(shard: Shard, broadcast: Broadcast) -> Array:
    """The number, sum and sum of squares of each user's scaled ratings, computed once per broadcast."""

    def sums() -> Array:
        matrix, (mean, scale) = shard.by_user, broadcast.scaling
        m = (matrix.data.astype(np.float64) - mean) / scale
        rows = np.repeat(np.arange(len(shard.users)), np.diff(matrix.indptr))
        return np.array([np.bincount(rows, values, len(shard.users)) for values in (None, m, m * m)])

    return broadcast.shared.derive(f"rating sums of {shard.client}", sums)


def _check_finite(users: Sequence[Array], whole: Shard, broadcast: Broadcast) -> None:
    if broadcast.settings.privacy.failures_tell or all(np.isfinite(U).all() for U in users):
        return  # under secure aggregation, an error could tell something
    raise Diverged(broadcast.round, f"client {whole.client} got user factors that are not finite", Bayes.remedy)
