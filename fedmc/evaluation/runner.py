"""Run a study into a folder of outcomes, one file for each (case, seed), so that a killed run can be resumed.

study.json        the study              outcomes/CASE-SEED.json   one run each
curves.csv        every measured round   summary.csv, summary.json   by method, over seeds
times.csv         seconds                times/CASE-SEED.json        those of one run
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fedmc.algorithms.objectives import Objective, Objectives, by_number
from fedmc.algorithms.settings import Settings
from fedmc.data import partition, prepared_table, splits
from fedmc.data.datasets import load_source
from fedmc.data.files import write_whole
from fedmc.data.given import scale_of, scaled
from fedmc.data.partition import make_shards
from fedmc.data.prepared import is_prepared
from fedmc.data.ratings import Ratings
from fedmc.errors import Diverged, InputError, require
from fedmc.evaluation.copies import COPIES, objective_at_copies
from fedmc.evaluation.harness import NAMES, Parts, ranking_at
from fedmc.evaluation.outcomes import OUTCOMES, SPENT, Outcome, Row, file_names, read, store, stored
from fedmc.evaluation.study import Case, Study
from fedmc.training import memory
from fedmc.training.clocks import Clocks
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round, rounds
from fedmc.training.simulation import warm_up

ERRORS = ("objective", "train_rmse", "test_rmse", "nonzeros_users", "nonzeros_items")
MEASURES = (*ERRORS, COPIES, *NAMES)
NO_TEST = "random:0"

OnRound = Callable[[Round, LocalEngine], None]


class Source(NamedTuple):
    """What a study's source holds: its ratings, or the confidences of its events, and a hash of them."""

    ratings: Ratings
    fingerprint: str
    first: Parts  # those of the first seed


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
    source = opened(study, folder, table)
    parts = {study.seeds[0]: source.first}
    names, outcomes = file_names(study.labels), []

    def watch(round: Round, engine: LocalEngine) -> None:
        on_round(round.number)

    for case, seed in itertools.product(study.cases, study.seeds):
        on_case(case.label, seed, False)
        key = study.key(case, seed, source.fingerprint)
        outcome = stored(folder, names[case.label], seed, key)
        if outcome is None:
            if seed not in parts:
                parts[seed] = parts_of(study, source.ratings, seed)
            outcome = run_case(study, case, seed, key, parts[seed], watch)
            store(folder, names[case.label], outcome)
        outcomes.append(outcome)
        on_case(case.label, seed, True)
    return outcomes


def opened(study: Study, folder: Path, table: Ratings | None = None, grows: bool = False) -> Source:
    """The source's data, and the study's folder, which is made after all that may be refused."""
    check_folder(folder, study, grows)
    settings = {case.label: case.settings(study.seeds[0], study.active) for case in study.cases}
    table = table_of(study) if table is None else table
    ratings = scaled(table, scale_of(table, study.events, study.confidence_scale))
    first = parts_of(study, ratings, study.seeds[0])
    for case in study.cases:
        _objectives(case, settings[case.label], first, int(first.owner.max()) + 1)
    _create(folder, study)
    return Source(ratings, fingerprint_of(ratings, study.events is not None and study.events.recency), first)


def parts_of(study: Study, ratings: Ratings, seed: int) -> Parts:
    """The split and the clients of a seed; only ratings can be compared without a test."""
    owner = partition.parse(study.partition, ratings, study.clients, seed)
    train, test = splits.parse(study.test, ratings, seed)
    if study.events is not None:
        cure = "events are compared by how those held out are ranked: hold some out, such as --test 0.2"
        require(study.test != NO_TEST, f"the split {study.test!r} holds out nothing, and {cure}")
    if study.test != NO_TEST:
        splits.check_held_out(study.test, len(ratings), len(test))
    return Parts(train if study.events is None or study.events.recency else train.without_times(), test, owner)


def table_of(study: Study) -> Ratings:
    """The ratings of the study's source, prepared shards too, or the amounts of its events."""
    group = study.partition.partition(":")[2] if study.partition.startswith("column:") else None
    if is_prepared(Path(study.source)):
        return prepared_table.table_of(Path(study.source), group, study.events)
    return load_source(
        study.source, study.columns, query=study.query, times=splits.needs_times(study.test), group=group,
        duplicates=study.duplicates, events=study.events, wide=study.wide,
    )  # fmt: skip


def run_case(
    study: Study, case: Case, seed: int, key: str, parts: Parts, on_round: OnRound = lambda round, engine: None
) -> Outcome:
    """Run a case; `on_round` is called with each round and the engine, which holds the clients."""
    settings = case.kind.suited(case.settings(seed, study.active), parts)
    central = case.kind.central
    if central is not None:
        clocks = Clocks()
        found = central(parts, settings)
        row: Row = {"round": None, **dict(zip(SPENT, clocks.spent(), strict=True)), **found}
        return Outcome(case.label, case.method, seed, key, [row], None)
    if case.kind.peers is not None:
        measured: list[Row] = list(case.kind.peers(parts, settings, study.rounds, study.measure_every))
        return Outcome(case.label, case.method, seed, key, measured, None)
    shards = make_shards(parts.train, parts.owner, settings.dtype, parts.test, events=study.events is not None)
    try:
        memory.check(shards, settings, study.rounds)
    except InputError as error:
        return Outcome(case.label, case.method, seed, key, [], None, str(error))
    settings = _in_one_round(settings, len(shards))
    warm_up(settings, settings.dtype)
    engine = LocalEngine(shards, objectives=_objectives(case, settings, parts, len(shards)))
    rows, diverged = _measured_rounds(study, settings, engine, parts, on_round)
    return Outcome(case.label, case.method, seed, key, rows, diverged)


def _measured_rounds(
    study: Study, settings: Settings, engine: LocalEngine, parts: Parts, on_round: OnRound
) -> tuple[list[Row], str | None]:
    """The measured rounds of a run, and why it diverged; after the last, models of ratings are ranked too."""
    rows: list[Row] = []
    seconds, cpu_seconds, up, down = 0.0, 0.0, 0, 0
    last = 1 if settings.make_algorithm().one_pass else study.rounds
    copies = COPIES in study.drawn
    try:
        for round in itertools.islice(rounds(engine, settings, measure_every=study.measure_every, last=last), last + 1):
            seconds, cpu_seconds = seconds + round.seconds, cpu_seconds + round.cpu_seconds
            up, down = up + round.bytes_up, down + round.bytes_down
            found = round.diagnostics
            if found.objective is not None:
                measured = {name: getattr(found, name) for name in ERRORS} | (found.ranking or {})
                if copies:
                    measured[COPIES] = objective_at_copies(engine, round.broadcast)
                spent: Row = {"round": round.number, "seconds": seconds, "cpu_seconds": cpu_seconds}
                rows.append(spent | {"up": up, "down": down} | measured)
            on_round(round, engine)
    except Diverged as error:
        return rows, str(error)
    if round.diagnostics.ranking is None:
        rows[-1] |= ranking_at(engine, round.broadcast, parts)
    return rows, None


def _objectives(case: Case, settings: Settings, parts: Parts, clients: int) -> dict[int, Objective]:
    """The objectives that the case gives to single clients, checked with its settings."""
    groups = parts.train.groups
    names = [str(number) for number in range(clients)] if groups is None else list(map(str, groups[0]))
    found = by_number(cast(Objectives, case.objectives), names)
    for one in found.values():
        one.settings(settings, clients)
    return found


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
        outcomes = [read(path) for path in sorted((folder / OUTCOMES).glob("*.json"))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder} is not a comparison: {error}") from None
    order = {case.label: place for place, case in enumerate(study.cases)}
    known = [outcome for outcome in outcomes if outcome.label in order and outcome.seed in study.seeds]
    return study, sorted(known, key=lambda outcome: (order[outcome.label], outcome.seed))


def check_folder(folder: Path, study: Study, grows: bool = False) -> None:
    """Refuse a folder that holds another study, or anything else; one that `grows` may have more cases and seeds."""
    path = folder / "study.json"
    if path.exists():
        found = Study.from_dict(json.loads(path.read_text(encoding="utf-8")))  # fills in entries that older files lack
        if found.to_dict() != study.to_dict() and not (grows and study.continues(found)):
            raise InputError(f"{folder} holds another comparison: choose another folder, or remove it")
        return
    begun = (OUTCOMES, "study.json.part")  # what a process leaves that was killed while it made the folder
    if folder.exists() and any(one.name not in begun for one in folder.iterdir()):
        raise InputError(f"{folder} is not empty and not a comparison: choose another folder")


def _create(folder: Path, study: Study) -> None:
    """Make the folder, and write the study unless it is there already."""
    path, content = folder / "study.json", json.dumps(study.to_dict(), indent=1).encode()
    (folder / OUTCOMES).mkdir(parents=True, exist_ok=True)
    if not path.exists() or Study.from_dict(json.loads(path.read_bytes())).to_dict() != study.to_dict():
        write_whole(path, content)
