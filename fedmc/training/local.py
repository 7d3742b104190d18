"""The engine of the simulation: all clients in this process."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import replace
from pathlib import Path

from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.training.aggregation import aggregation_of
from fedmc.training.members import Everybody, Members, Pending
from fedmc.training.spill import SpilledStates
from fedmc.training.tree import Share
from fedmc.types import Array


class LocalEngine(Everybody, Members):
    """The clients' shards and states; replies are added in the order of a fixed tree.

    With `spill`, the states are kept in this folder instead of in memory. `objectives` are those of single clients.
    """

    def __init__(
        self, shards: Sequence[Shard], spill: str | Path | None = None, item_features: Array | None = None,
        objectives: Mapping[int, Objective] | None = None,
    ) -> None:  # fmt: skip
        self.shards, self.item_features = list(shards), item_features
        self.states: MutableSequence[State | None] = [None] * len(self.shards)
        if spill is not None:
            self.states = SpilledStates(spill, len(self.shards))
        super().__init__(self.shards, self.states, objectives)

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of the clients' replies. All new states are kept or, if one client fails, none."""
        aggregation = aggregation_of(broadcast.settings.privacy)
        spilled = isinstance(self.states, SpilledStates)
        require(
            aggregation.can_spill() or not spilled,
            "secagg and clip keep the states in memory: leave out `spill`",
        )
        pending: Pending = {}
        replies = self.replies(broadcast, sorted(clients), Share.all(len(clients)), aggregation, pending)
        total, factors = aggregation.combine(replies, broadcast, self.items)
        for client, factor in factors.items():
            pending[client] = aggregation.commit(pending[client], self.states[client], factor)
        self.keep(broadcast.task, pending)
        return replace(total, received=len(clients) * broadcast.nbytes)
