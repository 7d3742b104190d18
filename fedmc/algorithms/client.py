"""A client's work, whatever the engine: every engine calls `respond` (or `respond_together`) and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.algorithms.measures import measure
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.schema import check_parts
from fedmc.algorithms.start import moments
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard


def respond(shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
    """Do what the broadcast asks: the new state, and the reply."""
    if broadcast.task == "moments":
        return state, moments(shard, broadcast)
    if broadcast.task == "measure":
        return state, measure(shard, state, broadcast)
    new, sums = broadcast.settings.make_algorithm().client_update(shard, state, broadcast)
    check_parts(sums, broadcast, shard.by_user.shape[1])
    return new, sums


def respond_together(
    shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
) -> tuple[Sequence[State | None], Sums]:
    """`respond` of several clients in one go, where their algorithm can; of a single one always."""
    if len(shards) > 1:
        return broadcast.settings.make_algorithm().batch_update(shards, states, broadcast)
    state, sums = respond(shards[0], states[0], broadcast)
    return [state], sums


def can_batch(broadcast: Broadcast) -> bool:
    """Whether `respond_together` may be given several clients."""
    return broadcast.task == "round" and broadcast.settings.make_algorithm().can_batch(broadcast)
