"""Outcomes: one run each, a case under one seed. Each is a file that is written atomically, so a killed run resumes.

Seconds differ from run to run. They go into a file beside, so that the outcomes themselves are reproducible.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmc.data.files import write_whole

OUTCOMES, TIMES, ITERATES = "outcomes", "times", "iterates"
LONGEST = 100  # characters of a label in a file name

Row = dict[str, float | None]  # one measured round: the measures, round, seconds, CPU seconds, bytes up and down
SPENT = ("seconds", "cpu_seconds")


class Outcome(NamedTuple):
    """One case under one seed: its measured rounds, or a single row without a round if nothing is federated."""

    label: str
    method: str
    seed: int
    key: str
    rows: list[Row]
    diverged: str | None
    refused: str | None = None  # why the method cannot run on this data; there are no rows then


def value(row: Mapping[str, float | None], name: str) -> float | None:
    """A measure of a row: stored, or derived from others."""
    if name == "megabytes":
        return ((row["up"] or 0) + (row["down"] or 0)) / 1e6
    if name == "nonzeros":
        users, items = row.get("nonzeros_users"), row.get("nonzeros_items")
        return None if users is None or items is None else (users + items) / 2
    return row.get(name)


def file_names(labels: Sequence[str]) -> dict[str, str]:
    """The name of each label's files; labels that would share one, or need a long one, get a hash."""
    plain = {label: re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-") for label in labels}
    shared = [name.lower() for name in plain.values()]
    return {
        label: name
        if len(name) <= LONGEST and shared.count(name.lower()) == 1
        else f"{name[:LONGEST]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
        for label, name in plain.items()
    }


def store(folder: Path, name: str, outcome: Outcome) -> None:
    """Write an outcome as NAME-SEED.json, and before it the seconds of its rows."""
    stem = f"{name}-{outcome.seed}.json"
    (folder / TIMES).mkdir(exist_ok=True)
    spent = {name: [row.get(name) for row in outcome.rows] for name in SPENT}
    write_whole(folder / TIMES / stem, json.dumps({"key": outcome.key, **spent}).encode())
    timeless = [{name: value for name, value in row.items() if name not in SPENT} for row in outcome.rows]
    write_whole(folder / OUTCOMES / stem, json.dumps(outcome._replace(rows=timeless)._asdict()).encode())


def stored(folder: Path, name: str, seed: int, key: str) -> Outcome | None:
    """The outcome that is there, or None if it is missing or has another key."""
    path = folder / OUTCOMES / f"{name}-{seed}.json"
    found = read(path) if path.exists() else None
    return found if found is not None and found.key == key else None


def read(path: Path) -> Outcome:
    """An outcome with its times; None where they were lost. Earlier versions kept seconds in the same file."""
    outcome = Outcome(**json.loads(path.read_text(encoding="utf-8")))
    if all("seconds" in row for row in outcome.rows):
        return outcome
    beside = path.parents[1] / TIMES / path.name
    told = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    rows = list(outcome.rows)
    for name in SPENT:
        known = told.get(name, []) if told.get("key") == outcome.key else []
        spent = known if len(known) == len(rows) else [None] * len(rows)
        rows = [row | {name: time} for row, time in zip(rows, spent, strict=True)]
    return outcome._replace(rows=rows)
