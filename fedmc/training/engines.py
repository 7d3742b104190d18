"""Which engine carries a simulation: a value, made of words once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import require, unknown
from fedmc.kernels import threads
from fedmc.training import memory
from fedmc.training.distributed import library, on_ray
from fedmc.training.distributed.engine import DistributedEngine
from fedmc.training.engine import Simulation
from fedmc.training.local import LocalEngine
from fedmc.types import Array, whole

EngineName = Literal["local", "ray"]
MAX_WORKERS = 10_000


class EngineChoice(Protocol):
    """An engine that can be opened."""

    def check_memory(self, shards: Sequence[Shard], settings: Settings, rounds: int) -> str | None:
        """Refuse a run that cannot fit into memory here; returns a message on that of a large run, or None."""
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

    def check_memory(self, shards: Sequence[Shard], settings: Settings, rounds: int) -> str | None:
        return memory.check(shards, settings, rounds, self.spill is not None)

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
        library.check_installed()
        if self.workers is not None:
            whole("workers", self.workers, 1, MAX_WORKERS)

    def check_memory(self, shards: Sequence[Shard], settings: Settings, rounds: int) -> str | None:
        return memory.check(shards, settings, rounds) if self.address is None else None

    @contextmanager
    def open(
        self, shards: Sequence[Shard], item_features: Array | None, objectives: Mapping[int, Objective]
    ) -> Iterator[Simulation]:
        shared = None if self.shared is None else Path(self.shared)
        with on_ray.joined(self.address, threads.available(), shared) as found:
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


def chosen_engine(
    engine: EngineName, address: str | None, workers: int | None, shared: str | Path | None
) -> EngineChoice:
    """The engine of these options."""
    given = {"address": address, "workers": workers, "shared": shared}
    meant = next((name for name, value in given.items() if value is not None), None)
    if NAMED[engine] is OnRay:
        return OnRay(address, workers, shared)
    require(meant is None, f"{meant} is for Ray: add engine='ray', or leave {meant} out")
    return as_engine(engine)


def engine_of(chosen: EngineChoice, spill: str | Path | None) -> EngineChoice:
    return chosen if spill is None else chosen.spilling(spill)
