"""The objective at each client's own copy of the item factors, as some programs report it.

    1/p sum_i [ f_i(U_i, W_i) + R_i(U_i) ] + R(V)

The model that everybody shares is V. Before W_i and V agree, this number is about p models, one for each client.
"""

from __future__ import annotations

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.theory import problem_of
from fedmc.problem import subproblem
from fedmc.training.local import LocalEngine

COPIES = "objective_at_copies"


def objective_at_copies(engine: LocalEngine, broadcast: Broadcast) -> float | None:
    """The objective at (U_i, W_i); None if a client keeps no W, or has none yet."""
    total = 0.0
    for shard, state in zip(engine.shards, engine.states, strict=True):
        W = getattr(state, "W", None)
        if state is None or W is None:
            return None
        asked = engine.told(shard.client, broadcast)
        penalty, _ = asked.settings.penalties(broadcast.clients)
        total += subproblem.loss_value(problem_of(shard, asked), W, state.U) + penalty.value(state.U)
    _, items = broadcast.settings.penalties(broadcast.clients)
    return float(total / broadcast.clients + items.value(broadcast.V))
