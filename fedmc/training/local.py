"""The engine of the simulation: all clients in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence, Set
from dataclasses import replace
from pathlib import Path

from fedmc.algorithms.client import can_batch, respond_together
from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.objectives import Objective, OwnObjective
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.kernels import threads
from fedmc.training.aggregation import aggregation_of
from fedmc.training.spill import SpilledStates
from fedmc.training.sums import Aggregation
from fedmc.types import Array

BATCH = 200_000  # ratings of a batch of small clients that are updated together, approximately


class LocalEngine:
    """The clients' shards and states; replies are added in the order of the client numbers.

    With `spill`, the states are kept in this folder instead of in memory. `objectives` are those of single clients.
    """

    def __init__(
        self, shards: Sequence[Shard], spill: str | Path | None = None, item_features: Array | None = None,
        objectives: Mapping[int, Objective] | None = None,
    ) -> None:  # fmt: skip
        self.shards, self.item_features = list(shards), item_features
        self._own = {client: OwnObjective(one) for client, one in (objectives or {}).items()}
        self.states: MutableSequence[State | None] = [None] * len(self.shards)
        if spill is not None:
            self.states = SpilledStates(spill, len(self.shards))
        self._before: dict[int, State | None] = {}
        self._joined: set[int] = set()

    @property
    def clients(self) -> int:
        return len(self.shards)

    @property
    def items(self) -> int:
        return int(self.shards[0].by_user.shape[1])

    simulated = True

    @property
    def joined(self) -> Set[int]:
        return self._joined

    def measures_ride(self, settings: Settings) -> bool:
        return False

    def measured_in(self, settings: Settings) -> Sequence[Sequence[int]]:
        return [range(self.clients)]

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of the clients' replies. All new states are kept or, if one client fails, none."""
        aggregation = aggregation_of(broadcast.settings.privacy)
        spilled = isinstance(self.states, SpilledStates)
        require(
            aggregation.can_spill() or not spilled,
            "secagg and clip keep the states in memory: leave out `spill`",
        )
        pending: dict[int, State | None] = {}
        replies = self._replies(broadcast, sorted(clients), aggregation, pending)
        total, factors = aggregation.combine(replies, broadcast, self.items)
        for client, factor in factors.items():
            pending[client] = aggregation.commit(pending[client], self.states[client], factor)
        self._keep(broadcast, pending)
        return replace(total, received=len(clients) * broadcast.nbytes)

    def told(self, client: int, broadcast: Broadcast) -> Broadcast:
        """A broadcast as this client answers it, with its own penalty and loss if it has any."""
        own = self._own.get(client)
        return broadcast if own is None else own.of(broadcast)

    def _replies(
        self, broadcast: Broadcast, clients: list[int], aggregation: Aggregation, pending: dict[int, State | None]
    ) -> Iterator[tuple[int, Sums]]:
        """The reply of each client or batch of clients; their new states go to `pending`."""
        together = aggregation.can_batch()
        alike = together and not self._own and can_batch(broadcast)
        groups = self._batches(clients) if alike else [[client] for client in clients]
        efforts = [sum(self.shards[k].by_user.nnz for k in group) * _effort(broadcast) for group in groups]

        def update(group: list[int]) -> tuple[Sequence[State | None], Sums]:
            asked = self.told(group[0], broadcast)
            if together:
                return respond_together([self.shards[k] for k in group], [self.states[k] for k in group], asked)
            state, reply = aggregation.reply(self.shards[group[0]], self.states[group[0]], asked)
            return [state], reply

        for group, (states, reply) in zip(groups, threads.in_order(update, groups, efforts), strict=True):
            pending.update(zip(group, states, strict=True))
            yield group[0], reply

    def _keep(self, broadcast: Broadcast, pending: dict[int, State | None]) -> None:
        if broadcast.task == "users":  # the clients that were not drawn in the same round
            self._before |= {client: self.states[client] for client in pending}
        if broadcast.task in STATEFUL_TASKS:
            self._before = {client: self.states[client] for client in pending}
            self._joined |= pending.keys()
        for client, state in pending.items():
            self.states[client] = state

    def _batches(self, clients: list[int]) -> list[list[int]]:
        """Batches of small clients that are updated together."""
        groups: list[list[int]] = []
        room = 0
        for client in clients:
            if room <= 0:
                groups.append([])
                room = BATCH
            groups[-1].append(client)
            room -= self.shards[client].by_user.nnz
        return groups

    def rollback(self) -> None:
        """Restore the states that the clients of the last round had before it."""
        for client, state in self._before.items():
            self.states[client] = state
            if state is None:
                self._joined.discard(client)


def _effort(broadcast: Broadcast) -> float:
    """A rough estimate of nanoseconds per rating."""
    square = broadcast.settings.width**2
    if broadcast.task in ("moments", "measure"):
        return 10 + (10 + square / 12) * broadcast.settings.fold_in
    return 45 + square / 3
