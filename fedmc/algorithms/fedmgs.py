"""FedMGS (the paper's Section 5): clients send gradients, and the server takes the step."""

from __future__ import annotations

from fedmc.algorithms.descent import Baseline, descend, factors_part, items_penalty, lipschitz, user_steps
from fedmc.algorithms.leakage import GradientLeakage
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.problem import subproblem


class FedMGS(Baseline):
    """Clients send grad_V f(U, V)/p and lambda_max(U'U), which sets the length of the server's step.

    V <- V - ( p/s sum grad + grad R(V) ) / d,   d = mean of lambda_max(U'U) over the s participants.
    """

    name = "fedmgs"
    label = "FedMGS"
    leakage = GradientLeakage()

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        U = user_steps(shard, state, broadcast)
        problem = by_item(shard, broadcast)
        slope = subproblem.gradient(problem, U, broadcast.V) / broadcast.clients
        return LocalState(U), Sums.of(gradient=slope, L=lipschitz(problem, U))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        slope = total["gradient"] * (broadcast.clients / participants)
        d = total.number("L") / participants
        V = descend(broadcast.V, slope.astype(broadcast.V.dtype), items_penalty(broadcast), 1 / d)
        return ServerState(None, V)

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        return {"gradient": factors_part(broadcast, items), "L": Part(nonnegative=True)}
