"""Tables of outcomes: curves by round, and a summary by method. Times vary by run, so they go to a separate file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.files import write_whole
from fedmc.evaluation.runner import MEASURES, Outcome, Row
from fedmc.evaluation.study import Study

WITHIN = 0.01  # relative distance to the pooled RMSE


class Line(NamedTuple):
    """The summary of a method over its seeds."""

    method: str  # its label
    seeds: int
    test_rmse: float  # mean at the end
    spread: float  # standard deviation over seeds
    gap: float | None  # to pooled, in percent
    objective: float | None
    rounds_to_1pc: float | None  # mean over seeds; None if a seed did not reach it
    megabytes_to_1pc: float | None
    megabytes: float | None
    seconds_to_1pc: float | None
    seconds: float
    diverged: int

    @property
    def label(self) -> str:
        return self.method


def write(study: Study, outcomes: Sequence[Outcome], folder: Path) -> list[Line]:
    """Write curves.csv, summary.csv, summary.json and times.csv."""
    lines = summary(study, outcomes)
    curves: list[tuple[object, ...]] = [("method", "seed", "round", "bytes_up", "bytes_down", *MEASURES)]
    times: list[tuple[object, ...]] = [("method", "seed", "round", "seconds")]
    for outcome in outcomes:
        for row in outcome.rows:
            measured = [row.get(name) for name in MEASURES]
            curves.append((outcome.label, outcome.seed, row["round"], row.get("up"), row.get("down"), *measured))
            times.append((outcome.label, outcome.seed, row["round"], row["seconds"]))
    write_whole(folder / "curves.csv", _csv(curves))
    write_whole(folder / "times.csv", _csv(times))
    timeless = [name for name in Line._fields if not name.startswith("seconds")]
    write_whole(
        folder / "summary.csv", _csv([timeless, *([getattr(line, name) for name in timeless] for line in lines)])
    )
    write_whole(folder / "summary.json", json.dumps([line._asdict() for line in lines], indent=1).encode())
    return lines


def summary(study: Study, outcomes: Sequence[Outcome]) -> list[Line]:
    """A line for each method, in the study's order."""
    pooled = {outcome.seed: _end(outcome, "test_rmse") for outcome in outcomes if outcome.method == "pooled"}
    return [
        _line([outcome for outcome in outcomes if outcome.label == case.label], pooled)
        for case in study.cases
        if any(outcome.label == case.label for outcome in outcomes)
    ]


def _line(outcomes: Sequence[Outcome], pooled: dict[int, float | None]) -> Line:
    ends = np.array([_end(outcome, "test_rmse") for outcome in outcomes], float)
    objectives = [_end(outcome, "objective") for outcome in outcomes]
    federated = outcomes[0].rows[0]["round"] is not None if outcomes[0].rows else True
    marks = [pooled.get(outcome.seed) for outcome in outcomes]
    gap = None
    reached: list[Row | None] = [None]
    if all(mark is not None for mark in marks):
        gap = float(100 * np.mean(ends / np.array(marks, float) - 1))
        if federated:
            pairs = zip(outcomes, marks, strict=True)
            reached = [_reach(outcome, mark) for outcome, mark in pairs if mark is not None]
    sizes = [_megabytes(outcome.rows[-1]) for outcome in outcomes if federated]
    return Line(
        outcomes[0].label,
        len(outcomes),
        float(np.mean(ends)),
        float(np.std(ends)),
        gap,
        None if None in objectives else float(np.mean(np.array(objectives, float))),
        _mean(reached, "round"),
        _mean(reached, "megabytes"),
        float(np.mean(sizes)) if sizes else None,
        _mean(reached, "seconds"),
        float(np.mean(np.array([_end(outcome, "seconds") for outcome in outcomes], float))),
        sum(outcome.diverged is not None for outcome in outcomes),
    )


def _end(outcome: Outcome, name: str) -> float | None:
    """A measure after the last round."""
    return outcome.rows[-1].get(name)


def _reach(outcome: Outcome, mark: float) -> Row | None:
    """The first round from which the test RMSE stays within 1 % of the mark."""
    errors = np.array([row["test_rmse"] for row in outcome.rows], float)
    above = np.flatnonzero(~(errors <= mark * (1 + WITHIN)))
    first = int(above[-1]) + 1 if len(above) else 0
    if first >= len(outcome.rows):
        return None
    row = outcome.rows[first]
    return row | {"megabytes": _megabytes(row)}


def _megabytes(row: Row) -> float:
    """Megabytes sent in both directions up to a round."""
    return ((row["up"] or 0) + (row["down"] or 0)) / 1e6


def _mean(rows: Sequence[Row | None], name: str) -> float | None:
    values = [row[name] for row in rows if row is not None]
    return float(np.mean(np.array(values, float))) if len(values) == len(rows) else None


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["" if v is None else v for v in row] for row in rows])
    return text.getvalue().encode()
