"""Means, spreads and paired tests over seeds: the tables of a study, in Markdown and LaTeX.

The seeds of a study pair its methods: under one seed all have the same split, clients and start. So each method is
compared with the best one by a two-sided paired t-test over seeds (`scipy.stats.ttest_rel`), with Holm's correction for
the number of methods. The best is set in bold only if all of these tests reject at 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.study import Study

LEVEL = 0.05
LOWER = ("objective", "train_rmse", "test_rmse")  # measures of which less is better
NO_BEST = ("nonzeros_users", "nonzeros_items")
NAMES = {"rmse": "RMSE", "ndcg": "NDCG", "map": "MAP", "mrr": "MRR", "hit": "hit", "test": "test"}
CAVEAT = (
    "Mean ± standard deviation over seeds (n - 1). p: two-sided paired t-test over seeds against the method with the "
    "best mean, with Holm's correction. Bold: the best, if every other method differs from it at p < 0.05. The "
    "seeds draw splits of the same data, which overlap, so p tells of other splits and starts, not of other data; with "
    "few seeds the test has little power."
)


class Cell(NamedTuple):
    """A measure of one case over seeds."""

    values: dict[int, float]  # by seed, after the last round
    mean: float | None = None  # None if a seed lacks it
    spread: float | None = None  # sample standard deviation; None of one seed
    p: float | None = None  # against the best; None of the best itself, or without a test
    best: bool = False  # has the best mean
    bold: bool = False  # and every other case differs from it


class Compared(NamedTuple):
    """The table of one study: a row of cells for each case, in the order of `measures`."""

    measures: tuple[str, ...]
    rows: dict[str, list[Cell]]  # by label
    notes: tuple[str, ...]
    seeds: int


def compared(study: Study, outcomes: Sequence[Outcome], measures: Sequence[str]) -> Compared:
    """The measures of all cases after the last round."""
    columns = [
        _tested({label: _cell(study, outcomes, label, name) for label in study.labels}, name) for name in measures
    ]
    rows = {label: [column[label] for column in columns] for label in study.labels}
    return Compared(tuple(measures), rows, tuple(_notes(study, outcomes)), len(study.seeds))


def _cell(study: Study, outcomes: Sequence[Outcome], label: str, measure: str) -> Cell:
    ends = {one.seed: one.rows[-1].get(measure) for one in outcomes if one.label == label and one.rows}
    values = {seed: end for seed, end in ends.items() if end is not None}
    failed = any(one.label == label and one.diverged is not None for one in outcomes)
    if failed or len(values) < len(study.seeds):
        return Cell(values)
    found = np.array([values[seed] for seed in study.seeds])
    return Cell(values, float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else None)


def _tested(column: dict[str, Cell], measure: str) -> dict[str, Cell]:
    """The cells with the best one marked, and the test of each other one against it."""
    sign = 1 if measure in LOWER else -1
    known = {label: sign * cell.mean for label, cell in column.items() if cell.mean is not None}
    if len(known) < 2 or measure in NO_BEST:
        return column
    best = min(known, key=lambda label: known[label])
    others = [label for label in known if label != best]
    raw = {label: paired_p(column[label].values, column[best].values) for label in others}
    tested = {label: p for label, p in raw.items() if p is not None}
    adjusted = holm(tested)
    bold = len(tested) == len(others) and all(p < LEVEL for p in adjusted.values())
    changed = {label: column[label]._replace(p=p) for label, p in adjusted.items()}
    return column | changed | {best: column[best]._replace(best=True, bold=bold)}


def paired_p(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """p of the paired t-test over seeds; None of a single seed, or if all differences are equal (no spread)."""
    seeds = sorted(one)
    a, b = np.array([one[seed] for seed in seeds]), np.array([other[seed] for seed in seeds])
    spread = np.ptp(a - b)
    if len(seeds) < 2 or spread <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):
        return 1.0 if len(seeds) > 1 and np.array_equal(a, b) else None
    return float(stats.ttest_rel(a, b).pvalue)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p-values after Holm's step-down correction."""
    adjusted, highest = dict(p), 0.0
    for rank, label in enumerate(sorted(p, key=lambda label: p[label])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[label]))
        adjusted[label] = highest
    return adjusted


def _notes(study: Study, outcomes: Sequence[Outcome]) -> list[str]:
    said = []
    for label in study.labels:
        group = [one for one in outcomes if one.label == label]
        diverged = sorted(one.seed for one in group if one.diverged is not None)
        refused = [one for one in group if one.refused is not None]
        if diverged:
            said.append(f"{label} diverged with the seeds {', '.join(map(str, diverged))}.")
        if refused:
            said.append(f"{label} was not run: {refused[0].refused}.")
    return said


def heading(measure: str) -> str:
    """A measure as a table's heading: test_ndcg_20 becomes test NDCG@20."""
    words = measure.split("_")
    at = f"@{words.pop()}" if words[-1].isdigit() else ""
    return " ".join(NAMES.get(word, word) for word in words) + at


def number(value: float) -> str:
    """Four decimals; of very small and very large numbers, as many digits as help."""
    if value == 0 or 5e-4 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.5g}" if abs(value) > 1 else f"{value:.2g}"


def shown(cell: Cell, bold: str, between: str) -> str:
    """A cell as text; `bold` has a place for it."""
    if cell.mean is None:
        return "–"
    text = number(cell.mean) + ("" if cell.spread is None else f" {between} {number(cell.spread)}")
    return bold.format(text) if cell.bold else text


def p_shown(cell: Cell) -> str:
    if cell.p is None:
        return "best" if cell.best else ""
    return "< 0.0001" if cell.p < 1e-4 else f"{cell.p:.4f}"


def headings(table: Compared) -> list[str]:
    return ["method", *(text for name in table.measures for text in (heading(name), "p"))]


def cells(row: Sequence[Cell], bold: str = "{}", between: str = "±") -> list[str]:
    return [text for cell in row for text in (shown(cell, bold, between), p_shown(cell))]


def markdown(title: str, table: Compared) -> str:
    """A section with the table, aligned so that it can also be read as text."""
    rows = [[label, *cells(row, "**{}**")] for label, row in table.rows.items()]
    lines = [[text.replace("|", "\\|") for text in row] for row in [headings(table), *rows]]
    widths = [max(3, *(len(line[k]) for line in lines)) for k in range(len(lines[0]))]
    texts = ["| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    said = "".join(f"\n{note}\n" for note in table.notes)
    return f"## {title} (n = {table.seeds} seeds)\n\n" + "\n".join([texts[0], rule, *texts[1:]]) + f"\n{said}"


def latex(title: str, table: Compared) -> str:
    """A `table` environment; it needs the package booktabs."""
    spec = "l" + "rr" * len(table.measures)
    lines = [" & ".join(map(_tex, headings(table)))]
    for label, row in table.rows.items():
        lines.append(" & ".join([_tex(label), *map(_p_tex, cells(row, "\\textbf{{{}}}", "$\\pm$"))]))
    head, body = lines[0], " \\\\\n".join(lines[1:])
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{_tex(title)} ($n = {table.seeds}$ seeds). {_tex(CAVEAT)}}}\n"
        f"\\begin{{tabular}}{{{spec}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )


def _p_tex(text: str) -> str:
    return "--" if text == "–" else text.replace("< ", "$<$ ")


_ESCAPES = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$",
    "±": "$\\pm$", "–": "--",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_ESCAPES.get(sign, sign) for sign in text)
