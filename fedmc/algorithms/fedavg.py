"""Federated averaging and FedProx on the item factors; the users' factors stay local."""

from __future__ import annotations

from fedmc.algorithms.descent import descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import AveragingLeakage
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.problem import subproblem


class FedAvg(Algorithm):
    """N gradient steps on f(U, W) + R(W) + mu/2 ||W - V||^2 of length 1/(L + mu) from W = V,   L = lambda_max(U'U).

    Then V is the mean of W over clients, weighted by their numbers of ratings. mu = 0 is federated averaging, mu > 0 is
    FedProx; the attribute `mu` is given as a share of L.
    """

    name = "fedavg"
    label = "FedAvg"
    state_types = (LocalState,)
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
        return ServerState(None, total["W"] / total.number("weight"), 0)

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return {"W": factors_part(broadcast, items), "weight": Part(nonnegative=True)}


class FedProx(FedAvg):
    """Federated averaging with a proximal term."""

    name = "fedprox"
    label = "FedProx"
    mu = 0.1
