"""A training run of a federation: its folder at the server, and how it is started, resumed, stopped and finished.

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
from fedmc.data import catalogue as catalogues
from fedmc.data.files import write_whole
from fedmc.errors import DataError, Diverged, FedmcError, require
from fedmc.federation.logs import formatter, with_fields
from fedmc.federation.news import News
from fedmc.federation.protocol import OLDEST, OLDEST_SECURE, Served
from fedmc.federation.server import checkpoint, secagg_record, warm
from fedmc.federation.server.approval import ApprovalTransport
from fedmc.federation.server.checkpoint import SavedRun
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Absent, Members, Transport
from fedmc.federation.server.round_words import in_fields, in_words
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.server.signing import Signer
from fedmc.federation.server.telling import TellingTransport
from fedmc.federation.server.witness import Witness
from fedmc.federation.setup.identities import pinned
from fedmc.federation.setup.members import LIST
from fedmc.training.rounds import Checkpoint, Round, rounds
from fedmc.types import Array

log = logging.getLogger("fedmc.server")


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


def conduct(folder: RunFolder, transport: Transport, signer: Signer, catalogue: Path | None = None) -> None:
    """Conduct the whole run, or the rest of it if there is a checkpoint; then send the final V to every node.

    `catalogue` is the server's: a run begins with the features that it holds of the items.
    """
    plan = folder.plan()
    with folder.lock():
        if folder.status()["state"] == "diverged":
            raise Diverged(folder.status()["round"], "this run diverged", "start a new one with other settings")
        folder.say(state="running", round=0, rounds=plan.rounds, why="", online=[], waiting=[], absent=[])
        folder.say(awaiting_approval=[], id=plan.run)
        try:
            last = _train(folder, plan, transport, signer, catalogue)
            folder.say(state="finished", round=plan.rounds, has_model=last, waiting=[])
        except StoppedError as error:
            folder.say(state="stopped", why=str(error), waiting=[])
        except (SystemExit, KeyboardInterrupt):  # the process is told to end: the run is broken off, as by a kill
            raise
        except BaseException as error:
            state = "diverged" if isinstance(error, Diverged) else "failed"
            folder.say(state=state, why=str(error) or type(error).__name__, waiting=[])
            raise


def _train(folder: RunFolder, plan: RunPlan, transport: Transport, signer: Signer, catalogue: Path | None) -> list[str]:
    """The organisations that have the model in the end."""
    features = None if catalogue is None or folder.saved.exists() else _item_features(plan, catalogue)
    engine = engine_of(folder, plan, transport, signer, features)
    try:
        return _rounds(folder, plan, engine)
    finally:
        folder.say_absent(engine.absent, plan.organisations)


def engine_of(
    folder: RunFolder, plan: RunPlan, transport: Transport, signer: Signer, features: Array | None = None
) -> FederatedEngine:
    """The engine of a run's nodes; `features` of the items are needed only to begin a run."""
    names = plan.organisations
    oldest = max(plan.oldest_protocol, OLDEST_SECURE) if plan.identities else plan.oldest_protocol
    members = Members(
        len(names), plan.items, plan.catalogue, plan.quorum, pinned(plan.identities), names, Served(oldest), plan.listed
    )

    def on_waiting(clients: list[int]) -> None:
        folder.say(awaiting_approval=[names[k] for k in clients])
        listed = ", ".join(map(members.name, clients))
        if listed:
            log.warning("waiting for %s: `fedmc node approve %s FOLDER` there", listed, plan.run)

    telling = TellingTransport(transport, members, signer, news_of(folder.path))
    approved = ApprovalTransport(telling, plan.patience, on_waiting)
    record = SecAggRecord.load(folder.path / secagg_record.FILE)
    return FederatedEngine(approved, plan.run, members, signer, Witness.of_run(folder.path), features, record)


def news_of(folder: Path) -> News:
    """What the nodes of a run may not know yet: its list of members and its catalogue, if these are kept with it."""
    listed, items = folder / LIST, folder / warm.ITEMS
    return News(*(path.read_bytes() if path.exists() else b"" for path in (listed, items)))


def _item_features(plan: RunPlan, path: Path) -> Array | None:
    """The features of the server's catalogue, which must still be the one that the run was planned with."""
    found = catalogues.load(path)
    cure = "restore it and `fedmc federation resume`, or start a new run"
    require(found.hash == plan.catalogue, f"{path} is no longer the catalogue of run {plan.run}: {cure}", DataError)
    return found.item_features


def _rounds(folder: RunFolder, plan: RunPlan, engine: FederatedEngine) -> list[str]:
    path, everyone = folder.saved, range(len(plan.organisations))
    last: Checkpoint | None = None
    if path.exists():
        found = checkpoint.load(path)
        engine.restore(found.counted, found.factors, found.measured)
        last = found.checkpoint
        folder.say(round=last.number)

    def on_checkpoint(now: Checkpoint) -> None:
        nonlocal last
        last = now
        saved = SavedRun(plan.run, now, engine.counted, plan.catalogue, engine.factors, engine.measured)
        checkpoint.save(path, saved)
        engine.asking.record.forget_sums()
        folder.say(round=now.number)
        folder.say_absent(engine.absent, plan.organisations)

    if last is None or not _is_told(folder, plan.rounds):
        previous = warm.previous_of(folder.path, plan.settings) if plan.start_from else None
        running = rounds(
            engine, plan.settings, measure_every=plan.measure_every, last=plan.rounds, checkpoint=last,
            on_checkpoint=on_checkpoint, previous=previous,
        )  # fmt: skip
        _record(folder, running, plan.rounds)
    assert last is not None
    return [plan.organisations[k] for k in engine.finish(last.broadcast, everyone)]


def _is_told(folder: RunFolder, number: int) -> bool:
    """Whether the history has this round, or a later one."""
    return max((line["number"] for line in folder.history()), default=-1) >= number


def _record(folder: RunFolder, running: Iterator[Round], last: int) -> None:
    """Write a line of history for each round up to the last; a resumed run may repeat one that is there."""
    there = {line["number"] for line in folder.history()}
    with open(folder.path / "history.jsonl", "a", encoding="utf-8") as history:
        for round in running:
            if round.number not in there:
                line = round.record()
                history.write(json.dumps(line) + "\n")
                history.flush()
                log.info("%s", in_words(line, last), extra=with_fields(**in_fields(line, last)))
            folder.check_stop()
            if round.number >= last:
                return
