"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmc.evaluation.methods import ALONE
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.runner import load
from fedmc.evaluation.study import Study
from fedmc.evaluation.tables import Line, write
from fedmc.problem.ranking import CUTOFFS
from fedmc.report import applying, html
from fedmc.report.figures import draw, panels, save
from fedmc.report.legends import NDCG, RMSE
from fedmc.report.title import data_name

OWN = {
    "objective_at_copies": "at (U_i, W_i)", "nonzeros": "non-zeros",
    "cpu_seconds_to_common": "CPU s to common objective", "seconds_to_common": "s to common objective",
}  # fmt: skip
HEADINGS = {
    "method": "method", "test_rmse": "test RMSE", "test_ndcg_20": "NDCG@20", "spread": "± over seeds",
    "gap": "% to pooled", "objective": "objective", **OWN,
    "rounds_to_1pc": "rounds to 1 %", "megabytes_to_1pc": "MB to 1 %", "seconds_to_1pc": "s to 1 %",
    "megabytes": "MB in all", "seconds": "s in all",
    "cpu_seconds": "CPU s in all", "diverged": "diverged",
}  # fmt: skip
LABELS = {"ndcg": "NDCG", "recall": "Recall", "hit_rate": "HR", "map": "MAP", "mrr": "MRR"}
RANKING = "All items that a user has not had in training are ranked; those held out are relevant. Means over users."


CERTIFICATE = "It is computed for single runs only, not in comparisons: `fedmc train --diagnostics --report` adds it."


def write_report(folder: Path) -> Path:
    """Write tables, figures and report.html of the comparison in this folder, finished or not."""
    study, outcomes = load(folder)
    lines = write(study, outcomes, folder)
    figures = []
    for figure in study.figures:
        save(draw(figure, outcomes, _setting(study)), folder / "figures" / figure.name)
        figures.append(html.drawing(panels(figure, outcomes), figure.title))
    records = [line.record() for line in lines if line.refused is None]
    shown = [name for name in headings_of(study) if any(record.get(name) not in (None, 0) for record in records)]
    rows = [[record.get(name) for name in shown] for record in records]
    body = [
        html.summary(describe(study, outcomes, lines)),
        html.section("Curves", *figures),
        html.section("Methods", *_legend(study), html.table([HEADINGS[name] for name in shown], rows)),
        *_ranking(lines),
        html.section(
            "What was run",
            html.pairs(settings_in_words(study)),
            html.folded("Settings of each method", cases_in_words(study)),
        ),
        html.folded_section("The theory's certificate", html.paragraph(CERTIFICATE)),
        html.folded_section("Made with", html.pairs(html.versions())),
    ]
    path = folder / "report.html"
    path.write_text(html.page(study.title, _about(study), body), encoding="utf-8")
    return path


def headings_of(study: Study) -> list[str]:
    """The columns of the table, with what the study's figures show first, and how soon if they show it by time."""
    soon = [name for name in OWN if name.endswith("_to_common")] if study.by_time else []
    return list(dict.fromkeys(["method", *soon, *study.drawn, *HEADINGS]))


def _legend(study: Study) -> list[str]:
    """What the measure means that methods are compared by."""
    measure = {"test_rmse": RMSE.format(unit="the units of the ratings"), "test_ndcg_20": NDCG}.get(study.goal.measure)
    return [] if measure is None else [html.paragraph(measure)]


def ranking_table(lines: Sequence[Line], cutoff: int) -> tuple[list[str], list[list[object]]]:
    """Headings and rows of the ranking metrics at a cutoff, of the methods that have them."""
    headings = ["method", *(f"{label}@{cutoff}" for label in LABELS.values())]
    ranked = [line for line in lines if line.ranking]
    return headings, [[line.label, *(line.ranking.get(f"test_{name}_{cutoff}") for name in LABELS)] for line in ranked]


def _ranking(lines: Sequence[Line]) -> list[str]:
    if not any(line.ranking for line in lines):
        return []
    found = (html.table(*ranking_table(lines, cutoff)) for cutoff in CUTOFFS)
    return [html.section("Ranking", html.paragraph(RANKING), *found)]


def describe(study: Study, outcomes: Sequence[Outcome], lines: Sequence[Line]) -> list[str]:
    """The results in sentences."""
    central = {case.label for case in study.cases if case.kind.central is not None}
    federated = [line for line in lines if line.label not in central | _failed(lines)]
    said = []
    runs = len(study.cases) * len(study.seeds)
    if len(outcomes) < runs:
        said.append(f"Not finished: {runs - len(outcomes)} of {runs} runs are missing.")
    measured = [(value, line) for line in federated if (value := goal_of(study, line)) is not None]
    if measured:
        said += _describe_best(study, *max(measured, key=lambda one: study.goal.sign * one[0]), lines)
    diverged = [f"{line.method} ({line.diverged} seeds)" for line in lines if line.diverged]
    if diverged:
        said.append(f"Diverged: {', '.join(diverged)}.")
    said += [f"{line.method} was not run: {line.refused}." for line in lines if line.refused is not None]
    if federated:
        return said if measured else [*said, f"There is no {study.goal.name}: hold something out (--test)."]
    return [*said, "No federated method finished."]


def goal_of(study: Study, line: Line) -> float | None:
    """The measure that methods are compared by."""
    return (line.ranking | {"test_rmse": line.test_rmse}).get(study.goal.measure)


def _failed(lines: Sequence[Line]) -> set[str]:
    return {line.label for line in lines if line.diverged == line.seeds or line.refused is not None}


def _describe_best(study: Study, value: float, best: Line, lines: Sequence[Line]) -> list[str]:
    """The best federated method, compared with pooled data, clients that train alone, and popularity."""
    goal = study.goal
    text = f"{best.method} has the {goal.superlative} {goal.name} of the federated methods: {value:.4f}"
    if best.gap is not None:
        side = "above" if best.gap >= 0 else "below"
        text += f", {abs(best.gap):.2f} % {side} the same model on pooled data"
    said = [text + "."]
    if best.rounds_to_1pc is not None:
        said.append(
            f"It stayed within 1 % of pooled data from round {best.rounds_to_1pc:.0f} on, "
            f"after {best.megabytes_to_1pc:,.1f} MB in both directions."
        )
    alone = next((found for line in lines if line.label == ALONE and (found := goal_of(study, line))), None)
    if alone is not None:
        change = 100 * (value / alone - 1)
        how = f"{abs(change):.1f} % {'more' if change > 0 else 'less'}"
        said.append(f"Clients that train alone have a {goal.name} of {alone:.4f}; together, {how}.")
    popular = best.ranking.get("test_popular_ndcg_20")
    if popular is not None:
        said.append(f"Its NDCG@20 is {best.ranking['test_ndcg_20']:.4f}, that of popularity {popular:.4f}.")
    return said


def _about(study: Study) -> str:
    seeds = ", ".join(map(str, study.seeds))
    return (
        f"{study.source}: {study.clients} clients ({study.partition}), {study.active} a round, {study.rounds} rounds, "
        f"test {study.test}, seeds {seeds}"
    )


def _setting(study: Study) -> str:
    """What was compared on which data, for a figure that stands by itself."""
    data, seeds = data_name(study.source, study.events is not None), len(study.seeds)
    spread = "1 seed" if seeds == 1 else f"mean and range of {seeds} seeds"
    return f"{study.title}\n{data}: {study.clients} clients, {study.active} a round; {spread}"


def settings_in_words(study: Study) -> dict[str, object]:
    names = ("source", "clients", "active", "rounds", "partition", "test", "seeds", "measure_every", "duplicates")
    optional = ("columns", "query", "events", "confidence_scale")
    given = {name: getattr(study, name) for name in optional if getattr(study, name) is not None}
    return {name: getattr(study, name) for name in names} | given | {"seeds": ", ".join(map(str, study.seeds))}


def cases_in_words(study: Study) -> str:
    return "".join(
        html.heading(case.label)
        + html.pairs(applying.that_apply(case.settings(study.seeds[0], study.active).to_dict()))
        for case in study.cases
    )
