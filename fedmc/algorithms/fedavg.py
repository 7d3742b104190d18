"""Federated averaging and FedProx on the item factors; the users' factors stay local."""

from __future__ import annotations

import math

from fedmc.algorithms.descent import Baseline, descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import AveragingLeakage
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.problem import subproblem

MU = 0.1  # FedProx's own default, as a share of L


class FedAvg(Baseline):
    """N gradient steps on f(U, W) + R(W) + mu/2 ||W - V||^2 of length 1/(L + mu) from W = V,   L = lambda_max(U'U).

    Then V is the mean of W, weighted by each client's number of ratings. mu = 0 is federated averaging, else it is
    FedProx, with mu as a share of L. L includes the loss's curvature.
    """

    name = "fedavg"
    label = "FedAvg"
    leakage = AveragingLeakage()
    mu = 0.0

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        U = user_steps(shard, state, broadcast)
        problem, V = by_item(shard, broadcast), broadcast.V
        W, L = V, lipschitz(problem, U)
        mu = self.mu * L
        for _ in range(broadcast.settings.inner_steps):
            slope = subproblem.gradient(problem, U, W) + mu * (W - V)
            W = descend(W, slope, items_penalty(broadcast), 1 / (L + mu))
        weight = shard.by_user.nnz
        return LocalState(U), Sums.of(W=weight * W, weight=weight)

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        return ServerState(None, total["W"] / total.number("weight"))

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return {"W": factors_part(broadcast, items), "weight": Part(nonnegative=True)}


class FedProx(FedAvg):
    """Federated averaging with a proximal term: `fedprox`, or `fedprox:0.2` for mu = 0.2 L."""

    name = "fedprox"
    label = "FedProx"

    def __init__(self, mu: float = MU) -> None:
        require(0 <= mu < math.inf, f"mu of fedprox must be finite and at least 0, got {mu}")
        self.mu = mu

    def __str__(self) -> str:
        return self.name if self.mu == MU else f"{self.name}:{self.mu!r}"
