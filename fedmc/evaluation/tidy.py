"""All measured rounds of a study as tidy tables: a row for each round of a run, a column for each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmc.data.readers.writing import writing_rows
from fedmc.evaluation.outcomes import SPENT, Outcome, Row
from fedmc.evaluation.plan import BUDGET, Part
from fedmc.evaluation.runner import MEASURES
from fedmc.evaluation.studies import Finished
from fedmc.types import Array

RESULTS, TIMES = "results.parquet", "times.parquet"
Value = str | int | float | bool | None
Rows = Mapping[str, Sequence[Value]]  # columns of equal length


def results(finished: Sequence[Finished]) -> dict[str, list[Value]]:
    """Columns by name: where a row belongs, the budget, the settings that were given, the measures.

    A baseline without rounds has one row without a number of the round. A run that could not begin has one with the
    reason in `refused`.
    """
    rows = [row for one in finished for outcome in one.outcomes for row in _rows(one.part, outcome)]
    settings = sorted({f"set_{key}" for one in finished for case in one.part.study.cases for key in case.options})
    there = [name for name in MEASURES if any(row.get(name) is not None for row in rows)]
    names = ["data", "case", "method", "seed", *BUDGET, *settings, "round", "bytes_up", "bytes_down", *there]
    return {name: [row.get(name) for row in rows] for name in [*names, "diverged", "refused"]}


def _rows(part: Part, outcome: Outcome) -> list[dict[str, Value]]:
    study = part.study
    case = next(case for case in study.cases if case.label == outcome.label)
    common: dict[str, Value] = {"data": part.data, "case": case.label, "method": case.method, "seed": outcome.seed}
    common |= {name: getattr(study, name) for name in BUDGET}
    common |= {f"set_{key}": value for key, value in case.options.items() if isinstance(value, str | int | float)}
    common |= {"diverged": outcome.diverged or "", "refused": outcome.refused or ""}
    return [_with(common, row) for row in outcome.rows] or [common]


def _with(common: dict[str, Value], row: Row) -> dict[str, Value]:
    names = {name: name for name in ("round", *MEASURES)} | {"bytes_up": "up", "bytes_down": "down"}
    measured: dict[str, Value] = {name: row.get(kept) for name, kept in names.items()}
    return common | measured


def times(finished: Sequence[Finished]) -> dict[str, list[Value]]:
    """The seconds of updates up to each measured round, by the clock and of CPU time."""
    names = ("data", "part", "case", "seed", "round", *SPENT)
    rows: list[tuple[Value, ...]] = [
        (one.part.data, one.part.name, outcome.label, outcome.seed, row["round"], *(row.get(name) for name in SPENT))
        for one in finished
        for outcome in one.outcomes
        for row in outcome.rows
    ]
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def write(table: Rows, path: Path) -> None:
    """Write a table; the same rows give the same bytes."""
    with writing_rows(path) as add:
        add({name: column(values) for name, values in table.items()})


def column(values: Sequence[Value]) -> Array:
    """An array of one type that keeps its gaps: true or false, whole numbers, numbers or, of mixed values, text."""
    kinds = {type(value) for value in values if value is not None}
    kind = next(iter(kinds)) if len(kinds) == 1 else float if kinds == {int, float} else str
    return np.array([None if value is None else kind(value) for value in values], object)
