"""Workers in this process, which lose themselves and their results as told; and runs to compare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.training.distributed.engine import DistributedEngine
from fedmc.training.distributed.hosts import LostError, Resources
from fedmc.training.distributed.messages import Packed, pack, unpack
from fedmc.training.distributed.worker import Worker
from fedmc.training.rounds import rounds

Fate = Callable[[], str]  # of a call: "ok", "lost before" or "lost after" it had its effect, "result lost"


class Handle:
    def __init__(self, work: Packed) -> None:
        self.work, self.worker, self.stopped = work, Worker(work), False


class HostsHere:
    """Everything travels as bytes, as between processes."""

    def __init__(self, fate: Fate = lambda: "ok") -> None:
        self.fate, self.losses, self.handles = fate, 0, []

    def put(self, content: Packed) -> Packed:
        return content

    def start(self, work: Packed) -> Handle:
        self.handles.append(Handle(work))
        return self.handles[-1]

    def call(self, worker: Handle, method: str, *arguments):
        assert not worker.stopped
        fate = self.fate()
        self.losses += fate != "ok"
        arguments = [one if isinstance(one, Packed) else unpack(pack(one)) for one in arguments]
        if fate == "lost before":
            worker.worker = Worker(worker.work)
            return LostError(fate)
        try:
            found = getattr(worker.worker, method)(*arguments)
        except Exception as error:
            return error
        if fate == "lost after":
            worker.worker = Worker(worker.work)
        return found if fate == "ok" else LostError(fate)

    def result(self, reference):
        if isinstance(reference, Exception):
            raise reference
        return reference

    def stop(self, worker: Handle) -> None:
        worker.stopped = True


@contextmanager
def engine_here(shards, folder: Path, workers: int, fate: Fate = lambda: "ok", objectives=None):
    folder.mkdir(exist_ok=True)
    hosts = HostsHere(fate)
    engine = DistributedEngine(hosts, shards)
    with engine.running(Resources([2], folder), objectives or {}, workers):
        yield engine
    assert all(handle.stopped for handle in hosts.handles)


def history(engine, settings: Settings, number: int, **given) -> list[dict]:
    """Everything that rounds tell, but the times: the bits of arrays, and numbers."""
    found = []
    for round in islice(rounds(engine, settings, **given), number + 1):
        record = round.record()
        record.pop("seconds")
        arrays = {"V": round.V} | dict(round.broadcast.shared.arrays)
        found.append(record | {name: array.tobytes() for name, array in arrays.items()})
    return found


def bits_of_states(engine) -> list:
    return [None if state is None else _bits(state) for state in engine.states]


def _bits(value) -> object:
    if isinstance(value, tuple):
        return type(value).__name__, [_bits(one) for one in value]
    return None if value is None else (np.asarray(value).dtype.str, np.shape(value), np.asarray(value).tobytes())
