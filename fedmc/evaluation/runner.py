"""Run a study into a folder of outcomes, one file for each (case, seed), so that a killed run can be resumed.

study.json        the study              outcomes/CASE-SEED.json   one run each
curves.csv        every measured round   summary.csv, summary.json   by method, over seeds    times.csv   seconds
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data import partition, splits
from fedmc.data.datasets import load_source
from fedmc.data.files import write_whole
from fedmc.data.given import scale_of, scaled
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import Diverged, InputError, require
from fedmc.evaluation.harness import NAMES, Parts, ranking_at
from fedmc.evaluation.study import Case, Study
from fedmc.training import memory
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import warm_up

ERRORS = ("objective", "train_rmse", "test_rmse", "nonzeros_users", "nonzeros_items")
MEASURES = (*ERRORS, *NAMES)
NO_TEST = "random:0"


Row = dict[str, float | None]  # one measured round: the measures, round, seconds, bytes up and down


class Outcome(NamedTuple):
    """One case under one seed: its measured rounds, or a single row without a round if nothing is federated."""

    label: str
    method: str
    seed: int
    key: str
    rows: list[Row]
    diverged: str | None
    refused: str | None = None  # why the method cannot run on this data; there are no rows then


def run(
    study: Study,
    folder: Path,
    on_case: Callable[[str, int, bool], None] = lambda label, seed, done: None,
    on_round: Callable[[int], None] = lambda number: None,
    table: Ratings | None = None,
) -> list[Outcome]:
    """Run the cases that have no outcome yet; returns all outcomes in the study's order.

    `table`: the ratings, or the amounts of events, if the source was read before.
    """
    check_folder(folder, study)
    for case in study.cases:
        case.settings(study.seeds[0], study.active)
    ratings = _read(study, table)
    parts = {study.seeds[0]: _parts(study, ratings, study.seeds[0])}
    _create(folder, study)  # after all that may be refused, which leaves no folder
    fingerprint = fingerprint_of(ratings, study.events is not None and study.events.recency)
    outcomes = []
    for case, seed in itertools.product(study.cases, study.seeds):
        on_case(case.label, seed, False)
        path = folder / "outcomes" / f"{_file_name(case.label)}-{seed}.json"
        key = study.key(case, seed, fingerprint)
        outcome = _load(path, key)
        if outcome is None:
            if seed not in parts:
                parts[seed] = _parts(study, ratings, seed)
            outcome = run_case(study, case, seed, key, parts[seed], on_round)
            write_whole(path, json.dumps(outcome._asdict()).encode())
        outcomes.append(outcome)
        on_case(case.label, seed, True)
    return outcomes


def _parts(study: Study, ratings: Ratings, seed: int) -> Parts:
    """The split and the clients of a seed; only ratings can be compared without a test."""
    owner = partition.parse(study.partition, ratings, study.clients, seed)
    train, test = splits.parse(study.test, ratings, seed)
    if study.events is not None:
        cure = "events are compared by how those held out are ranked: hold some out, such as --test 0.2"
        require(study.test != NO_TEST, f"the split {study.test!r} holds out nothing, and {cure}")
    if study.test != NO_TEST:
        splits.check_held_out(study.test, len(ratings), len(test))
    return Parts(train if study.events is None or study.events.recency else train.without_times(), test, owner)


def _read(study: Study, table: Ratings | None) -> Ratings:
    """The ratings of the study's source, or the confidences of its events."""
    group = study.partition.partition(":")[2] if study.partition.startswith("column:") else None
    if table is None:
        table = load_source(
            study.source, study.columns, query=study.query, times=splits.needs_times(study.test), group=group,
            duplicates=study.duplicates, events=study.events, wide=study.wide,
        )  # fmt: skip
    return scaled(table, scale_of(table, study.events, study.confidence_scale))


def run_case(
    study: Study, case: Case, seed: int, key: str, parts: Parts, on_round: Callable[[int], None] = lambda number: None
) -> Outcome:
    settings = case.kind.suited(case.settings(seed, study.active), parts)
    central = case.kind.central
    if central is not None:
        began = time.perf_counter()
        found = central(parts, settings)
        row: Row = {"round": None, "seconds": time.perf_counter() - began, **found}
        return Outcome(case.label, case.method, seed, key, [row], None)
    shards = make_shards(parts.train, parts.owner, settings.dtype, parts.test, events=study.events is not None)
    try:
        memory.check(shards, settings, study.rounds)
    except InputError as error:
        return Outcome(case.label, case.method, seed, key, [], None, str(error))
    settings = _in_one_round(settings, len(shards))
    warm_up(settings, settings.dtype)
    rows, diverged = _measured_rounds(study, settings, LocalEngine(shards), parts, on_round)
    return Outcome(case.label, case.method, seed, key, rows, diverged)


def _measured_rounds(
    study: Study, settings: Settings, engine: LocalEngine, parts: Parts, on_round: Callable[[int], None]
) -> tuple[list[Row], str | None]:
    """The measured rounds of a run, and why it diverged; after the last, models of ratings are ranked too."""
    rows: list[Row] = []
    seconds, up, down = 0.0, 0, 0
    last = 1 if settings.make_algorithm().one_pass else study.rounds
    try:
        for round in itertools.islice(rounds(engine, settings, measure_every=study.measure_every, last=last), last + 1):
            seconds, up, down = seconds + round.seconds, up + round.bytes_up, down + round.bytes_down
            found = round.diagnostics
            if found.objective is not None:
                measured = {name: getattr(found, name) for name in ERRORS} | (found.ranking or {})
                rows.append({"round": round.number, "seconds": seconds, "up": up, "down": down} | measured)
            on_round(round.number)
    except Diverged as error:
        return rows, str(error)
    if round.diagnostics.ranking is None:
        rows[-1] |= ranking_at(engine, round.broadcast, parts)
    return rows, None


def _in_one_round(settings: Settings, clients: int) -> Settings:
    """The settings with all clients in each round, if nothing changes after every client has taken part once."""
    return settings.replace(active=clients) if settings.make_algorithm().one_pass else settings


def fingerprint_of(ratings: Ratings, recency: bool = False) -> str:
    """A hash of the ratings, so that outcomes of other data are not reused; with `recency`, of their times too."""
    matrix = ratings.matrix
    digest = hashlib.sha256()
    for array in (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data.astype(np.float64)):
        digest.update(np.ascontiguousarray(array).tobytes())
    if recency and ratings.times is not None:
        digest.update(np.ascontiguousarray(ratings.times, np.int64).tobytes())
    return digest.hexdigest()[:16]


def load(folder: Path) -> tuple[Study, list[Outcome]]:
    """Load a comparison, finished or not."""
    try:
        study = Study.from_dict(json.loads((folder / "study.json").read_text(encoding="utf-8")))
        files = sorted((folder / "outcomes").glob("*.json"))
        outcomes = [Outcome(**json.loads(path.read_text(encoding="utf-8"))) for path in files]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder} is not a comparison: {error}") from None
    order = {case.label: place for place, case in enumerate(study.cases)}
    known = [outcome for outcome in outcomes if outcome.label in order and outcome.seed in study.seeds]
    return study, sorted(known, key=lambda outcome: (order[outcome.label], outcome.seed))


def check_folder(folder: Path, study: Study) -> None:
    """Refuse a folder that holds another study, or anything else."""
    path = folder / "study.json"
    if path.exists():
        found = Study.from_dict(json.loads(path.read_text(encoding="utf-8")))  # fills in entries that older files lack
        if found.to_dict() != study.to_dict():
            raise InputError(f"{folder} holds another comparison: choose another folder, or remove it")
        return
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and not a comparison: choose another folder")


def _create(folder: Path, study: Study) -> None:
    """Make the folder, unless it holds the same study already."""
    path = folder / "study.json"
    if not path.exists():
        (folder / "outcomes").mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(study.to_dict(), indent=1).encode())


def _load(path: Path, key: str) -> Outcome | None:
    if not path.exists():
        return None
    outcome = Outcome(**json.loads(path.read_text(encoding="utf-8")))
    return outcome if outcome.key == key else None


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")
