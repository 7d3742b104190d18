"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmc.evaluation.runner import Outcome, load
from fedmc.evaluation.study import CENTRAL, Study
from fedmc.evaluation.tables import Line, write
from fedmc.report import html
from fedmc.report.figures import draw, panels, save

HEADINGS = {
    "method": "method", "test_rmse": "test RMSE", "spread": "± over seeds", "gap": "% above pooled",
    "objective": "objective",
    "rounds_to_1pc": "rounds to 1 %", "megabytes_to_1pc": "MB to 1 %", "seconds_to_1pc": "s to 1 %",
    "megabytes": "MB in all", "seconds": "s in all", "diverged": "diverged",
}  # fmt: skip


CERTIFICATE = (
    "It belongs to single runs and is not worked out in comparisons: `fedmc train --diagnostics --report` adds it."
)


def write_report(folder: Path) -> Path:
    """Tables, figures and report.html of the comparison in this folder, finished or not."""
    study, outcomes = load(folder)
    lines = write(study, outcomes, folder)
    figures = []
    for figure in study.figures:
        save(draw(figure, outcomes), folder / "figures" / figure.name)
        figures.append(html.drawing(panels(figure, outcomes), figure.title))
    shown = [name for name in HEADINGS if any(getattr(line, name) not in (None, 0) for line in lines)]
    rows = [[getattr(line, name) for name in shown] for line in lines]
    body = [
        html.summary(in_words(study, outcomes, lines)),
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


def in_words(study: Study, outcomes: Sequence[Outcome], lines: Sequence[Line]) -> list[str]:
    """What came out, in plain words."""
    methods = {outcome.label: outcome.method for outcome in outcomes}
    federated = [line for line in lines if methods[line.method] not in CENTRAL and line.diverged < line.seeds]
    central = {methods[line.method]: line for line in lines if methods[line.method] in CENTRAL}
    said = []
    missing = len(study.cases) * len(study.seeds) - len(outcomes)
    if missing:
        said.append(f"Not finished: {missing} of {len(study.cases) * len(study.seeds)} runs are still to be done.")
    if federated:
        best = min(federated, key=lambda line: line.test_rmse)
        words = f"{best.method} came out best of the federated methods, with a test RMSE of {best.test_rmse:.4f}"
        if best.gap is not None:
            side = "above" if best.gap >= 0 else "below"
            words += f", {abs(best.gap):.2f} % {side} the same model on pooled data"
        said.append(words + ".")
        if best.rounds_to_1pc is not None:
            said.append(
                f"It stayed within 1 % of pooled data from round {best.rounds_to_1pc:.0f} on, "
                f"after {best.megabytes_to_1pc:,.1f} MB in both directions."
            )
        if "alone" in central:
            gain = 100 * (1 - best.test_rmse / central["alone"].test_rmse)
            alone = central["alone"].test_rmse
            said.append(f"Clients that train alone err by {alone:.4f}: together they save {gain:.1f} % of that.")
    if any(line.diverged for line in lines):
        said.append(
            "Diverged: " + ", ".join(f"{line.method} ({line.diverged} seeds)" for line in lines if line.diverged) + "."
        )
    return said or ["No federated method finished."]


def _about(study: Study) -> str:
    seeds = ", ".join(map(str, study.seeds))
    return (
        f"{study.source}: {study.clients} clients ({study.partition}), {study.active} a round, {study.rounds} rounds, "
        f"test {study.test}, seeds {seeds}"
    )


def _settings(study: Study) -> dict[str, object]:
    names = ("source", "clients", "active", "rounds", "partition", "test", "seeds", "measure_every")
    return {name: getattr(study, name) for name in names} | {"seeds": ", ".join(map(str, study.seeds))}


def _cases(study: Study) -> str:
    return "".join(
        html.heading(case.label) + html.pairs(case.settings(study.seeds[0], study.active).to_dict())
        for case in study.cases
    )
