"""FedMC-ADMM as published: Algorithm 1 of the paper, with linearised updates (`preset="paper"`).

Symbols, as in the paper (item factors are stored item-major, one row per item):
    M_i, Omega_i   the ratings of client i and their positions             shard
    U  (m_i x r)   its users' factors, which never leave it                state.U
    W  (n x r)     its own copy of the item factors                        state.W
    Y  (n x r)     the dual of W = V                                       state.Y
    V  (n x r)     the item factors that all clients share                 broadcast.V
    beta, p        the penalty of W != V, the number of clients            beta_of(broadcast), broadcast.clients
    N              inner steps of each half                                settings.inner_steps
    S = beta W + Y a client's contribution; the server needs only its sum over clients

A client's round:
    N times   U <- prox_{R_i/L}( U - grad_U f(U, W)/L ),                                 L = ||W'W||_F
    N times   W <- ( L/p W + beta V - grad_V f(U, W)/p - Y ) / ( L/p + beta ),           L = ||U'U||_F
              Y <- Y + beta (W - V)                                          the dual step, before the next V
Times p, the W step is a proximal gradient step with the penalty  rho/2 ||W - A||^2,  rho = p beta,  A = V - Y/beta:
the same function as the U half, transposed.

The server keeps S = sum_i (beta W_i + Y_i), stale clients included:
    V <- prox_{R/(p beta)}( S / (p beta) )
If clients enter at their first update, p in S / (p beta) is the number `seen` so far, while the prox step stays
1 / (p beta): R weighs seen/p.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol, cast

import numpy as np

from fedmc.algorithms import beta
from fedmc.algorithms.admm_leakage import ADMMLeakage
from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Schema, Sums
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.theory import Convergence, Point, Theory, common_parts, common_schema, convergence, problem_of
from fedmc.algorithms.users import by_item, by_user, start_users
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, require
from fedmc.problem import penalties, subproblem
from fedmc.problem.subproblem import ItemHalf
from fedmc.types import Array


class ADMMState(NamedTuple):
    """The state that a client of FedMC-ADMM keeps between its rounds; it never leaves the client."""

    U: Array
    W: Array
    Y: Array


class Tied(State, Protocol):
    """A state that gives W and Y in full, even if it stores only parts of them."""

    @property
    def W(self) -> Array: ...
    @property
    def Y(self) -> Array: ...


class ADMMTheory(Theory):
    """The paper's theory: it covers the linearised update with one beta and U fitted to W."""

    def covers(self, settings: Settings) -> bool:
        as_published = settings.fit_users_to == "W" and settings.dual_step == 1 and settings.entry == "all"
        return as_published and settings.beta != "auto" and not settings.biases  # whose fixed columns have no dual

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return common_schema(items, broadcast.settings.width) | {"lagrangian": Part()}

    def client(self, shard: Shard, state: State | None, broadcast: Broadcast, U: Array) -> dict[str, Array | float]:
        V, W, Y = broadcast.V, broadcast.V, np.zeros_like(broadcast.V)
        if state is not None:
            tied = cast(Tied, state)
            U, W, Y = tied.U, tied.W, tied.Y
        gap = (W - V).astype(np.float64)
        penalty, _ = broadcast.settings.penalties(broadcast.clients)
        loss = subproblem.loss_value(problem_of(shard, broadcast), W, U)
        ties = float(np.sum(Y * gap) + np.sum(beta_of(broadcast) / 2 * np.square(gap)))
        parts = common_parts(shard, broadcast, Point(U, W, gap))
        return parts | {"lagrangian": (loss + penalty.value(U)) / broadcast.clients + ties}

    def server(self, sums: Sums, server: ServerState, broadcast: Broadcast, before: Array | None) -> Convergence:
        """nu lies in the subdifferential of R at V if V is the result of a server step."""
        _, penalty = broadcast.settings.penalties(broadcast.clients)
        lagrangian = sums.number("lagrangian") + penalty.value(broadcast.V)
        if before is None:
            return convergence(sums, broadcast, None, lagrangian, broadcast.V)
        assert server.S is not None
        nu = (server.S - server.seen * beta_of(broadcast) * broadcast.V) * (broadcast.clients / server.seen)
        return convergence(sums, broadcast, before, lagrangian, sums["gradient_V"] + nu)


class LinearisedADMM(Algorithm):
    """FedMC-ADMM with N proximal gradient steps of each half."""

    name = "linearised"
    ignored_settings = frozenset({"extrapolation", "entry_penalty"})
    state_types: tuple[type[State], ...] = (ADMMState,)
    remedy = "raise beta"
    tasks = Algorithm.tasks | {"scale"}
    own_settings: Set[str] = frozenset({"empty_rounds"})
    cumulative = True
    theory: Theory | None = ADMMTheory()
    leakage = ADMMLeakage()

    def check(self, settings: Settings) -> None:
        if settings.beta == "auto":
            separable = penalties.coefficients(settings.penalties(1)[1], settings.width) is not None
            require(separable, "beta='auto' needs a separable penalty of the items: set beta, or penalty_items='none'")

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        if broadcast.task == "scale":
            return state, self.user_scale(shard, broadcast)  # type: ignore[return-value]
        if broadcast.task == "start":
            begun = self.first_state(shard, broadcast)
            return begun, Sums.of(S=beta_of(broadcast) * begun.W + begun.Y, joined=1)
        assert state is None or isinstance(state, ADMMState)
        return self.local_round(shard, state, broadcast)

    def local_round(self, shard: Shard, state: ADMMState | None, broadcast: Broadcast) -> tuple[ADMMState, Sums]:
        """Update U, then W, then Y; send the change of S = beta W + Y, or all of S if the client is new."""
        joined = state is None
        old = self.first_state(shard, broadcast) if state is None else state
        U = self.fit_users(shard, old.U, old.W if broadcast.settings.fit_users_to == "W" else broadcast.V, broadcast)
        W, Y, change, finite = self.item_half(shard, U, old, broadcast)
        if joined:
            change = (beta_of(broadcast) * W + Y).astype(W.dtype, copy=False)
        check_finite(finite, shard, broadcast)
        return ADMMState(U, W, Y), Sums.of(S=change, joined=int(joined))

    def item_half(
        self, shard: Shard, U: Array, old: ADMMState, broadcast: Broadcast
    ) -> tuple[Array, Array, Array, bool]:
        """The W half and the dual step: new W and Y, the change of S, and whether it is finite."""
        settings, p = broadcast.settings, broadcast.clients
        half = ItemHalf(p, settings.penalty_of_copies, settings.inner_steps, settings.passes, settings.dual_step)
        problem, tie = by_item(shard, broadcast), beta_of(broadcast)
        return subproblem.item_round(problem, U, (old.W, old.Y), broadcast.V, tie, half)

    def first_state(self, shard: Shard, broadcast: Broadcast) -> ADMMState:
        """W = V, Y = -1/p grad_V f(U, W): the paper's start, used at the client's first update."""
        U, V = self.first_users(shard, broadcast), broadcast.V
        Y = (-subproblem.gradient(by_item(shard, broadcast), U, V) / broadcast.clients).astype(U.dtype, copy=False)
        return ADMMState(U, V, Y)

    def first_users(self, shard: Shard, broadcast: Broadcast) -> Array:
        U = start_users(shard, broadcast)
        return self.fit_users(shard, U, broadcast.V, broadcast) if broadcast.settings.fit_users_to == "V" else U

    def fit_users(self, shard: Shard, U: Array, F: Array, broadcast: Broadcast) -> Array:
        """The U half against the item factors F: N proximal gradient steps."""
        settings = broadcast.settings
        penalty, _ = settings.penalties(broadcast.clients)
        problem = by_user(shard, broadcast)
        return subproblem.prox_steps(problem, F, U, penalty, settings.inner_steps, passes=settings.passes)

    def user_scale(self, shard: Shard, broadcast: Broadcast) -> Sums:
        """sum_t u_ta^2 for each coordinate a, with U fitted to the first V: the input of beta="auto"."""
        U = self.fit_users(shard, start_users(shard, broadcast), broadcast.V, broadcast)
        return Sums.of(users=len(U), squares=np.square(U, dtype=np.float64).sum(axis=0))

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        tied = cast(Tied, state)
        return {"S": np.asarray(beta_of(broadcast) * tied.W + tied.Y)}

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        settings, V, p = broadcast.settings, broadcast.V, broadcast.clients
        broadcast, moments = normalised(ask, broadcast, always=settings.beta == "auto")
        if settings.beta != "auto":
            broadcast = broadcast._replace(shared=beta.constant(settings.beta))
        else:
            assert moments is not None
            scale = ask(broadcast._replace(task="scale"), first)
            broadcast = broadcast._replace(shared=beta.from_sums(moments, scale))
        if settings.entry != "all":
            return Start(broadcast, server_at(V, np.zeros(V.shape)))
        reply = ask(broadcast._replace(task="start"), range(p))
        return Start(broadcast, server_at(V, reply["S"], p))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        return server_step(*running_sum(server, total), broadcast)

    def aggregate_nothing(self, server: ServerState, broadcast: Broadcast) -> ServerState:
        """The paper's server step, whoever took part. It changes V only before the first round with participants."""
        if broadcast.settings.empty_rounds == "skip" or not server.seen:
            return server
        assert server.S is not None
        return server_step(server.S, server.seen, broadcast)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        width = broadcast.settings.width
        if broadcast.task == "scale":
            return {"users": Part(nonnegative=True), "squares": Part((width,), nonnegative=True)}
        return {"S": Part((items, width), SUM_BITS, cumulative=True), "joined": Part()}

    def check_broadcast(self, broadcast: Broadcast) -> None:
        if broadcast.task not in ("moments", "scale"):  # beta is computed from their sums
            beta.check(broadcast)

    def state_numbers(self, sizes: Sizes) -> int:
        return 2 * sizes.clients * sizes.items * sizes.width  # W and Y


def server_step(S: Array, seen: int, broadcast: Broadcast) -> ServerState:
    """V <- prox_{R/(p beta)}( S / (p beta) )"""
    tie = beta_of(broadcast)
    _, penalty = broadcast.settings.penalties(broadcast.clients)
    return ServerState(S, penalty.prox(S / (seen * tie), 1 / (broadcast.clients * tie)), seen)


def running_sum(server: ServerState, total: Sums) -> tuple[Array, int]:
    """S after adding the round's changes, and the number of clients in it."""
    S = total["S"]
    S += server.S  # in place: nobody else holds the reply's array
    return S, server.seen + int(total.number("joined"))


def check_finite(finite: bool, shard: Shard, broadcast: Broadcast) -> None:
    """Raise Diverged, unless that could tell something about the ratings: then the numbers go on to the aggregation."""
    if not finite and not broadcast.settings.privacy.failures_tell:
        cause = f"client {shard.client} got item factors that are not finite"
        raise Diverged(broadcast.round, cause, broadcast.settings.make_algorithm().remedy)
