"""Taking the parts of members that leave out of the sum of a run that has ended, through one last secure sum.

take-out.json   in the run's folder: who leaves; it stays until the part is out, so that a kill in between does no harm

The server's sum is then exactly that of the others. The item factors follow from it as after any round, and a run that
goes on from this one begins with them. What others learnt from the leaver stays in their contributions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from fedmc.data.files import write_whole
from fedmc.errors import DataError, FedmcError, TooFewError, require
from fedmc.federation.server import checkpoint
from fedmc.federation.server.checkpoint import SavedRun
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Transport
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import engine_of, log
from fedmc.federation.server.signing import Signer
from fedmc.training.rounds import Checkpoint, Traffic, one_round

FILE = "take-out.json"


def asked(folder: Path) -> bool:
    return (folder / FILE).exists()


def ask(folder: RunFolder, names: Sequence[str]) -> None:
    """Note who is to be taken out of this run; refuse where that cannot be."""
    plan, state = folder.plan(), folder.status()
    check(plan, names)
    before = list(state.get("taken_out", []))
    cure = "finish it with `resume`, or name a finished run with --run"
    require(state["state"] == "finished", f"run {folder.path.name} is {state['state']}: {cure}")
    left = [name for name in plan.organisations if name not in (*before, *names)]
    require(bool(left), "nobody would be left in the sum: delete the run's folder instead")
    write_whole(folder.path / FILE, json.dumps(list(names)).encode())


def check(plan: RunPlan, names: Sequence[str]) -> None:
    """Refuse a run out of whose sum nothing can be taken."""
    settings = plan.settings
    algorithm = settings.make_algorithm()
    seen = f"in a run with privacy={settings.privacy.mode!r} the server has seen every message"
    require(bool(plan.identities), f"{seen}: nothing can be taken back; start a new run without {', '.join(names)}")
    require(
        algorithm.cumulative, f"{algorithm} keeps no sum of contributions: start a new run without {', '.join(names)}"
    )
    strange = [name for name in names if name not in plan.organisations]
    require(not strange, lambda: f"{strange[0]} was not in this run", DataError)


def take_out(folder: RunFolder, plan: RunPlan, transport: Transport, signer: Signer) -> None:
    """Ask all members for one more round, in which those that leave take their part out."""
    names: list[str] = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
    with folder.lock():
        before = list(folder.status().get("taken_out", []))
        folder.say(state="running", why="", taking_out=names)
        engine = engine_of(folder, plan, transport, signer)
        try:
            _take_out(folder, plan, engine, [plan.organisations.index(name) for name in names], before)
            (folder.path / FILE).unlink()
            folder.say(taken_out=[*before, *names])
            log.info("taken out of the sum: %s", ", ".join(names))
        except FedmcError as error:
            folder.say(why=f"{', '.join(names)} not taken out: {error}")
            raise
        finally:
            folder.say_absent(engine.absent, plan.organisations)
            folder.say(state="finished", taking_out=[], waiting=[])


def _take_out(folder: RunFolder, plan: RunPlan, engine: FederatedEngine, leaving: list[int], before: list[str]) -> None:
    found = checkpoint.load(folder.saved)
    engine.restore(found.counted, found.factors, found.measured)
    number, broadcast, server, start = found.checkpoint
    engine.asking.leaving = tuple(leaving)
    traffic, began = Traffic(engine), time.perf_counter()
    asked = broadcast._replace(task="round", round=number + 1, measured=False)
    among = tuple(k for k, name in enumerate(plan.organisations) if name not in before and k in engine.joined)
    server, took_part, following = one_round(traffic, asked, server, among)
    absent = [plan.organisations[k] for k in leaving if k not in took_part]
    if absent:
        raise TooFewError(f"{', '.join(absent)} did not take part: its node must run until its part is out; try again")
    now = Checkpoint(number + 1, following._replace(round=number + 1), server, start)
    saved = SavedRun(plan.run, now, engine.counted, plan.catalogue, engine.factors, engine.measured)
    checkpoint.save(folder.saved, saved)
    line = {
        "number": number + 1, "seconds": time.perf_counter() - began, "bytes_down": traffic.down,
        "bytes_up": traffic.up, "bytes_measured": 0, "participants": list(took_part),
        "taken_out": [plan.organisations[k] for k in leaving],
    }  # fmt: skip
    with open(folder.path / "history.jsonl", "a", encoding="utf-8") as history:
        history.write(json.dumps(line) + "\n")
