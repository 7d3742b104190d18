"""Results: one JSON file each, the same bytes each time, and tables that are generated from them alone.

Seconds differ from run to run and are in `times/`, in a file of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.settings import Feedback
from fedmc.data.files import write_whole
from fedmc.errors import InputError, require
from fedmc.evaluation.compared import LOWER, heading, number
from fedmc.evaluation.outcomes import TIMES, file_names

FORMAT = "fedmc-benchmark"


class Result(NamedTuple):
    """One entry in one task with one seed."""

    task: dict[str, Any]
    seed: int
    sha256: dict[str, str]
    entry: str
    kind: str  # method or submission
    settings: dict[str, Any]
    measures: dict[str, float]
    counted: dict[str, int] | None  # round, bytes up and down, as the harness counted them; None: nothing to count
    versions: dict[str, str]
    failed: str | None = None  # why there are no measures

    @property
    def name(self) -> str:
        """The name of its file."""
        label = f"{self.task['name']}-{self.entry}-{self.seed}"
        return f"{file_names([label])[label]}.json"

    @property
    def key(self) -> tuple[str, str, int]:
        return str(self.task["name"]), self.entry, self.seed


def save(result: Result, seconds: float, folder: Path) -> Path:
    """Write the result, and its seconds beside it."""
    (folder / TIMES).mkdir(parents=True, exist_ok=True)
    write_whole(folder / TIMES / result.name, json.dumps({"seconds": seconds}).encode())
    content = json.dumps({"format": FORMAT, **result._asdict()}, indent=1, sort_keys=True, allow_nan=False)
    write_whole(folder / result.name, content.encode() + b"\n")
    return folder / result.name


def load(folders: Iterable[Path]) -> list[Result]:
    """All results in these folders; the same result twice counts once, two different ones are refused."""
    found: dict[tuple[str, str, int], tuple[Result, Path]] = {}
    for folder in folders:
        require(folder.is_dir(), f"there is no folder {folder}")
        for path in sorted(folder.rglob("*.json")):
            if path.parent.name == TIMES:
                continue
            result = _read(path)
            before = found.setdefault(result.key, (result, path))
            same = before[0] == result
            require(same, f"{before[1]} and {path} are two different results of the same entry: remove one of them")
    return [result for result, _ in found.values()]


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_bytes())
        ours = isinstance(content, dict) and content.pop("format", None) == FORMAT
        require(ours, f"{path} is not a result of the benchmark: remove it from the folder")
        result = Result(**content)
        str(result.task["name"]), result.sha256["test"]
        return result
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a whole result: {error}; run the entry again") from None


def check_alike(results: Sequence[Result]) -> None:
    """Refuse results of one task and seed that do not have the same split, clients and budget."""
    first: dict[tuple[str, int], Result] = {}
    for one in results:
        other = first.setdefault((str(one.task["name"]), one.seed), one)
        for part in sorted(one.sha256.keys() | other.sha256.keys()):
            a, b = (str(x.sha256.get(part, "missing")) for x in (other, one))
            where = f"{one.task['name']}, seed {one.seed}"
            require(
                a == b,
                f"{where}: the {part} part of {other.entry} has SHA-256 {a[:12]}..., that of {one.entry} {b[:12]}...: "
                "results of different splits are not comparable; run them again on the same data",
            )
        same = one.task == other.task
        require(same, f"{one.task['name']}: {other.entry} and {one.entry} had other budgets: run one of them again")


def tables(results: Sequence[Result], measures: Mapping[Feedback, Sequence[str]]) -> str:
    """A Markdown table for each task; `measures` are its columns by feedback, the first one sorts."""
    require(len(results) > 0, "there are no results in these folders: `fedmc benchmark run` makes some")
    check_alike(results)
    names = sorted({str(one.task["name"]) for one in results})
    return "\n".join(_table([one for one in results if one.task["name"] == name], measures) for name in names)


def _table(results: Sequence[Result], measures: Mapping[Feedback, Sequence[str]]) -> str:
    task = results[0].task
    columns = [name for name in measures[task["feedback"]] if any(name in one.measures for one in results)]
    entries = sorted({one.entry for one in results})
    groups = {entry: sorted((x for x in results if x.entry == entry), key=lambda x: x.seed) for entry in entries}
    lines = [[entry, *_cells(group, columns)] for entry, group in groups.items()]
    order = {entry: _order(group, columns[0]) if columns else (1, 0.0) for entry, group in groups.items()}
    lines.sort(key=lambda line: (order[line[0]], line[0]))
    head = ["entry", *map(heading, columns), "rounds", "MB", "seeds", "run by"]
    about = (
        f"{task['feedback']}; source {task['source']}; held out {task['test']}; clients {task['partition']}; at most "
        f"{task['rounds']} rounds and {task['megabytes']:g} MB, {task['active']} clients a round; tasks of version "
        f"{task['version']}"
    )
    tests = {one.seed: one.sha256["test"] for one in results}
    shown = "; ".join(f"{seed}: `{digest[:12]}`" for seed, digest in sorted(tests.items()))
    failures = [f"{one.entry}, seed {one.seed}: {one.failed}." for one in results if one.failed]
    said = "".join(f"\n{sentence}\n" for sentence in (f"Held-out part by seed, SHA-256: {shown}.", *failures))
    return f"## {task['name']}\n\n{about}.\n\n{_markdown([head, *lines])}\n{said}"


def _cells(group: Sequence[Result], columns: Sequence[str]) -> list[str]:
    found = [_mean([one.measures.get(name) for one in group]) for name in columns]
    counted = [one.counted for one in group if one.counted is not None]
    rounds, size = "–", "–"
    if len(counted) == len(group):
        rounds = f"{round(float(np.mean([one['round'] for one in counted])), 1):g}"
        size = f"{np.mean([one['up'] + one['down'] for one in counted]) / 1e6:.1f}"
    seeds = ", ".join(str(one.seed) for one in group)
    return [*found, rounds, size, seeds, "the harness" if group[0].kind == "method" else "its own process"]


def _mean(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over seeds; nothing if a seed lacks it."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "–"
    spread = f" ± {number(float(np.std(known, ddof=1)))}" if len(known) > 1 else ""
    return f"{number(float(np.mean(known)))}{spread}"


def _order(group: Sequence[Result], measure: str) -> tuple[int, float]:
    """The best first, those without the measure last."""
    values = [one.measures[measure] for one in group if measure in one.measures]
    if len(values) < len(group):
        return 1, 0.0
    return 0, (1 if measure in LOWER else -1) * float(np.mean(values))


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [[text.replace("|", "\\|") for text in row] for row in rows]
    widths = [max(3, *(len(line[k]) for line in lines)) for k in range(len(lines[0]))]
    texts = ["| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([texts[0], rule, *texts[1:]])
