"""A client's work, the same under every engine: engines call only `respond` and `respond_together`."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.algorithms.measures import measure
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.schema import check_parts
from fedmc.algorithms.start import moments
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard


def respond(shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
    """Carry out the broadcast's task; returns the client's new state and its reply."""
    if broadcast.task == "moments":
        return state, moments(shard, broadcast)
    if broadcast.task == "measure":
        return state, measure(shard, state, broadcast)
    new, sums = broadcast.settings.make_algorithm().client_update(shard, state, broadcast)
    if state is None:  # once per client is enough
        check_parts(sums, broadcast, shard.by_user.shape[1])
    return new, sums


def respond_together(
    shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
) -> tuple[Sequence[State | None], Sums]:
    """`respond` for one client, or for several in one batch if `can_batch` allows it."""
    if len(shards) > 1:
        return broadcast.settings.make_algorithm().batch_update(shards, states, broadcast)
    state, sums = respond(shards[0], states[0], broadcast)
    return [state], sums


def can_batch(broadcast: Broadcast) -> bool:
    """Whether `respond_together` accepts several clients."""
    return broadcast.task == "round" and broadcast.settings.make_algorithm().can_batch(broadcast)
