"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmc.evaluation.methods import CENTRAL
from fedmc.evaluation.runner import Outcome, load
from fedmc.evaluation.study import Study
from fedmc.evaluation.tables import Line, write
from fedmc.report import html
from fedmc.report.figures import draw, panels, save

HEADINGS = {
    "method": "method", "test_rmse": "test RMSE", "spread": "± over seeds", "gap": "% above pooled",
    "objective": "objective",
    "rounds_to_1pc": "rounds to 1 %", "megabytes_to_1pc": "MB to 1 %", "seconds_to_1pc": "s to 1 %",
    "megabytes": "MB in all", "seconds": "s in all", "diverged": "diverged",
}  # fmt: skip


CERTIFICATE = "It is computed for single runs only, not in comparisons: `fedmc train --diagnostics --report` adds it."


def write_report(folder: Path) -> Path:
    """Write tables, figures and report.html of the comparison in this folder, finished or not."""
    study, outcomes = load(folder)
    lines = write(study, outcomes, folder)
    figures = []
    for figure in study.figures:
        save(draw(figure, outcomes), folder / "figures" / figure.name)
        figures.append(html.drawing(panels(figure, outcomes), figure.title))
    shown = [name for name in HEADINGS if any(getattr(line, name) not in (None, 0) for line in lines)]
    rows = [[getattr(line, name) for name in shown] for line in lines]
    body = [
        html.summary(describe(study, outcomes, lines)),
        html.section("Curves", *figures),
        html.section("Methods", html.table([HEADINGS[name] for name in shown], rows)),
        html.section(
            "What was run", html.pairs(_settings(study)), html.folded("Settings of each method", _cases(study))
        ),
        html.section("The theory's certificate", html.paragraph(CERTIFICATE)),
        html.section("Made with", html.pairs(html.versions())),
    ]
    path = folder / "report.html"
    path.write_text(html.page(study.title, _about(study), body), encoding="utf-8")
    return path


def describe(study: Study, outcomes: Sequence[Outcome], lines: Sequence[Line]) -> list[str]:
    """The results in sentences."""
    central = {case.label for case in study.cases if case.kind.central is not None}
    federated = [line for line in lines if line.label not in central and line.diverged < line.seeds]
    alone = next((line for line in lines if line.label == CENTRAL["alone"].label), None)
    said = []
    runs = len(study.cases) * len(study.seeds)
    if len(outcomes) < runs:
        said.append(f"Not finished: {runs - len(outcomes)} of {runs} runs are missing.")
    if federated:
        said += _describe_best(min(federated, key=lambda line: line.test_rmse), alone)
    diverged = [f"{line.method} ({line.diverged} seeds)" for line in lines if line.diverged]
    if diverged:
        said.append(f"Diverged: {', '.join(diverged)}.")
    return said or ["No federated method finished."]


def _describe_best(best: Line, alone: Line | None) -> list[str]:
    """The best federated method, compared with pooled data and with clients that train alone."""
    text = f"{best.method} has the lowest test RMSE of the federated methods: {best.test_rmse:.4f}"
    if best.gap is not None:
        side = "above" if best.gap >= 0 else "below"
        text += f", {abs(best.gap):.2f} % {side} the same model on pooled data"
    said = [text + "."]
    if best.rounds_to_1pc is not None:
        said.append(
            f"It stayed within 1 % of pooled data from round {best.rounds_to_1pc:.0f} on, "
            f"after {best.megabytes_to_1pc:,.1f} MB in both directions."
        )
    if alone is not None:
        gain = 100 * (1 - best.test_rmse / alone.test_rmse)
        said.append(f"Clients that train alone have a test RMSE of {alone.test_rmse:.4f}; together, {gain:.1f} % less.")
    return said


def _about(study: Study) -> str:
    seeds = ", ".join(map(str, study.seeds))
    return (
        f"{study.source}: {study.clients} clients ({study.partition}), {study.active} a round, {study.rounds} rounds, "
        f"test {study.test}, seeds {seeds}"
    )


def _settings(study: Study) -> dict[str, object]:
    names = ("source", "clients", "active", "rounds", "partition", "test", "seeds", "measure_every", "duplicates")
    given = {name: getattr(study, name) for name in ("columns", "query") if getattr(study, name) is not None}
    return {name: getattr(study, name) for name in names} | given | {"seeds": ", ".join(map(str, study.seeds))}


def _cases(study: Study) -> str:
    return "".join(
        html.heading(case.label) + html.pairs(case.settings(study.seeds[0], study.active).to_dict())
        for case in study.cases
    )
