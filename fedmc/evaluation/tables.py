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
from fedmc.evaluation.harness import NAMES
from fedmc.evaluation.outcomes import SPENT, Outcome, Row, value
from fedmc.evaluation.runner import ERRORS, MEASURES
from fedmc.evaluation.study import Goal, Study

OWN = ("objective_at_copies", "nonzeros")  # measures that only the studies have that draw them
WITHIN = 0.01  # relative distance to the pooled model's measure


class Line(NamedTuple):
    """The summary of a method over its seeds."""

    method: str  # its label
    seeds: int
    test_rmse: float | None  # mean at the end; None of events
    spread: float | None  # standard deviation over seeds of the measure that methods are compared by; None of one seed
    gap: float | None  # of this measure to that of pooled data, in percent
    objective: float | None
    rounds_to_1pc: float | None  # mean over seeds; None if a seed did not reach it
    megabytes_to_1pc: float | None
    megabytes: float | None
    seconds_to_1pc: float | None
    seconds: float | None
    diverged: int
    refused: str | None  # why the method cannot run on this data
    cpu_seconds: float | None
    own: dict[str, float]  # means of what only some studies are about: "nonzeros", "objective_at_copies", ...
    ranking: dict[str, float]  # means at the end, such as "test_ndcg_20"

    @property
    def label(self) -> str:
        return self.method

    def record(self) -> dict[str, object]:
        """All fields and metrics by name."""
        plain: dict[str, object] = self._asdict()
        return {name: plain[name] for name in Line._fields[:-2]} | self.own | self.ranking


def write(study: Study, outcomes: Sequence[Outcome], folder: Path) -> list[Line]:
    """Write curves.csv, summary.csv, summary.json and times.csv."""
    lines = summary(study, outcomes)
    measures = [name for name in MEASURES if name in ERRORS or any(name in o.rows[-1] for o in outcomes if o.rows)]
    curves: list[tuple[object, ...]] = [("method", "seed", "round", "bytes_up", "bytes_down", *measures)]
    times: list[tuple[object, ...]] = [("method", "seed", "round", *SPENT)]
    for outcome in outcomes:
        for row in outcome.rows:
            measured = [row.get(name) for name in measures]
            curves.append((outcome.label, outcome.seed, row["round"], row.get("up"), row.get("down"), *measured))
            times.append((outcome.label, outcome.seed, row["round"], *(row.get(name) for name in SPENT)))
    write_whole(folder / "curves.csv", _csv(curves))
    write_whole(folder / "times.csv", _csv(times))
    fields = dict.fromkeys(name for line in lines for name in line.record())
    timeless = [name for name in fields if not name.startswith(("seconds", "cpu_seconds"))]
    records = [line.record() for line in lines]
    write_whole(folder / "summary.csv", _csv([timeless, *([one.get(name) for name in timeless] for one in records)]))
    write_whole(folder / "summary.json", json.dumps(records, indent=1).encode())
    return lines


def summary(study: Study, outcomes: Sequence[Outcome]) -> list[Line]:
    """A line for each method, in the study's order."""
    pooled = next((case.label for case in study.cases if case.kind.is_pooled), None)
    marks = {one.seed: _end(one, study.goal.measure) for one in outcomes if one.label == pooled}
    groups = ([one for one in outcomes if one.label == case.label] for case in study.cases)
    common = _common_objectives(outcomes) if study.by_time else {}
    return [_line(group, study.goal, marks)._replace(own=_own(group, study.drawn, common)) for group in groups if group]


def _own(outcomes: Sequence[Outcome], drawn: Sequence[str], common: dict[int, float]) -> dict[str, float]:
    """What the study is about: the measures of its figures, and how soon an objective is reached that all reach."""
    ends = {name: _mean_end(outcomes, name) for name in drawn if name in OWN}
    if common:
        reached = [_first_below(outcome, common.get(outcome.seed)) for outcome in outcomes]
        ends |= {f"{name}_to_common": _mean(reached, name) for name in SPENT}
    return {name: value for name, value in ends.items() if value is not None}


def _common_objectives(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """By seed, the highest of the final objectives: all cases reach it."""
    found: dict[int, float] = {}
    for outcome in outcomes:
        end = _end(outcome, "objective")
        if end is not None:
            found[outcome.seed] = max(end, found.get(outcome.seed, end))
    return found


def _first_below(outcome: Outcome, mark: float | None) -> Row | None:
    """The first row with an objective of at most the mark."""
    below = ((row, row.get("objective")) for row in outcome.rows)
    return next((row for row, value in below if None not in (value, mark) and value <= mark), None)  # type: ignore[operator]


def _line(outcomes: Sequence[Outcome], goal: Goal, pooled: dict[int, float | None]) -> Line:
    ends = [_end(outcome, goal.measure) for outcome in outcomes]
    federated = outcomes[0].rows[0]["round"] is not None if outcomes[0].rows else True
    marks = [pooled.get(outcome.seed) for outcome in outcomes]
    gap = None
    reached: list[Row | None] = [None]
    if all(marks) and None not in ends:  # neither None nor 0, of which nothing is a percentage
        gap = float(100 * np.mean(np.array(ends, float) / np.array(marks, float) - 1))
        if federated:
            pairs = zip(outcomes, marks, strict=True)
            reached = [_reach(outcome, goal, mark) for outcome, mark in pairs if mark is not None]
    sizes = [_megabytes(outcome.rows[-1]) for outcome in outcomes if federated and outcome.rows]
    means = {name: _mean_end(outcomes, name) for name in ("test_rmse", "objective", *SPENT, *NAMES)}
    return Line(
        outcomes[0].label,
        len(outcomes),
        means["test_rmse"],
        None if None in ends or len(ends) == 1 else float(np.std(np.array(ends, float))),
        gap,
        means["objective"],
        _mean(reached, "round"),
        _mean(reached, "megabytes"),
        float(np.mean(sizes)) if sizes else None,
        _mean(reached, "seconds"),
        means["seconds"],
        sum(outcome.diverged is not None for outcome in outcomes),
        next((outcome.refused for outcome in outcomes if outcome.refused is not None), None),
        means["cpu_seconds"],
        {},
        {name: value for name in NAMES if (value := means[name]) is not None},
    )


def _mean_end(outcomes: Sequence[Outcome], name: str) -> float | None:
    """The mean over seeds after the last round; None if a seed lacks it."""
    ends = [_end(outcome, name) for outcome in outcomes]
    return None if None in ends else float(np.mean(np.array(ends, float)))


def _end(outcome: Outcome, name: str) -> float | None:
    """A measure after the last round."""
    return value(outcome.rows[-1], name) if outcome.rows else None


def _reach(outcome: Outcome, goal: Goal, mark: float) -> Row | None:
    """The first round from which the measure stays within 1 % of the mark."""
    values = [row.get(goal.measure) for row in outcome.rows]
    first = max((k + 1 for k, value in enumerate(values) if not goal.reached(value, mark, WITHIN)), default=0)
    if first >= len(outcome.rows):
        return None
    row = outcome.rows[first]
    return row | {"megabytes": _megabytes(row)}


def _megabytes(row: Row) -> float:
    """Megabytes sent in both directions up to a round."""
    return ((row["up"] or 0) + (row["down"] or 0)) / 1e6


def _mean(rows: Sequence[Row | None], name: str) -> float | None:
    values = [row[name] for row in rows if row is not None]
    return float(np.mean(np.array(values, float))) if len(values) == len(rows) and None not in values else None


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["" if v is None else v for v in row] for row in rows])
    return text.getvalue().encode()
