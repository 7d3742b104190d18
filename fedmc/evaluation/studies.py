"""Run a plan into a folder: each of its studies into a folder of its own, over several processes.

plan.json                                      the plan
PART/study.json, PART/outcomes/, PART/times/   as of a comparison
PART/iterates/CASE-SEED.npz                    V of each round, if it is asked for
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedmc.data.files import write_whole
from fedmc.data.ratings import Ratings
from fedmc.errors import FedmcError, InputError, require
from fedmc.evaluation import mapped
from fedmc.evaluation.outcomes import ITERATES, OUTCOMES, TIMES, Outcome, file_names, store, stored
from fedmc.evaluation.plan import Part, Plan, in_section
from fedmc.evaluation.runner import Source, check_folder, opened, table_of
from fedmc.evaluation.study import Study
from fedmc.evaluation.workers import Record, Task, Watch, run_tasks

PLAN, LOCK, MAPPED = "plan.json", "lock", "ratings-"
Told = Callable[[dict[str, object]], object]


def _ignore(*told: object) -> None:
    """Nobody listens."""


class Calls(NamedTuple):
    """Functions of the caller. `on_round` and `on_client` get a dictionary of plain numbers and names."""

    on_round: Told = _ignore
    on_client: Told | None = None
    on_done: Callable[[Task, bool], object] = _ignore  # whether it ran now, or was there
    on_death: Callable[[Task, str], object] = _ignore


class Finished(NamedTuple):
    """A part of a plan with all its outcomes, in the order of cases and seeds."""

    part: Part
    outcomes: list[Outcome]


def run_plan(plan: Plan, folder: Path, jobs: int = 1, calls: Calls | None = None) -> list[Finished]:
    """Run what has no outcome yet, over `jobs` processes of one thread each; returns all outcomes."""
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    calls = calls or Calls()
    check_plan(plan, folder)
    with _locked(folder):
        _clean(plan, folder)
        with tempfile.TemporaryDirectory(prefix=MAPPED, dir=folder) as scratch:
            places = {part.name: _Place.of(part, folder) for part in plan.parts}
            done: dict[tuple[str, str, int], Outcome] = {}
            waiting: list[Task] = []
            for task, outcome in _tasks(plan, places, Path(scratch), calls.on_client is not None):
                if outcome is None:
                    waiting.append(task)
                else:
                    done[task.part, task.case.label, task.seed] = outcome
                    calls.on_done(task, False)
            write_whole(folder / PLAN, _content(plan))

            def on_done(task: Task, outcome: Outcome) -> None:
                store(places[task.part].folder, places[task.part].names[task.case.label], outcome)
                done[task.part, task.case.label, task.seed] = outcome
                calls.on_done(task, True)

            run_tasks(waiting, jobs, _watch(calls, places, on_done))
    return [
        Finished(part, [done[part.name, case.label, seed] for case in part.study.cases for seed in part.study.seeds])
        for part in plan.parts
    ]


class _Place(NamedTuple):
    """Where the outcomes of a part are."""

    part: Part
    folder: Path
    names: dict[str, str]  # of files, by the labels of cases

    @classmethod
    def of(cls, part: Part, folder: Path) -> _Place:
        return cls(part, folder / part.folder, file_names(part.study.labels))


def _tasks(
    plan: Plan, places: dict[str, _Place], scratch: Path, clients: bool
) -> Iterator[tuple[Task, Outcome | None]]:
    """All runs of the plan, those of one split together, each with the outcome that is there."""
    tables: dict[str, Ratings] = {}  # the last one that was read
    for number, part in enumerate(plan.parts):
        study, place = part.study, places[part.name]
        how = _reading(study)
        if how not in tables:
            tables = {how: table_of(study)}
        try:
            source = opened(study, place.folder, tables[how], grows=True)
        except FedmcError as error:
            raise in_section(f"data set {part.name}", error) from None
        data = scratch / str(number)
        for seed in study.seeds:
            for case in study.cases:
                path = place.folder / ITERATES / f"{place.names[case.label]}-{seed}.npz"
                iterates = path if plan.iterates and case.kind.has_server else None
                key = study.key(case, seed, source.fingerprint)
                outcome = stored(place.folder, place.names[case.label], seed, key)
                if outcome is not None and outcome.rows and iterates is not None and not iterates.exists():
                    outcome = None
                if outcome is None:
                    _map(source, data, iterates)
                yield Task(part.name, study, case, seed, key, data, iterates, clients), outcome


def _map(source: Source, data: Path, iterates: Path | None) -> None:
    """Put the ratings where workers find them, once."""
    if iterates is not None:
        iterates.parent.mkdir(exist_ok=True)
    if not data.exists():
        data.mkdir()
        mapped.save(source.ratings, data)


def _reading(study: Study) -> str:
    """All that decides how a source is read."""
    plain: dict[str, Any] = dict(study.to_dict())
    names = ("source", "columns", "query", "duplicates", "events", "wide", "test", "partition")
    return json.dumps([study.source, *(plain[name] for name in names)])


def _watch(calls: Calls, places: dict[str, _Place], on_done: Callable[[Task, Outcome], object]) -> Watch:
    """What workers say, with the place that it is about."""

    def where(task: Task) -> Record:
        part = places[task.part].part
        return {"data": part.data, "part": part.name, "case": task.case.label, "seed": task.seed}

    def on_round(task: Task, record: Record) -> None:
        calls.on_round(where(task) | {"round": record["number"]} | record)

    def on_client(task: Task, record: Record) -> None:
        if calls.on_client is not None:
            calls.on_client(where(task) | record)

    return Watch(on_round, on_client, calls.on_death, on_done)


def check_plan(plan: Plan, folder: Path) -> None:
    """Refuse a folder that holds another plan, or anything else. A plan may gain methods, seeds and data sets."""
    path = folder / PLAN
    if not path.exists():
        begun = (LOCK, PLAN, MAPPED, *(part.folder for part in plan.parts))  # of a process that was killed early
        found = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
        other = [name for name in found if not name.startswith((PLAN, MAPPED)) and name not in begun]
        require(not other, f"{folder} is not empty and holds no study: choose another folder with --out")
    elif not set(json.loads(path.read_bytes())["parts"]) <= {part.name for part in plan.parts}:
        raise InputError(f"{folder} holds a study with other data or budgets: choose another folder, or remove it")
    for part in plan.parts:
        check_folder(folder / part.folder, part.study, grows=True)


def _content(plan: Plan) -> bytes:
    parts = {part.name: part.folder for part in plan.parts}
    about = {"name": plan.name, "parts": parts, "measures": plan.measures, "iterates": plan.iterates}
    return json.dumps(about, indent=1).encode()


def _clean(plan: Plan, folder: Path) -> None:
    """Remove what a killed process left behind."""
    for left in folder.glob(f"{MAPPED}*"):
        shutil.rmtree(left)
    for part in plan.parts:
        for place in ("", OUTCOMES, TIMES, ITERATES):
            for left in (folder / part.folder / place).glob("*.part*"):
                left.unlink()
    for left in folder.glob("*.part*"):
        left.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder; the lock ends with this process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process runs the study in {folder}: wait for its end") from None
        yield
