"""Ray: a cluster of this machine for one run, or a running cluster that is joined."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmc.errors import FedmcError, InputError, require
from fedmc.training.distributed import library
from fedmc.training.distributed.hosts import LostError, Resources
from fedmc.training.distributed.messages import Packed
from fedmc.training.distributed.worker import Worker

RETRIES = 3  # of a call by Ray, each with a worker that is started anew
LONGEST = 40  # characters of Ray's folder: its sockets lie there, and their paths are limited
SHORT = Path("/tmp")
ANSWER = 5.0  # seconds that an address has to answer
STORE = 2 << 30  # bytes of the object store of a cluster of this machine, at most
SHARED_MEMORY = Path("/dev/shm")
LOOPBACK = "127.0.0.1"
CURE = "start one with `ray start --head`, or leave the address out to use this machine"


class RayHosts:
    """Workers are actors, spread over the machines. They take no CPUs of Ray's count: a lost one can always restart."""

    def __init__(self) -> None:
        options = {"max_restarts": -1, "max_task_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        self._ray = library.ray()
        self._kind = self._ray.remote(num_cpus=0, **options)(Worker)

    def put(self, content: Packed) -> Any:
        return self._ray.put(content)

    def start(self, work: Packed) -> Any:
        return self._kind.remote(work)

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        return getattr(worker, method).remote(*arguments)

    def result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, FedmcError) else error from None
        except self._ray.exceptions.RayError as error:
            raise LostError(type(error).__name__) from None

    def stop(self, worker: Any) -> None:
        self._ray.kill(worker)


@contextmanager
def joined(address: str | None, cpus: int | None, shared: Path | None) -> Iterator[Resources]:
    """Join the cluster at an address or, without one, start Ray here; afterwards everything is as before.

    A Ray that this process uses already is used, and left as it is.
    """
    ray = library.ray(alone=address is None)
    ours = not ray.is_initialized()
    require(ours or address is None, "this process uses Ray already: leave the address out, or call ray.shutdown()")
    place = Path(tempfile.gettempdir())
    with _folder(place if len(str(place)) + len("/fedmc-ray-12345678") <= LONGEST else SHORT) as temporary:
        if ours:
            with _signals():
                _start(cpus, temporary) if address is None else _join(address)
            _silence()
        try:
            machines = [node for node in ray.nodes() if node["Alive"]]
            several = len({node["NodeManagerAddress"] for node in machines}) > 1
            needed = f"the cluster has {len(machines)} machines: name a folder that all of them see (--shared FOLDER)"
            require(shared is not None or not several, needed)
            with _folder(shared or place) as folder:
                yield Resources([int(node["Resources"].get("CPU", 0)) for node in machines], folder)
        finally:
            if ours:
                ray.shutdown()


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    """A new folder that only this user reads, removed afterwards."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        found = Path(tempfile.mkdtemp(prefix="fedmc-ray-", dir=place))
    except OSError as error:
        raise InputError(f"cannot write to the folder {place}: {error.strerror}") from None
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


def _start(cpus: int | None, temporary: Path) -> None:
    """A cluster of this machine, which listens on the loopback interface."""
    memory = min(STORE, shutil.disk_usage(SHARED_MEMORY).free // 2) if SHARED_MEMORY.is_dir() else STORE
    try:
        library.ray().init(
            address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=memory, _node_ip_address=LOOPBACK, _temp_dir=str(temporary),
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"Ray does not start on this machine: {_first_line(error)}") from None


def _join(address: str) -> None:
    """Join a cluster. An address that nobody answers at is refused first: Ray itself would try for a long time."""
    host, _, port = address.rpartition(":")
    known = address == "auto" or (bool(host) and port.isdigit() and "/" not in host)
    require(known, f"the address of a Ray cluster is HOST:PORT, or auto, got {address!r}")
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), ANSWER).close()
        library.ray().init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {address!r} ({_first_line(error)}): {CURE}") from None


def _silence() -> None:
    """Ray prints what it starts again on standard output, which is for results."""
    said: Any = sys.modules.get("ray._private.worker")
    if hasattr(said, "_worker_logs_enabled"):
        said._worker_logs_enabled = False


def _first_line(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).split("\n", 1)[0]


@contextmanager
def _signals() -> Iterator[None]:
    """Ray takes over SIGTERM; the handler of before is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
