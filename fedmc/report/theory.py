"""What the paper's theory says about a run: the condition on beta, and the O(1/K) bound beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedmc.report import html
from fedmc.report.figures import decades, inline_svg, save
from fedmc.report.run_folder import Finished
from fedmc.report.sentences import certificate
from fedmc.training.rate import in_words

TITLE = "The theory's certificate and rate"
MEASURED, BOUND = "smallest so far", "the theorem's bound C (L⁰ - α)/K"
EXPLAINED = (
    "dist(0, ∂Φ)² by round K, smallest so far. The bound is on its expectation over the draws of clients; this is one "
    "run."
)
UNBOUNDED = "The bound's constant exists only if the theorem certifies the run."


def section(run: Finished) -> list[str]:
    """Condition, rate and figure; nothing of a run without full diagnostics."""
    if run.history.last.get("beta_needed") is None:
        return []
    said = " ".join([certificate(run.history.last), *in_words(run.history.last)])
    return [html.folded_section(TITLE, html.paragraph(said), *_figure(run))]


def _figure(run: Finished) -> list[str]:
    """Measured and proved, both axes in powers of ten."""
    records = run.history.measured
    curves = {MEASURED: _points(records, "min_dist2"), BOUND: _points(records, "dist2_bound")}
    shown = {name: points for name, points in curves.items() if points}
    if MEASURED not in shown:
        return []
    steep = run.history.last.get("dist2_slope")
    if steep is not None:
        label = f"{MEASURED}; slope over the last decade {steep:.2f}"
        shown = {label: shown.pop(MEASURED)} | shown
    canvas = decades(shown, "communication round K", "dist(0, ∂Φ)²")
    save(canvas, run.folder / "figures" / "rate")
    caption = EXPLAINED if BOUND in shown else f"{EXPLAINED} {UNBOUNDED}"
    return [html.drawing([inline_svg(canvas, "Rate: dist(0, ∂Φ)² and its bound by round")], caption)]


def _points(records: Sequence[Mapping[str, object]], name: str) -> list[tuple[float, float]]:
    """The positive values of a measure by round, from round 1 on."""
    found = ((record["number"], record.get(name)) for record in records)
    return [
        (float(k), value) for k, value in found if isinstance(k, int) and k and isinstance(value, float) and value > 0
    ]
