"""FedMAvg (the paper's Section 5): gradient steps on W at each client, and V is the mean of W."""

from __future__ import annotations

from fedmc.algorithms.descent import Baseline, descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import AveragingLeakage
from fedmc.algorithms.messages import Broadcast, Schema, Sums
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.problem import subproblem


class FedMAvg(Baseline):
    """N times  W <- W - ( grad_V f(U, W)/p + grad R(W) ) / d  from W = V,   d = 5 lambda_max(U'U)/p;   V <- mean of W.

    The paper prints d without the 1/p of the gradient that it divides, which makes its steps p times too small. Here
    both have the 1/p, unless `as_printed` is set.

    In the paper every client updates U in every round, and those that are drawn also W (update_users="all"). By default
    a client that is not drawn does nothing.
    """

    name = "fedmavg"
    label = "FedMAvg"
    leakage = AveragingLeakage()
    own_settings = frozenset({"update_users"})
    as_printed = False

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        U = user_steps(shard, state, broadcast)
        if broadcast.task == "users":  # this client was not drawn
            return LocalState(U), Sums.of()
        problem, p = by_item(shard, broadcast), broadcast.clients
        W, d = broadcast.V, 5 * lipschitz(problem, U) / (1 if self.as_printed else p)
        for _ in range(broadcast.settings.inner_steps):
            W = descend(W, subproblem.gradient(problem, U, W) / p, items_penalty(broadcast), 1 / d)
        return LocalState(U), Sums.of(W=W)

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        return ServerState(None, total["W"] / participants)

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return {} if broadcast.task == "users" else {"W": factors_part(broadcast, items)}


class PrintedFedMAvg(FedMAvg):
    """FedMAvg with the step length that the paper prints."""

    name = "fedmavg-printed"
    label = "FedMAvg, steps as printed"
    as_printed = True
