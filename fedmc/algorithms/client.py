"""All the client's mathematics, as pure functions; every engine calls `respond` and nothing else.

Symbols, as in the paper (item factors are stored item-major, one row an item):
    M_i, Omega_i   the ratings of client i and where they are              shard
    U  (m_i x r)   its users' factors, which never leave it                state.U
    W  (n x r)     its own copy of the item factors                        state.W
    Y  (n x r)     the dual of W = V                                       state.Y
    V  (n x r)     the item factors all clients share                      cast.V
    beta, p        the penalty of W != V, the number of clients            cast.beta, cast.clients
    N              inner steps of each half                                settings.inner_steps
    S = beta W + Y what the server needs of a client, and only summed over clients

A round of a client, exactly as in the paper's Algorithm 1 (`preset="paper"`):
    N times   U <- prox_{R_i/L}( U - grad_U f(U, W)/L ),                                 L = ||W'W||_F
    N times   W <- ( L/p W + beta V - grad_V f(U, W)/p - Y ) / ( L/p + beta ),           L = ||U'U||_F
              Y <- Y + beta (W - V)                                          the dual before the next V
Times p, the W step is a proximal gradient step with the penalty  rho/2 ||W - A||^2,  rho = p beta,  A = V - Y/beta:
the same function as the U half, transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms import curvature
from fedmc.algorithms.measures import measure
from fedmc.algorithms.messages import Broadcast, Rows, Sums
from fedmc.data.partition import Shard, together
from fedmc.errors import Diverged
from fedmc.kernels import steps
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import Coupling, coefficients, project
from fedmc.problem.subproblem import Problem
from fedmc.training.sampling import client_rng
from fedmc.types import Array

FITTED = 1e-5  # when steps towards fitted users end, where there is no exact answer


class Tied(NamedTuple):
    """What a client of FedMC-ADMM remembers between its rounds; it stays with the client."""

    U: Array
    W: Array
    Y: Array


class TiedRated(NamedTuple):
    """The same where items are solved for exactly: one that nobody here rated has W = the last V, Y = 0."""

    U: Array
    rated: Array  # the items whose W and Y follow
    W_rated: Array
    Y_rated: Array
    V: Array  # as it came last

    @property
    def W(self) -> Array:
        W = self.V.copy()
        W[self.rated] = self.W_rated
        return W

    @property
    def Y(self) -> Array:
        Y = np.zeros_like(self.V)
        Y[self.rated] = self.Y_rated
        return Y


class Fitted(NamedTuple):
    """What a client remembers with `update="curvature"`."""

    U: Array  # fitted to V
    Z: Array  # the users' factors that its part of the server's sum was made of
    V: Array  # as it came last


ClientState = Tied | TiedRated | Fitted | Any  # or what a method of `methods` remembers, with a field U


def respond(shard: Shard, state: ClientState | None, cast: Broadcast) -> tuple[ClientState | None, Sums]:
    """Do what the broadcast asks: the new state, and what goes up."""
    if cast.task == "moments":
        return state, moments(shard, cast)
    if cast.task == "scale":
        return state, user_scale(shard, cast)
    if cast.task == "measure":
        return state, measure(shard, users_at(shard, state, cast), state, cast)
    method = cast.settings.make_method()
    if method is not None:
        return method.turn(shard, state, cast)
    if cast.settings.update == "curvature":
        assert state is None or isinstance(state, Fitted)
        (after,), sums = share_curvature([shard], [state], cast)
        return after, sums
    assert not isinstance(state, Fitted)
    if cast.task == "start":
        begun = start(shard, cast)
        return begun, Sums.of(S=cast.beta * begun.W + begun.Y, joined=1)
    if only_rated(cast):
        assert not isinstance(state, Tied)
        return exact_round(shard, state, cast)
    assert not isinstance(state, TiedRated)
    return local_round(shard, state, cast)


def respond_together(
    shards: Sequence[Shard], states: Sequence[Any], cast: Broadcast
) -> tuple[Sequence[ClientState | None], Sums]:
    """`respond` of several clients that are `independent`, in one go; of a single one always."""
    if len(shards) > 1:
        return share_curvature(shards, states, cast)
    state, sums = respond(shards[0], states[0], cast)
    return [state], sums


def only_rated(cast: Broadcast) -> bool:
    """Whether items are solved for exactly, so that only those with ratings have a W and a Y of their own."""
    return cast.settings.update == "exact" and isinstance(cast.settings.make_loss(), Square)


def share_curvature(
    shards: Sequence[Shard], states: Sequence[Fitted | None], cast: Broadcast
) -> tuple[list[Fitted], Sums]:
    """One round: U fitted to V; up goes the change of the packed (G, b), all of it where a client is new.

    Small clients take their turns together, with the same bits as one by one (see `independent`).
    """
    settings, whole, V = cast.settings, together(shards), cast.V
    _, items = settings.penalties(cast.clients)
    new = np.repeat([state is None for state in states], [len(shard.users) for shard in shards])
    before = _joined([_opening(shard, state, cast) for shard, state in zip(shards, states, strict=True)])
    U = _fitted_together(whole, before, new, cast)
    Z, less = U, None
    if not new.all():
        Z = np.where(new[:, None], U, U + settings.extrapolation * (U - before)).astype(U.dtype, copy=False)
        less = _joined(
            [np.zeros_like(U[: len(x.users)]) if y is None else y.Z for x, y in zip(shards, states, strict=True)]
        )
    by_rated = _by_user(whole, cast)._replace(matrix=whole.by_rated)
    if not np.isfinite(Z).all():
        worst = [shard.client for shard, z in zip(shards, _parted(Z, shards), strict=True) if not np.isfinite(z).all()]
        cause = f"client {worst[0]} got user factors that are not finite"
        raise Diverged(cast.round, cause, "raise the penalties")
    after = [Fitted(*parts, V) for parts in zip(_parted(U, shards), _parted(Z, shards), strict=True)]
    return after, Sums.of(
        S=curvature.Change(whole.rated, len(V), by_rated, Z, items, less, ~new),
        joined=sum(state is None for state in states),
    )


def independent(cast: Broadcast) -> bool:
    """Whether clients may take their turns together: a user's factors depend on nothing but V and its own ratings."""
    settings = cast.settings
    if cast.task != "round" or settings.update != "curvature" or settings.make_method() is not None:
        return False
    penalties = settings.penalty_at_entry, settings.penalties(cast.clients)[0]
    return all(subproblem.solvable(settings.make_loss(), penalty, settings.width) is not None for penalty in penalties)


def _fitted_together(whole: Shard, before: Array, new: Array, cast: Broadcast) -> Array:
    """The users' factors fitted to V, those of `new` ones with the penalty at entry."""
    problem, U = _by_user(whole, cast), np.empty_like(before)
    for rows, penalty in ((new, cast.settings.penalty_at_entry), (~new, cast.settings.penalties(cast.clients)[0])):
        if rows.all():
            return subproblem.minimise(problem, cast.V, before, penalty, FITTED)
        if rows.any():
            some = problem._replace(matrix=whole.by_user[rows])
            U[rows] = subproblem.minimise(some, cast.V, before[rows], penalty, FITTED)
    return U


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _parted(rows: Array, shards: Sequence[Shard]) -> list[Array]:
    """Each client's rows of a joined array, without the others in memory."""
    if len(shards) == 1:
        return [rows]
    bounds = np.cumsum([0, *(len(shard.users) for shard in shards)]).tolist()
    return [rows[start:stop].copy() for start, stop in pairwise(bounds)]


def local_round(shard: Shard, state: Tied | None, cast: Broadcast) -> tuple[Tied, Sums]:
    """One round: U, then W, then Y; up goes the change of S = beta W + Y, all of it where the client is new."""
    joined = state is None
    old = start(shard, cast) if state is None else state
    settings, V, beta = cast.settings, cast.V, cast.beta
    U = fit_users(shard, old.U, old.W if settings.fit_users_to == "W" else V, cast)
    problem = Problem(shard.by_item, settings.make_loss(), cast.scaling)
    half = subproblem.ItemHalf(
        cast.clients, settings.penalty_of_copies, settings.inner_steps, settings.passes, settings.dual_step
    )
    W, Y, change, finite = subproblem.item_round(problem, U, (old.W, old.Y), V, beta, half)
    if joined:
        change = (beta * W + Y).astype(W.dtype, copy=False)
    _check(finite, shard, cast)
    return Tied(U, W, Y), Sums.of(S=change, joined=int(joined))


def exact_round(shard: Shard, state: TiedRated | None, cast: Broadcast) -> tuple[TiedRated, Sums]:
    """`local_round` with each item's W at its minimum (the paper's remark); work and memory for rated items only."""
    joined = state is None
    old = start(shard, cast) if state is None else state
    assert isinstance(old, TiedRated)
    settings, rated = cast.settings, shard.rated
    U = fit_users(shard, old.U, old.W if settings.fit_users_to == "W" else cast.V, cast)
    V = cast.V[rated]
    beta = cast.beta[rated] if np.ndim(cast.beta) else cast.beta
    problem = Problem(shard.by_rated, settings.make_loss(), cast.scaling)
    numbers = coefficients(settings.penalty_of_copies, settings.width)
    assert numbers is not None
    coupling = Coupling(cast.clients * beta, steps.anchors(V, old.Y_rated, beta))
    W = subproblem.exact(problem, U, old.W_rated, numbers, coupling)
    Y, near, finite = steps.dual_step(V, old.W_rated, old.Y_rated, W, beta, settings.dual_step)
    change = np.asarray(cast.beta * (cast.V if joined else cast.V - old.V), W.dtype)
    change[rated] = beta * W + Y if joined else near
    _check(finite, shard, cast)
    return TiedRated(U, rated, W, Y, cast.V), Sums.of(S=change, joined=int(joined))


def _check(finite: bool, shard: Shard, cast: Broadcast) -> None:
    if not finite:
        raise Diverged(cast.round, f"client {shard.client} got item factors that are not finite", "raise beta")


def start(shard: Shard, cast: Broadcast) -> Tied | TiedRated:
    """W = V, Y = -1/p grad_V f(U, W): the paper's start, whenever the client has its first turn."""
    U, V = start_users(shard, cast), cast.V
    if cast.settings.fit_users_to == "V":
        U = fit_users(shard, U, V, cast)
    rated = only_rated(cast)
    problem = Problem(shard.by_rated if rated else shard.by_item, cast.settings.make_loss(), cast.scaling)
    W = V[shard.rated] if rated else V
    Y = (-subproblem.gradient(problem, U, W) / cast.clients).astype(U.dtype, copy=False)
    return TiedRated(U, shard.rated, W, Y, V) if rated else Tied(U, V, Y)


def start_users(shard: Shard, cast: Broadcast) -> Array:
    """U uniform in [0, 1], from the client's own generator, inside its constraints."""
    settings = cast.settings
    users, _ = settings.penalties(cast.clients)
    drawn = client_rng(settings.seed, shard.client).random((len(shard.users), settings.width))
    return project(users, drawn).astype(cast.V.dtype)


def fit_users(shard: Shard, U: Array, F: Array, cast: Broadcast) -> Array:
    """The U half against the item factors F: exactly where it can be and is wanted, else N proximal gradient steps."""
    settings = cast.settings
    penalty, _ = settings.penalties(cast.clients)
    problem = _by_user(shard, cast)
    numbers = subproblem.solvable(problem.loss, penalty, settings.width)
    if settings.update != "linearised" and settings.fit_users_to == "V" and numbers is not None:
        return subproblem.exact(problem, F, U, numbers)
    return subproblem.prox_steps(problem, F, U, penalty, settings.inner_steps, passes=settings.passes)


def users_at(shard: Shard, state: ClientState | None, cast: Broadcast) -> Array:
    """U to go with the global V: as the client has it, or fitted to V where wanted or where there is none yet.

    Where all clients are there from the start, one that had no turn has the U it starts with.
    """
    if not cast.settings.fold_in and (state is not None or cast.settings.entry == "all"):
        return start_users(shard, cast) if state is None else np.asarray(state.U)
    penalty, _ = cast.settings.penalties(cast.clients)
    return subproblem.minimise(_by_user(shard, cast), cast.V, _opening(shard, state, cast), penalty, FITTED)


def _opening(shard: Shard, state: ClientState | None, cast: Broadcast) -> Array:
    """Where users begin to be fitted to V: where they are; at first where the client starts, if that matters at all."""
    if state is not None:
        return np.asarray(state.U)
    numbers = subproblem.solvable(
        cast.settings.make_loss(), cast.settings.penalties(cast.clients)[0], cast.settings.width
    )
    if numbers is not None and numbers.closed:
        return np.zeros((len(shard.users), cast.settings.width), cast.V.dtype)  # one solve, wherever it starts
    return start_users(shard, cast)


def contribution(shard: Shard, state: ClientState, cast: Broadcast) -> Array:
    """All of what a client has in the server's sum, a row an item: S = beta W + Y, or with curvature (G, b)."""
    if isinstance(state, Fitted):
        _, items = cast.settings.penalties(cast.clients)
        by_rated = _by_user(shard, cast)._replace(matrix=shard.by_rated)
        S = np.zeros((len(cast.V), curvature.columns(cast.settings.width, items)))
        S[shard.rated] = curvature.packed(by_rated, state.Z, items)
        return S
    return np.asarray(cast.beta * state.W + state.Y)


def moments(shard: Shard, cast: Broadcast) -> Sums:
    """Count, sum and sum of squares of the ratings less `cast.scaling.mean`, and how often each item was rated."""
    data = shard.by_user.data.astype(np.float64) - cast.scaling.mean
    items = Rows(shard.rated, np.diff(shard.by_rated.indptr), shard.by_user.shape[1])
    return Sums.of(count=data.size, sum=data.sum(), squares=np.square(data).sum(), items=items)


def user_scale(shard: Shard, cast: Broadcast) -> Sums:
    """sum_t u_ta^2 for each coordinate a, U fitted to the first V: what `beta="auto"` needs."""
    U = fit_users(shard, start_users(shard, cast), cast.V, cast)
    return Sums.of(users=len(U), squares=np.square(U, dtype=np.float64).sum(axis=0))


def _by_user(shard: Shard, cast: Broadcast) -> Problem:
    return Problem(shard.by_user, cast.settings.make_loss(), cast.scaling)
