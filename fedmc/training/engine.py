"""Engines carry broadcasts to clients and return the sum of their replies: in this process, or across organisations."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.types import Array


class Engine(Protocol):
    """What the server's rounds need: to ask clients, and to roll back a round that cannot be counted."""

    @property
    def clients(self) -> int: ...
    @property
    def items(self) -> int: ...
    @property
    def item_features(self) -> Array | None:
        """A row of public features for each item, if there are any."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether all clients are in this process, so that measurements leave no organisation."""
        ...

    @property
    def joined(self) -> Set[int]:
        """The clients that have contributed to the server's sum."""
        ...

    def measures_ride(self, settings: Settings) -> bool:
        """Whether measurements at V come with the updates at this V, one round later, instead of being asked for."""
        ...

    def measured_in(self, settings: Settings) -> Sequence[Sequence[int]]:
        """Whom to ask for a measurement, in turn; the last answer is the total."""
        ...

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums: ...
    def rollback(self) -> None: ...


class Simulation(Engine, Protocol):
    """An engine whose clients are all simulated, and can be read."""

    @property
    def shards(self) -> Sequence[Shard]: ...
    @property
    def states(self) -> Sequence[State | None]: ...
    def told(self, client: int, broadcast: Broadcast) -> Broadcast:
        """A broadcast as this client answers it, with its own penalty and loss if it has any."""
        ...
