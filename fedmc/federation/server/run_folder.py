"""The folder of a training run at the server.

plan.json       the run's settings, organisations and items; written once
catalogue.json  the items; of the run that this one goes on from, previous.npz and previous-catalogue.json
members.json    under secure aggregation: the list of members, all or none of whom have the same
server.npz      the checkpoint; written before each next round begins
secagg.json     under secure aggregation: the last session, and what nodes are asked next with; before each exchange
history.jsonl   a line a round
run.log         who was left out of a round and why, and what else the server has to say
status.json     what a person wants to know: the round, who is there, who is late or lost
stop            asks the run to stop
lock            held by the process that conducts the run
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedmc.algorithms.settings import Settings
from fedmc.data.files import write_whole
from fedmc.errors import DataError, FedmcError
from fedmc.federation.logs import formatter
from fedmc.federation.protocol import OLDEST
from fedmc.federation.server.members import Absent


class StoppedError(FedmcError):
    """A user asked the run to stop."""


class RunPlan(NamedTuple):
    run: str  # its id, by which nodes know it
    settings: Settings
    organisations: list[str]
    nodes: list[int]  # Flower's id of each organisation's node
    catalogue: str  # hash
    items: int
    rounds: int
    measure_every: int
    patience: float  # seconds that a round waits for late nodes
    quorum: int
    identities: tuple[str, ...] = ()  # public keys of the organisations, for secure aggregation
    oldest_protocol: int = OLDEST  # that its nodes may speak
    start_from: str = ""  # the name of the run that it goes on from
    listed: str = ""  # the hash of the list of members


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: list[str] = []
        self._states: dict[str, tuple[tuple[bool, bool], float]] = {}  # online and asked, and since when

    @property
    def saved(self) -> Path:
        """The checkpoint."""
        return self.path / "server.npz"

    def write_plan(self, plan: RunPlan) -> None:
        self.path.mkdir(parents=True, mode=0o700)
        words = plan._asdict() | {"settings": plan.settings.to_dict()}
        write_whole(self.path / "plan.json", json.dumps(words, indent=1).encode())

    def plan(self) -> RunPlan:
        try:
            words = json.loads((self.path / "plan.json").read_text(encoding="utf-8"))
            plan = RunPlan(**words | {"settings": Settings.from_dict(words["settings"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{self.path} is not the folder of a run: {error}") from None
        self._names = plan.organisations
        return plan

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = {"round": 0} | json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"state": "not begun", "round": 0}
        if found["state"] == "running" and not self.locked():
            found |= {"state": "broken off", "why": "the process that conducted it died: resume it"}
        return found

    def say(self, **words: Any) -> None:
        """Update fields of the status."""
        try:
            old = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            old = {}
        write_whole(self.path / "status.json", json.dumps(old | words | {"at": time.time()}).encode())

    def say_absent(self, absent: Sequence[Absent], names: Sequence[str]) -> None:
        """Who was left out last, and why."""
        self.say(absent=[one._asdict() | {"organisation": names[one.client]} for one in absent[-20:]])

    def on_look(self, online: set[int], waiting: set[int]) -> None:
        """The transport calls this once a second with the nodes that are online and those that have yet to answer."""
        self.check_stop()
        names = self._names
        there, late = [names[k] for k in sorted(online)], [names[k] for k in sorted(waiting)]
        for k, name in enumerate(names):
            now = k in online, k in waiting
            if self._states.get(name, (None, 0.0))[0] != now:
                self._states[name] = now, time.time()
        self.say(online=there, waiting=late, since={name: at for name, (_, at) in self._states.items()})

    def history(self) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "history.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError):  # a line that was being written when its process was killed
                found.append(json.loads(line))
        return found

    def log_to_file(self, log_format: str = "text") -> None:
        """From now on, what this process logs about the federation is in the run's folder too."""
        handler = logging.FileHandler(self.path / "run.log")
        handler.setFormatter(formatter(log_format))
        logger = logging.getLogger("fedmc")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)

    def ask_to_stop(self) -> None:
        (self.path / "stop").touch()

    def check_stop(self) -> None:
        if (self.path / "stop").exists():
            raise StoppedError("it was asked to stop")

    def locked(self) -> bool:
        """Whether a process is conducting this run."""
        try:
            with self.lock(fcntl.LOCK_SH, 0):
                return False
        except BlockingIOError:
            return True

    @contextmanager
    def lock(self, kind: int = fcntl.LOCK_EX, seconds: float = 2) -> Iterator[None]:
        """Hold the run's lock. It retries for a while, since `locked` also takes the lock for a moment."""
        file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until = time.monotonic() + seconds
            while True:
                try:
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(0.05)
            yield
        finally:
            os.close(file)
