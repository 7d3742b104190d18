"""Enter a method or a submission in a task: one result for each seed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import NamedTuple

from fedmc.data import downloads
from fedmc.data.datasets import tables_folder
from fedmc.errors import FedmcError
from fedmc.evaluation.benchmark import answers, boundary, hashes
from fedmc.evaluation.benchmark.results import Result
from fedmc.evaluation.benchmark.tasks import Task
from fedmc.evaluation.outcomes import Outcome, Row
from fedmc.evaluation.runner import run_case
from fedmc.evaluation.study import Case
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round

PACKAGES = ("fedmc", "numpy", "scipy", "numba")
TIME_LIMIT = 3600.0


class Ran(NamedTuple):
    """A result, and what differs from run to run or is for the eyes of the entrant only."""

    result: Result
    seconds: float
    printed: str = ""


def run_method(task: Task, case: Case, seed: int, on_round: Callable[[int], None] = lambda number: None) -> Ran:
    """A method of `fedmc compare`, or a plug-in's algorithm, by the harness, which counts rounds and bytes."""
    began, parts = time.perf_counter(), task.parts(seed)
    found = hashes.hashes_of(parts)
    hashes.check(task.name, seed, found)

    def watch(round: Round, engine: LocalEngine) -> None:
        on_round(round.number)

    outcome = run_case(task.study(case, seed), case, seed, "", parts, watch)
    settings = case.kind.suited(case.settings(seed, task.active), parts).to_dict()
    row = last_within(outcome, task.megabytes)
    measures = {name: value for name in task.measures if (value := row.get(name)) is not None}
    federated = row.get("round") is not None
    counted = {name: int(row[name] or 0) for name in ("round", "up", "down")} if federated else None
    result = Result(
        task.record(), seed, found, case.label, "method", {"options": case.options, "all": settings}, measures, counted,
        versions(), failed=outcome.diverged or outcome.refused,
    )  # fmt: skip
    return Ran(result, time.perf_counter() - began)


def last_within(outcome: Outcome, megabytes: float) -> Row:
    """The last measured round whose bytes, up and down from the start, are within the budget."""
    within = [row for row in outcome.rows if (row.get("up") or 0) + (row.get("down") or 0) <= 1e6 * megabytes]
    return within[-1] if within and not outcome.diverged else {}


def run_submission(task: Task, submission: Path, seed: int, seconds: float = TIME_LIMIT) -> Ran:
    """A Python file with a function `predict`, in a process that has no answers. This one becomes unreadable."""
    boundary.seal()
    held = boundary.boundary()
    began, parts = time.perf_counter(), task.parts(seed)
    found = hashes.hashes_of(parts)
    hashes.check(task.name, seed, found)
    with boundary.folders(held) as (given, work):
        content = boundary.copy_of(submission, given)
        answers.hand_out(task, parts, given)
        answers.open_to_all(given)
        limits = boundary.Limits(seconds, answers.most_bytes(task, parts))
        answer, printed = boundary.run(held, given, work, hidden_places(), limits)
    digest = hashlib.sha256(content).hexdigest()
    label = f"{submission.stem} ({digest[:8]})"
    result = Result(
        task.record(), seed, found, label, "submission", {"sha256": digest, "boundary": held.words},
        answers.score(task, parts, answer), None, versions(),
    )  # fmt: skip
    return Ran(result, time.perf_counter() - began, printed)


def hidden_places() -> list[Path]:
    """Where the public data sets are on this machine: no submission may read them."""
    try:
        places = [tables_folder(), downloads.cache_folder()]
    except FedmcError:
        places = [downloads.cache_folder()]
    return [place.resolve() for place in places]


def versions() -> dict[str, str]:
    """What the numbers of a result may depend on."""
    return {"python": python_version()} | {name: version(name) for name in PACKAGES}
