"""Conducts a training run: it is started, resumed, stopped and finished."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from fedmc.data import catalogue as catalogues
from fedmc.errors import DataError, Diverged, require
from fedmc.federation.logs import with_fields
from fedmc.federation.news import News
from fedmc.federation.protocol import OLDEST_SECURE, Served
from fedmc.federation.server import checkpoint, secagg_record, warm
from fedmc.federation.server.approval import ApprovalTransport
from fedmc.federation.server.checkpoint import SavedRun
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Members, Transport
from fedmc.federation.server.round_words import in_fields, in_words
from fedmc.federation.server.run_folder import RunFolder, RunPlan, StoppedError
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.server.signing import Signer
from fedmc.federation.server.telling import TellingTransport
from fedmc.federation.server.witness import Witness
from fedmc.federation.setup.identities import pinned
from fedmc.federation.setup.members import LIST
from fedmc.training.rounds import Checkpoint, Round, rounds
from fedmc.types import Array

log = logging.getLogger("fedmc.server")


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
        folder.say(round=now.number, visible=engine.visible(plan.organisations))
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
