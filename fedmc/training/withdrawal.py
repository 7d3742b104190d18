"""The simulation of a client that leaves with its part, as `fedmc federation remove` does it in a federation."""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.schema import schema_of
from fedmc.training.fixed_point import decoded, taken_out
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, aggregated


def without(engine: LocalEngine, last: Checkpoint, clients: tuple[int, ...]) -> Checkpoint:
    """The end of a run after the contributions of these clients were taken out of the sum, exactly.

    The run has contributions in whole steps (secagg, or clip). The item factors follow from what is left of the sum.
    """
    number = last.number + 1
    broadcast = last.broadcast._replace(task="round", round=number, measured=False)
    schema = schema_of(broadcast, len(broadcast.V))
    total = np.zeros(sum(part.size for part in schema.values()), np.int64)
    for client in clients:
        total += taken_out(engine.states[client], schema, leaves=True)[1]
    server, following = aggregated(decoded(total, schema, 0), broadcast, last.server, clients)
    return Checkpoint(number, following._replace(round=number), server, last.start_objective)
