"""FedMC-ADMM with both halves solved exactly (the paper's remark): fewer rounds, and work for rated items only.

With the square loss and a separable penalty each row is solved in one step, with another loss in a few
(`problem.majorise`), down to a tolerance. An item that no user of the client rated has W = V and Y = 0, so a client
keeps W and Y of its rated items only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.admm import ADMMState, ADMMTheory, LinearisedADMM, check_finite
from fedmc.algorithms.admm_leakage import ExactLeakage
from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.protocol import Sizes
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.kernels import steps
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import Coupling, coefficients
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

ROUND_TOLERANCE = 1e-3  # of the halves of a round, where a loss needs several steps; with 1e-2, rounds can diverge


class SparseADMMState(NamedTuple):
    """ADMMState for exact item solves: an item that no user of the client rated has W = the last V, Y = 0."""

    U: Array
    rated: Array  # the items of the rows of W_rated and Y_rated
    W_rated: Array
    Y_rated: Array
    V: Array  # the last one broadcast to the client

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


class ExactTheory(ADMMTheory):
    def covers(self, settings: Settings) -> bool:
        return False  # the theorem is about linearised updates


class ExactADMM(LinearisedADMM):
    """Solves both halves exactly if loss and penalty allow it."""

    name = "exact"
    state_types = (SparseADMMState, ADMMState)
    takes_decoys = True
    theory = ExactTheory()
    leakage = ExactLeakage()

    def check(self, settings: Settings) -> None:
        square = isinstance(settings.make_loss(), Square)
        require(
            square or settings.fit_users_to == "V",
            f"the exact W update needs the square loss, got {settings.loss}: use the linearised one",
        )
        super().check(settings)

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        if broadcast.task == "round":
            return self.exact_round(shard, _sparse(shard, state, broadcast), broadcast)
        if broadcast.task == "start":
            begun = self.first_sparse_state(shard, broadcast)
            return begun, Sums.of(S=beta_of(broadcast) * begun.W + begun.Y, joined=1)
        return super().client_update(shard, state, broadcast)

    def exact_round(
        self, shard: Shard, state: SparseADMMState | None, broadcast: Broadcast
    ) -> tuple[SparseADMMState, Sums]:
        """`local_round` with each item's W at its minimum; takes work and memory for rated items only."""
        joined = state is None
        old = self.first_sparse_state(shard, broadcast) if state is None else state
        settings, rated, tie = broadcast.settings, shard.rated, beta_of(broadcast)
        U = self.fit_users(shard, old.U, old.W if settings.fit_users_to == "W" else broadcast.V, broadcast)
        V, beta = broadcast.V[rated], tie[rated] if isinstance(tie, np.ndarray) else tie
        coupling = Coupling(broadcast.clients * beta, steps.anchors(V, old.Y_rated, beta))
        W = subproblem.minimise(
            _by_rated(shard, broadcast), U, old.W_rated, settings.penalty_of_copies, ROUND_TOLERANCE, coupling
        )
        Y, near, finite = steps.dual_step(V, old.W_rated, old.Y_rated, W, beta, settings.dual_step)
        change = np.asarray(tie * (broadcast.V if joined else broadcast.V - old.V), W.dtype)
        change[rated] = beta * W + Y if joined else near
        check_finite(finite, shard, broadcast)
        return SparseADMMState(U, rated, W, Y, broadcast.V), Sums.of(S=change, joined=int(joined))

    def first_sparse_state(self, shard: Shard, broadcast: Broadcast) -> SparseADMMState:
        """W = V, Y = -1/p grad_V f(U, W), for the rated items."""
        U, W = self.first_users(shard, broadcast), broadcast.V[shard.rated]
        slope = subproblem.gradient(_by_rated(shard, broadcast), U, W)
        Y = (-slope / broadcast.clients).astype(U.dtype, copy=False)
        return SparseADMMState(U, shard.rated, W, Y, broadcast.V)

    def decoy_sums(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        """Their pull on the items at this V, which is the Y of a real rating at its first round."""
        S = np.zeros(broadcast.V.shape)
        slope = subproblem.gradient(_by_rated(shard, broadcast), state.U, broadcast.V[shard.rated])
        S[shard.rated] = -slope / broadcast.clients
        return {"S": S}

    def fit_users(self, shard: Shard, U: Array, F: Array, broadcast: Broadcast) -> Array:
        """The U half at its minimum if it is fitted to V and can be solved row by row, else N steps."""
        settings = broadcast.settings
        penalty, _ = settings.penalties(broadcast.clients)
        if settings.fit_users_to == "V" and coefficients(penalty, settings.width) is not None:
            return subproblem.minimise(by_user(shard, broadcast), F, U, penalty, ROUND_TOLERANCE)
        return super().fit_users(shard, U, F, broadcast)

    def state_numbers(self, sizes: Sizes) -> int:
        return 2 * sizes.rated * sizes.width


def _sparse(shard: Shard, state: State | None, broadcast: Broadcast) -> SparseADMMState | None:
    """The state; one with all rows, which an earlier version kept for other losses, becomes one of the rated rows."""
    if not isinstance(state, ADMMState):
        assert state is None or isinstance(state, SparseADMMState)
        return state
    contribution = state.W + state.Y / beta_of(broadcast)  # to the server's sum, divided by beta
    rated = shard.rated
    return SparseADMMState(state.U, rated, state.W[rated], state.Y[rated], contribution.astype(state.W.dtype))


def _by_rated(shard: Shard, broadcast: Broadcast) -> Problem:
    return Problem(shard.by_rated, broadcast.settings.make_loss(), broadcast.scaling)
