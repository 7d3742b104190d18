"""Some clients of a simulation: their shards and states, and their replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from fedmc.algorithms.client import can_batch, respond_together
from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.objectives import Objective, OwnObjective
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.kernels import threads
from fedmc.training.sums import Aggregation
from fedmc.training.tree import Piece, Share

BATCH = 200_000  # ratings of a batch of small clients that are updated together, approximately
Pending = dict[int, State | None]  # states that are not kept yet
T_co = TypeVar("T_co", covariant=True)


class ByClient(Protocol[T_co]):
    """A list, or a mapping from the numbers of some clients."""

    def __getitem__(self, client: int, /) -> T_co: ...


class Writable(ByClient[State | None], Protocol):
    def __setitem__(self, client: int, state: State | None, /) -> None: ...


class Everybody:
    """What every engine of a simulation says of its clients."""

    shards: Sequence[Shard]
    simulated = True

    @property
    def clients(self) -> int:
        return len(self.shards)

    @property
    def items(self) -> int:
        return int(self.shards[0].by_user.shape[1])

    def measures_ride(self, settings: Settings) -> bool:
        return False

    def measured_in(self, settings: Settings) -> Sequence[Sequence[int]]:
        return [range(self.clients)]


class Members:
    """Some clients; `objectives` are those of single ones."""

    def __init__(
        self, shards: ByClient[Shard], states: Writable, objectives: Mapping[int, Objective] | None = None
    ) -> None:
        self._shards, self._states = shards, states
        self._own = {client: OwnObjective(one) for client, one in (objectives or {}).items()}
        self._before: Pending = {}
        self.joined: set[int] = set()

    def told(self, client: int, broadcast: Broadcast) -> Broadcast:
        """A broadcast as this client answers it, with its own penalty and loss if it has any."""
        own = self._own.get(client)
        return broadcast if own is None else own.of(broadcast)

    def replies(
        self, broadcast: Broadcast, clients: Sequence[int], share: Share, aggregation: Aggregation, pending: Pending
    ) -> Iterator[Piece]:
        """The reply of each client or batch of clients, in ascending order; their new states go to `pending`."""
        together, blocks = aggregation.can_batch(), share.blocks(clients)
        alike = together and not self._own and can_batch(broadcast)
        groups = self._batches(clients, blocks) if alike else [[client] for client in clients]
        efforts = [sum(self._shards[k].by_user.nnz for k in group) * _effort(broadcast) for group in groups]

        def update(group: list[int]) -> tuple[Sequence[State | None], Sums]:
            asked = self.told(group[0], broadcast)
            if together:
                return respond_together([self._shards[k] for k in group], [self._states[k] for k in group], asked)
            state, reply = aggregation.reply(self._shards[group[0]], self._states[group[0]], asked)
            return [state], reply

        for group, (states, reply) in zip(groups, threads.in_order(update, groups, efforts), strict=True):
            pending.update(zip(group, states, strict=True))
            yield Piece(group[0], blocks[group[0]], reply)

    def keep(self, task: str, pending: Pending) -> None:
        """Keep the new states, and what `rollback` needs."""
        if task == "users":  # the clients that were not drawn in the same round
            self._before |= {client: self._states[client] for client in pending}
        if task in STATEFUL_TASKS:
            self._before = {client: self._states[client] for client in pending}
            self.joined |= pending.keys()
        for client, state in pending.items():
            self._states[client] = state

    def rollback(self) -> None:
        """Restore the states that the clients of the last round had before it."""
        for client, state in self._before.items():
            self._states[client] = state
            if state is None:
                self.joined.discard(client)

    def _batches(self, clients: Sequence[int], blocks: Mapping[int, int]) -> list[list[int]]:
        """Batches of small clients of one block that are updated together."""
        groups: list[list[int]] = []
        room, block = 0, -1
        for client in clients:
            if room <= 0 or blocks[client] != block:
                groups.append([])
                room, block = BATCH, blocks[client]
            groups[-1].append(client)
            room -= self._shards[client].by_user.nnz
        return groups


def _effort(broadcast: Broadcast) -> float:
    """A rough estimate of nanoseconds per rating."""
    square = broadcast.settings.width**2
    if broadcast.task in ("moments", "measure"):
        return 10 + (10 + square / 12) * broadcast.settings.fold_in
    return 45 + square / 3
