"""A client's measurements at the global V (loss, penalty, squared errors), as numbers that are summed over clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.state import State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.problem import subproblem

HELD_OUT = ("train", "test", "validation")


def schema(broadcast: Broadcast, items: int) -> Schema:
    """The parts of a measurement; with `broadcast.full` also what the algorithm's theory needs."""
    count = Part(nonnegative=True)
    found: Schema = {"loss": count, "penalty": Part(), "nonzeros": count, "entries": count}
    found |= {f"{part}_{what}": count for part in HELD_OUT for what in ("count", "error")}
    theory = broadcast.settings.make_algorithm().theory
    return found | theory.schema(broadcast, items) if broadcast.full and theory is not None else found


def measure(shard: Shard, state: State | None, broadcast: Broadcast) -> Sums:
    """Loss, penalty, squared errors and non-zeros at the global V; with `broadcast.full` also the theory's parts."""
    settings = broadcast.settings
    U = settings.make_algorithm().users_at(shard, state, broadcast)
    shard = settings.make_algorithm().adjusted(shard, state, broadcast)
    problem, V = by_user(shard, broadcast), broadcast.V
    penalty, _ = settings.penalties(broadcast.clients)
    factors = U[:, : settings.rank]
    loss, error = subproblem.misfit(problem, V, U)
    parts: dict[str, ArrayLike] = {
        "loss": loss,
        "train_count": shard.by_user.nnz,
        "train_error": error,
        "penalty": penalty.value(U),
        "nonzeros": np.count_nonzero(factors),
        "entries": factors.size,
    }
    for name, held_out in (("test", shard.test), ("validation", shard.validation)):
        count = 0 if held_out is None else held_out.nnz
        parts[f"{name}_count"] = count
        parts[f"{name}_error"] = subproblem.squared_error(problem._replace(matrix=held_out), V, U) if count else 0.0
    theory = settings.make_algorithm().theory
    if broadcast.full and theory is not None:
        parts |= theory.client(shard, state, broadcast, U)
    return Sums.of(**parts)
