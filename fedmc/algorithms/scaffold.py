"""SCAFFOLD on the item factors; the users' factors stay local."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.descent import Baseline, descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import ChangeLeakage
from fedmc.algorithms.messages import Broadcast, Schema, Shared, Sums
from fedmc.algorithms.protocol import Sizes
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.problem import subproblem
from fedmc.types import Array

CONTROL = "control"


class ControlState(NamedTuple):
    """The state that a client keeps: its users' factors and its control variate."""

    U: Array
    control: Array


class Scaffold(Baseline):
    """N times  W <- W - ( grad_V f(U, W) + grad R(W) - c_i + c ) / L  from W = V;   c_i+ = c_i - c + L (V - W)/N.

    Server:  V <- V + mean (W - V),   c <- c + 1/p sum (c_i+ - c_i).   The server keeps c and broadcasts it with V.
    """

    name = "scaffold"
    label = "SCAFFOLD"
    state_types = (ControlState,)
    leakage = ChangeLeakage()

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        assert state is None or isinstance(state, ControlState)
        U = user_steps(shard, state, broadcast)
        problem, N, V = by_item(shard, broadcast), broadcast.settings.inner_steps, broadcast.V
        W, L = V, lipschitz(problem, U)
        nothing = np.zeros_like(V)
        c = broadcast.shared.arrays.get(CONTROL, nothing)
        own = nothing if state is None else state.control
        for _ in range(N):
            W = descend(W, subproblem.gradient(problem, U, W) - own + c, items_penalty(broadcast), 1 / L)
        new = (own - c + L / N * (V - W)).astype(W.dtype, copy=False)
        return ControlState(U, new), Sums.of(W=W - V, control=new - own)

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        V = broadcast.V
        before = np.zeros_like(V) if server.S is None else server.S
        c = (before + total["control"] / broadcast.clients).astype(V.dtype)
        return ServerState(c, V + total["W"] / participants)

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        return broadcast.shared if server.S is None else Shared({CONTROL: server.S})

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        part = factors_part(broadcast, items)
        return {"W": part, "control": part}

    def check_broadcast(self, broadcast: Broadcast) -> None:
        control = broadcast.shared.arrays.get(CONTROL, broadcast.V)
        require(control.shape == broadcast.V.shape, f"the control must have the shape of V, got {control.shape}")

    def state_numbers(self, sizes: Sizes) -> int:
        return sizes.clients * sizes.items * sizes.width
