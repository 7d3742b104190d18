"""update="curvature": the penalty beta of FedMC-ADMM is the client's own curvature, a matrix for each item.

With beta_i = grad^2_V f_i / p the W half becomes trivial (W = V, Y = -grad_V f_i(U, V)/p). For each item the server
needs only the sums of beta_i W + Y and of beta_i over the clients, that is

    G = sum z z'        b = sum m z            over the ratings m of the item, with z the factors of the rating's user.

A round:
    client   U <- argmin f_i(U, V) + R_i(U)          Z <- U + theta (U - U of its last update)
             send the change of (G, b) since its last update, packed
    server   V <- argmin 1/2 v'G v - b'v + seen R(v)     for each item

With theta = 0 each round is a step of block coordinate descent on the objective of the clients seen so far, which
therefore never increases; if all clients take part it is alternating least squares on the pooled data. theta > 0 is
over-relaxation. A client keeps its users' factors and V, and recomputes the old (G, b) from the old Z, so that its
memory does not grow with items x rank^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.admm import running_sum
from fedmc.algorithms.leakage import CurvatureLeakage
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Schema, Sparse, Sums
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.theory import Convergence, Point, Theory, common_parts, common_schema, convergence
from fedmc.algorithms.users import FIT_TOLERANCE, by_user, opening_users
from fedmc.data.partition import Shard, together
from fedmc.errors import Diverged, require
from fedmc.kernels import solves
from fedmc.problem import penalties, subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import Coefficients, Penalty, coefficients
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


class CurvatureState(NamedTuple):
    """The state that a client keeps between its rounds."""

    U: Array  # fitted to V
    Z: Array  # the user factors behind its contribution to the server's sum
    V: Array  # the last one broadcast to it


class CurvatureTheory(Theory):
    """The diagnostics that need no duals; the paper's theorem does not cover this update."""

    def covers(self, settings: Settings) -> bool:
        return False

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return common_schema(items, broadcast.settings.width)

    def client(self, shard: Shard, state: State | None, broadcast: Broadcast, U: Array) -> dict[str, Array | float]:
        V = broadcast.V
        assert state is None or isinstance(state, CurvatureState)
        gap = ((V if state is None else state.V) - V).astype(np.float64)
        return common_parts(shard, broadcast, Point(U, V, gap))

    def server(self, sums: Sums, server: ServerState, broadcast: Broadcast, before: Array | None) -> Convergence:
        if before is None:
            return convergence(sums, broadcast, None, None, broadcast.V)
        _, penalty = broadcast.settings.penalties(broadcast.clients)
        assert server.S is not None
        free, nu = subgradient(server.S, broadcast.V, penalty, server.seen)
        return convergence(sums, broadcast, before, None, sums["gradient_V"][:, free] + nu)


class Curvature(Algorithm):
    """Clients send second moments, not W and Y: as accurate as pooled alternating least squares, in few rounds."""

    name = "curvature"
    state_types = (CurvatureState,)
    cumulative = True
    takes_decoys = True
    unused_settings = frozenset({"beta", "beta_scale", "dual_step"})
    theory: Theory | None = CurvatureTheory()
    leakage = CurvatureLeakage()

    def check(self, settings: Settings) -> None:
        items = penalties.coefficients(settings.penalties(1)[1], settings.width)
        square = isinstance(settings.make_loss(), Square)
        require(square, f"update='curvature' needs the square loss, got {settings.loss}: use update='exact'")
        require(items is not None, "update='curvature' needs a separable penalty of the items: use update='exact'")

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        """If each row has an exact solution, a user's factors depend only on V and the user's own ratings."""
        settings = broadcast.settings
        both = settings.penalty_at_entry, settings.penalties(broadcast.clients)[0]
        return all(subproblem.solvable(settings.make_loss(), penalty, settings.width) is not None for penalty in both)

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[CurvatureState], Sums]:
        """Fit U to V and send the change of the packed (G, b), or all of it if a client is new."""
        before = [_known(state) for state in states]
        whole, V = together(shards), broadcast.V
        new = np.repeat([state is None for state in before], [len(shard.users) for shard in shards])
        opening = joined_rows([opening_users(*one, broadcast) for one in zip(shards, before, strict=True)])
        U = _fitted(whole, opening, new, broadcast)
        Z, previous = U, None
        if not new.all():
            further = broadcast.settings.extrapolation * (U - opening)
            Z = np.where(new[:, None], U, U + further).astype(U.dtype, copy=False)
            previous = joined_rows([_previous(*one, U) for one in zip(shards, before, strict=True)])
        _check_finite(Z, shards, broadcast)
        by_rated = by_user(whole, broadcast)._replace(matrix=whole.by_rated)
        change = Change(whole.rated, len(V), by_rated, Moments(Z, _items(broadcast), previous, ~new))
        after = [CurvatureState(*parts, V) for parts in zip(parted(U, shards), parted(Z, shards), strict=True)]
        sums = Sums.of(S=change, joined=sum(state is None for state in states))
        return after, replace(sums, sent=sums.sent + (len(shards) - 1) * sums["joined"].nbytes)  # one each

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        assert isinstance(state, CurvatureState)
        items = _items(broadcast)
        by_rated = by_user(shard, broadcast)._replace(matrix=shard.by_rated)
        S = np.zeros((len(broadcast.V), columns(broadcast.settings.width, items)))
        S[shard.rated] = packed(by_rated, state.Z, items)
        return {"S": S}

    def decoy_sums(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        return self.contribution(shard, state, broadcast)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        broadcast, _ = normalised(ask, broadcast)
        V, settings = broadcast.V, broadcast.settings
        shape = len(V), columns(settings.width, _items(broadcast))
        if settings.entry != "all":
            return Start(broadcast, server_at(V, np.zeros(shape)))
        reply = ask(broadcast._replace(task="start"), range(broadcast.clients))
        return Start(broadcast, server_at(V, reply["S"], broadcast.clients))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        S, seen = running_sum(server, total)
        return ServerState(S, next_items(S, broadcast.V, _items(broadcast), seen), seen)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        settings = broadcast.settings
        shape = items, columns(settings.width, settings.penalties(1)[1])
        return {"S": Part(shape, SUM_BITS, cumulative=True, sparse=True), "joined": Part()}

    def state_numbers(self, sizes: Sizes) -> int:
        return sizes.users * sizes.width  # Z


def _items(broadcast: Broadcast) -> Penalty:
    return broadcast.settings.penalties(broadcast.clients)[1]


def _known(state: State | None) -> CurvatureState | None:
    assert state is None or isinstance(state, CurvatureState)
    return state


def _previous(shard: Shard, state: CurvatureState | None, like: Array) -> Array:
    """The user factors behind a client's contribution to the sum; 0 if it has none."""
    return np.zeros((len(shard.users), like.shape[1]), like.dtype) if state is None else state.Z


def _fitted(whole: Shard, opening: Array, new: Array, broadcast: Broadcast) -> Array:
    """The users' factors fitted to V; users of new clients are fitted with the penalty at entry."""
    settings, V = broadcast.settings, broadcast.V
    problem, U = by_user(whole, broadcast), np.empty_like(opening)
    for rows, penalty in ((new, settings.penalty_at_entry), (~new, settings.penalties(broadcast.clients)[0])):
        if rows.all():
            return subproblem.minimise(problem, V, opening, penalty, FIT_TOLERANCE)
        if rows.any():
            some = problem._replace(matrix=whole.by_user[rows])
            U[rows] = subproblem.minimise(some, V, opening[rows], penalty, FIT_TOLERANCE)
    return U


def _check_finite(Z: Array, shards: Sequence[Shard], broadcast: Broadcast) -> None:
    if broadcast.settings.privacy.failures_tell or np.isfinite(Z).all():  # under secagg, an error could tell something
        return
    worst = [shard.client for shard, z in zip(shards, parted(Z, shards), strict=True) if not np.isfinite(z).all()]
    cause = f"client {worst[0]} got user factors that are not finite"
    raise Diverged(broadcast.round, cause, "raise the penalties")


def joined_rows(parts: list[Array]) -> Array:
    """The rows of several clients in one array."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def parted(rows: Array, shards: Sequence[Shard]) -> list[Array]:
    """Each client's rows of a joined array, copied so that the joined array can be freed."""
    if len(shards) == 1:
        return [rows]
    bounds = np.cumsum([0, *(len(shard.users) for shard in shards)]).tolist()
    return [rows[start:stop].copy() for start, stop in pairwise(bounds)]


def columns(width: int, items: Penalty) -> int:
    """The number of values per item: the lower triangle of G, and b, over the coordinates that are not fixed."""
    free = len(_numbers(items, width).free)
    return free * (free + 3) // 2


def packed(by_item: Problem, Z: Array, items: Penalty, previous: Array | None = None) -> Array:
    """(G, b) of each item over one client's ratings, as the lower triangle of G, then b; minus that of `previous`."""
    numbers = _numbers(items, Z.shape[1])
    return solves.packed_grams(*subproblem.raw(by_item), Z, numbers.values.astype(Z.dtype), numbers.free, previous)


class Moments(NamedTuple):
    """The inputs of a change of second moments: the factors now, and those of the last contribution."""

    Z: Array
    items: Penalty
    previous: Array | None
    known: Array  # which users have factors in `previous`; the others are 0 there


class Change(Sparse):
    """The packed change of (G, b) of each rated item, computed lazily; `add_to` adds it without storing it."""

    def __init__(self, rated: Array, height: int, by_rated: Problem, moments: Moments) -> None:
        self.rows, self.height = rated, height
        self._by_rated, self._moments = by_rated, moments

    @cached_property
    def values(self) -> Array:
        return packed(self._by_rated, self._moments.Z, self._moments.items, self._moments.previous)

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, columns(self._moments.Z.shape[1], self._moments.items)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + len(self.rows) * self.shape[1] * self._moments.Z.itemsize)

    def add_to(self, sums: Array) -> None:
        Z, items, previous, known = self._moments
        numbers = _numbers(items, Z.shape[1])
        ratings = subproblem.raw(self._by_rated)
        solves.add_packed_grams(
            sums, self.rows, *ratings, Z, numbers.values.astype(Z.dtype), numbers.free, previous, known
        )


def next_items(S: Array, V: Array, items: Penalty, seen: int) -> Array:
    """V = argmin 1/2 v'G v - b'v + seen R(v) for each item."""
    numbers = _numbers(items, V.shape[1])
    l1, l2, lo, hi = numbers.of_free(np.float64)
    start = np.ascontiguousarray(V[:, numbers.free], np.float64)
    new = V.copy()
    new[:, numbers.free] = solves.solve_packed(S, start, seen * l1, seen * l2, lo, hi, numbers.closed)
    return new


def subgradient(S: Array, V: Array, items: Penalty, seen: int) -> tuple[Array, Array]:
    """The free coordinates, and (b - G v)/seen, which lies in R's subdifferential at V if `next_items` returned V."""
    free = _numbers(items, V.shape[1]).free
    G, b = subproblem.unpacked(S)
    return free, (b - np.einsum("jab,jb->ja", G, V[:, free])) / seen


def _numbers(items: Penalty, width: int) -> Coefficients:
    numbers = coefficients(items, width)
    assert numbers is not None  # `Curvature.check` requires it
    return numbers
