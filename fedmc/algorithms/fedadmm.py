"""FedADMM (Gong, Li and Freris 2022): consensus ADMM on the item factors; the users' factors stay local.

Each client keeps its own copy W of the item factors and the dual Y of W = V. A client that takes part in a round runs

    N times   W <- W - ( grad_V f(U, W) + grad R(W) + Y + rho (W - V) ) / (L + rho)   from W = V,   L = lambda_max(U'U)
              Y <- Y + rho (W - V)

and sends the change of W + Y/rho since its last round. The server adds their sum, over the number of all clients, to V.
So V is the mean of W + Y/rho over all clients, stale ones included, as in consensus ADMM. This is the step of the paper
with eta = participants / clients. With a larger eta, up to 1, what V moved since a client's last round counts several
times, and training of factors diverges.

A client enters with Y = 0 and W = V, the V that it is sent first; in the paper W is the first V of the run, for late
clients too. rho is one number for all clients, `share` times the mean number of ratings that a client has of an item:
f is a sum over ratings, so its curvature in a row grows with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.descent import Baseline, descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import Leakage, Observation, free_columns, linear_residual
from fedmc.algorithms.messages import Broadcast, Schema, Shared, Sums
from fedmc.algorithms.protocol import Sizes, Start
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.errors import InputError, require
from fedmc.problem import subproblem
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number

SHARE = 0.1  # chosen on validation ratings of MovieLens 100K and 1M
RHO = "rho"


class CopyState(NamedTuple):
    """The state that a client keeps: its users' factors, its copy of the item factors and the dual."""

    U: Array
    W: Array
    Y: Array


class FedADMMLeakage(Leakage):
    """W and Y can be tracked, as W+ = (change + V + W) / 2; an unrated row of W+ is linear in V and Y."""

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        found: list[Array] = []
        W, Y = seen[0].broadcast.V, np.zeros_like(seen[0].broadcast.V)
        for broadcast, parts in ((one.broadcast, one.parts) for one in seen):
            free, V = free_columns(broadcast), broadcast.V
            known = np.stack([V, Y] if found else [V], axis=-1)
            W = (parts["change"] + V + W) / 2
            Y = Y + rho_of(broadcast) * (W - V)
            found.append(linear_residual(np.asarray(W[:, free], np.float64), known[:, free]))
        return found


class FedADMM(Baseline):
    """Consensus ADMM: `fedadmm`, or `fedadmm:0.5` for half of the default rho."""

    name = "fedadmm"
    label = "FedADMM"
    state_types = (CopyState,)
    leakage = FedADMMLeakage()
    remedy = "raise rho, the number of fedadmm:SHARE"

    def __init__(self, share: float = SHARE) -> None:
        self.share = number("the share of fedadmm", share, MIN_POSITIVE, MAX_NUMBER)

    def __str__(self) -> str:
        return self.name if self.share == SHARE else f"{self.name}:{self.share!r}"

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        assert state is None or isinstance(state, CopyState)
        U, V, rho = user_steps(shard, state, broadcast), broadcast.V, rho_of(broadcast)
        W_before, Y_before = (V, np.zeros_like(V)) if state is None else (state.W, state.Y)
        problem, W = by_item(shard, broadcast), V
        step = 1 / (lipschitz(problem, U) + rho)
        for _ in range(broadcast.settings.inner_steps):
            slope = subproblem.gradient(problem, U, W) + Y_before + rho * (W - V)
            W = descend(W, slope, items_penalty(broadcast), step)
        Y = Y_before + rho * (W - V)
        return CopyState(U, W, Y), Sums.of(change=W - W_before + (Y - Y_before) / rho)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        broadcast, moments = normalised(ask, broadcast, always=True)
        assert moments is not None
        per_row = moments.number("count") / (broadcast.clients * len(broadcast.V))
        shared = Shared({RHO: np.asarray(self.share * per_row)})
        return Start(broadcast._replace(shared=shared), server_at(broadcast.V))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        return ServerState(None, broadcast.V + total["change"] / broadcast.clients)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return {"change": factors_part(broadcast, items)}

    def check_broadcast(self, broadcast: Broadcast) -> None:
        if broadcast.task == "moments":  # rho is computed from their sum
            return
        given = broadcast.shared.arrays.get(RHO)
        if given is None or given.shape != ():
            raise InputError("the server sends no rho, or one that is not a number")
        rho = rho_of(broadcast)
        require(0 < rho <= MAX_NUMBER, f"rho must be above 0 and at most {MAX_NUMBER:g}, got {rho}")

    def state_numbers(self, sizes: Sizes) -> int:
        return 2 * sizes.clients * sizes.items * sizes.width


def rho_of(broadcast: Broadcast) -> float:
    return float(broadcast.shared.arrays[RHO])
