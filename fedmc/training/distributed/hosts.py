"""What the driver needs of whatever runs its workers: Ray, or in tests this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedmc.errors import FedmcError
from fedmc.training.distributed.messages import Packed


class LostError(Exception):
    """A worker or its result is gone, and nobody knows whether the call had its effect."""


class WorkerError(FedmcError):
    """Workers were lost again and again."""


class Resources(NamedTuple):
    """What a run can use."""

    cpus: list[int]  # of each machine
    folder: Path  # a new one, which all machines see


class Hosts(Protocol):
    """Runs workers. A worker that is lost begins anew, and runs its next call."""

    def put(self, content: Packed) -> Any:
        """A reference to an argument of many calls, which travels to each machine once."""
        ...

    def start(self, work: Packed) -> Any:
        """A new `Worker`, as a handle."""
        ...

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """Begin a call; returns a reference to its result."""
        ...

    def result(self, reference: Any) -> Any:
        """Wait for a result. FedmcError: the call failed. LostError: there is no result."""
        ...

    def stop(self, worker: Any) -> None: ...
