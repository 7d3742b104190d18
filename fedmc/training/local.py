"""All clients in this process: the simulation."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from fedmc.algorithms.client import ClientState, independent, respond_together
from fedmc.algorithms.messages import CHANGING, Broadcast, Sums, add_up
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.kernels import threads
from fedmc.training import clipping
from fedmc.training.fixed_point import length_of, respond_in_words, to_sums
from fedmc.training.spill import Spilled

TOGETHER = 200_000  # ratings of clients that take their turns together


class LocalEngine:
    """Shards and the states of their clients; replies are added in the order of the client numbers.

    With `spill`, a folder, the states lie there and not in memory. With `privacy="secagg"` it adds up the same whole
    numbers as a federation does; masks would go out in the sum, and in one process there is nobody to hide from.
    """

    def __init__(self, shards: Sequence[Shard], spill: str | Path | None = None) -> None:
        self.shards = list(shards)
        self.states: MutableSequence[ClientState | None] = [None] * len(self.shards)
        if spill is not None:
            self.states = Spilled(spill, len(self.shards))
        self._before: dict[int, ClientState | None] = {}
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

    def ask(self, cast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of the clients' replies. All new states are kept, or, where one client fails, none."""
        if cast.settings.hidden or cast.settings.clip:
            return self._ask_in_words(cast, sorted(clients))
        pending: dict[int, ClientState | None] = {}
        groups = self._groups(sorted(clients), cast)
        efforts = [sum(self.shards[k].by_user.nnz for k in group) * _effort(cast) for group in groups]

        def turns(group: list[int]) -> tuple[Sequence[ClientState | None], Sums]:
            return respond_together([self.shards[k] for k in group], [self.states[k] for k in group], cast)

        def kept() -> Iterator[Sums]:
            for group, (states, reply) in zip(groups, threads.in_order(turns, groups, efforts), strict=True):
                pending.update(zip(group, states, strict=True))
                yield reply

        total = add_up(kept())
        self._keep(cast, pending)
        return total

    def _ask_in_words(self, cast: Broadcast, clients: list[int]) -> Sums:
        require(isinstance(self.states, list), "secagg and clip keep the states in memory: leave out `spill`")
        pending: dict[int, Any] = {}
        changes: dict[int, Any] = {}
        total = np.zeros(length_of(cast, self.items), np.int64)
        efforts = [self.shards[k].by_user.nnz * _effort(cast) for k in clients]

        def turn(client: int) -> tuple[Any, Any]:
            state: Any = self.states[client]
            return respond_in_words(self.shards[client], state, cast)

        for client, (state, words) in zip(clients, threads.in_order(turn, clients, efforts), strict=True):
            pending[client] = state
            if cast.settings.clip and cast.task in CHANGING:
                changes[client], total[-1] = words[:-1], total[-1] + words[-1]  # how many joined is not clipped
            else:
                total += words
        for client, factor in clipping.factors(changes, cast.settings.clip).items() if changes else ():
            total[:-1] += clipping.counted(changes[client], factor)
            before: Any = self.states[client]
            pending[client] = clipping.settle(pending[client], before, factor)
        self._keep(cast, pending)
        return to_sums(total, cast, self.items, total.nbytes * len(clients))

    def _keep(self, cast: Broadcast, pending: dict[int, ClientState | None]) -> None:
        if cast.task in CHANGING:
            self._before = {client: self.states[client] for client in pending}
            self._joined |= pending.keys()
        for client, state in pending.items():
            self.states[client] = state

    def _groups(self, clients: list[int], cast: Broadcast) -> list[list[int]]:
        """Each client by itself, or where they may take their turns together, some together."""
        if not independent(cast):
            return [[client] for client in clients]
        groups: list[list[int]] = []
        room = 0
        for client in clients:
            if room <= 0:
                groups.append([])
                room = TOGETHER
            groups[-1].append(client)
            room -= self.shards[client].by_user.nnz
        return groups

    def undo(self) -> None:
        """Put the clients of the last round back to where they were before it."""
        for client, state in self._before.items():
            self.states[client] = state
            if state is None:
                self._joined.discard(client)


def _effort(cast: Broadcast) -> float:
    """Nanoseconds a rating, or so."""
    square = cast.settings.width**2
    if cast.task in ("moments", "measure"):
        return 10 + (10 + square / 12) * cast.settings.fold_in
    return 45 + square / 3
