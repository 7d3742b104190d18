"""Engines carry a Broadcast down and Sums up: in this process, or across organisations."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from fedmc.algorithms.messages import Broadcast, Sums


class Engine(Protocol):
    """What the server needs of a transport: to ask clients, and to roll back a round that cannot be counted."""

    @property
    def clients(self) -> int: ...
    @property
    def items(self) -> int: ...
    @property
    def simulated(self) -> bool:
        """All clients are in this process: what is measured leaves nobody."""
        ...

    @property
    def joined(self) -> Set[int]:
        """The clients that have a part in the server's sum."""
        ...

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums: ...
    def rollback(self) -> None: ...
