"""Engines carry a Broadcast down and Sums up: in this process, or across organisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedmc.messages import Broadcast, Sums


class Engine(Protocol):
    """The one method that the server needs of a transport, and the number of clients and items behind it."""

    @property
    def clients(self) -> int: ...
    @property
    def items(self) -> int: ...
    def ask(self, cast: Broadcast, clients: Sequence[int]) -> Sums: ...
