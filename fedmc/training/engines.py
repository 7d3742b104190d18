"""Which engine carries a simulation: a value, made of words once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from fedmc.algorithms.objectives import Objective
from fedmc.data.partition import Shard
from fedmc.errors import require, unknown
from fedmc.training.distributed import on_ray
from fedmc.training.distributed.engine import DistributedEngine
from fedmc.training.engine import Simulation
from fedmc.training.local import LocalEngine
from fedmc.types import Array, whole

EngineName = Literal["local", "ray"]
MAX_WORKERS = 10_000


class EngineChoice(Protocol):
    """An engine that can be opened."""

    @property
    def here(self) -> bool:
        """Whether the whole run takes this machine's memory."""
        ...

    def open(
        self, shards: Sequence[Shard], item_features: Array | None, objectives: Mapping[int, Objective]
    ) -> AbstractContextManager[Simulation]: ...

    def spilling(self, folder: str | Path) -> EngineChoice:
        """The same, with the clients' states in this folder instead of in memory."""
        ...


@dataclass(frozen=True)
class Local:
    """All clients in this process."""

    spill: str | Path | None = None
    here = True

    def open(
        self, shards: Sequence[Shard], item_features: Array | None, objectives: Mapping[int, Objective]
    ) -> AbstractContextManager[Simulation]:
        return nullcontext(LocalEngine(shards, self.spill, item_features, objectives))

    def spilling(self, folder: str | Path) -> EngineChoice:
        return replace(self, spill=folder)


@dataclass(frozen=True)
class OnRay:
    """Clients in worker processes that Ray runs: on this machine or, with `address`, on those of a running cluster.

    Each worker holds the clients of a part of the ratings; by default there is one for each CPU, at most 8 on a
    machine. `shared` is a folder that all machines see, for shards and checkpoints; one machine needs none.
    """

    address: str | None = None
    workers: int | None = None
    shared: str | Path | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole("workers", self.workers, 1, MAX_WORKERS)

    @property
    def here(self) -> bool:
        return self.address is None

    @contextmanager
    def open(
        self, shards: Sequence[Shard], item_features: Array | None, objectives: Mapping[int, Objective]
    ) -> Iterator[Simulation]:
        shared = None if self.shared is None else Path(self.shared)
        with on_ray.joined(self.address, self.workers if self.here else None, shared) as found:
            engine = DistributedEngine(on_ray.RayHosts(), shards, item_features)
            with engine.running(found, objectives, self.workers):
                yield engine

    def spilling(self, folder: str | Path) -> EngineChoice:
        require(False, "spill is for the local engine; with Ray, more machines hold more states: leave it out")
        return self


NAMED: dict[str, type[Local] | type[OnRay]] = {"local": Local, "ray": OnRay}


def as_engine(given: EngineName | EngineChoice) -> EngineChoice:
    """An engine by its name, or one that is given."""
    if not isinstance(given, str):
        return given
    if given not in NAMED:
        raise unknown("engine", given, NAMED)
    return NAMED[given]()


def engine_of(chosen: EngineChoice, spill: str | Path | None) -> EngineChoice:
    return chosen if spill is None else chosen.spilling(spill)
