"""The page of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmc.data.files import write_whole
from fedmc.evaluation.coverage import SHOWN, percent
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.study import Figure, Panel
from fedmc.problem.ranking import CUTOFFS
from fedmc.report import applying, audit, claims, examples, html, sections, theory, title
from fedmc.report.comparison import LABELS, RANKING
from fedmc.report.figures import draw, inline_svg, panels, plot, save
from fedmc.report.run_folder import Finished, read
from fedmc.report.sentences import describe, ranking
from fedmc.training import ablation

COLUMNS = {
    "number": "round", "test_rmse": "test RMSE", "validation_rmse": "validation RMSE", "train_rmse": "train RMSE",
    "objective": "objective", "bound": "evidence bound (nats)", "bytes_up": "bytes up in the round",
    "bytes_down": "bytes down in the round", "seconds": "seconds of the round", "stationarity": "stationarity",
    "primal_residual": "primal residual", "beta_needed": "beta needed",
    "test_ndcg_20": "NDCG@20", "test_popular_ndcg_20": "NDCG@20 of popularity", "test_recall_20": "Recall@20",
    "test_popular_recall_20": "Recall@20 of popularity", "validation_ndcg_10": "validation NDCG@10",
}  # fmt: skip
JOINS = "The evidence bound falls while clients join, because the ratings of each add terms to it."
INTERVALS = (
    "The model says how sure it is: an interval around each prediction. Of 90 % intervals, about 90 % should hold "
    "the rating that the user gave."
)
NOMINAL = (
    "The baseline is the dashed diagonal: intervals that hold exactly the share of ratings that they promise. Below it "
    "they are too narrow and promise too much; above it they are wider than they need to be."
)


def write_report(folder: Path, title_of: str | None = None, users: Sequence[str] = ()) -> Path:
    """Write report.html and figures of a run folder, under another title if one is given.

    `users` are those who agreed that their recommendations are shown as examples.
    """
    run = read(folder)
    last, spent = run.history.last, run.history.last.get("epsilon")
    body = [
        html.summary([*describe(run), *_in_short(run)]),
        sections.trained_on(run),
        sections.quality(run),
        *sections.gains(run),
        *examples.section(run.model_in_range, run.unit, users),
        claims.section(run.privacy, run.clients, spent),
        *_intervals(run),
        *_ranking_table(run),
        *_worth(folder),
        *audit.of_folder(folder),
        html.folded_section("Curves", *_curves(run)),
        html.folded_section("Rounds", *_rounds(run)),
        *theory.section(run),
        html.folded_section("Settings", html.pairs(applying.that_apply(run.settings))),
        html.folded_section("Made with", html.pairs(html.versions())),
    ]  # fmt: skip
    rounds = f"{last['number']} rounds of training, {run.settings.get('active')} organisations in each"
    about = f"{title.organisations(run.settings)}, simulated on one machine: {rounds}"
    path = folder / "report.html"
    page = html.page(title_of or title.of_run(run.settings, run.events), about, body)
    write_whole(path, page.encode())
    return path


def _in_short(run: Finished) -> list[str]:
    """What intervals hold, and the privacy claim."""
    said = [] if run.intervals is None else [f"Each prediction has an interval: {run.intervals.at(0.9).in_words()}."]
    return [*said, claims.sentence(run.privacy)]


def _curves(run: Finished) -> list[str]:
    """The curves of those who know the field: objective, evidence bound and RMSE."""
    tested = run.history.last.get("test_rmse") is not None
    shown = (Panel("objective", "round"), *((Panel("test_rmse", "round"),) if tested else ()))
    figure, outcomes = Figure("run", "By round", shown), [Outcome("fedmc", "fedmc", 0, "", run.history.curve, None)]
    save(draw(figure, outcomes), run.folder / "figures" / "run")
    bound = _bound(run)
    return [html.drawing([*panels(figure, outcomes), *bound], f"{figure.title}. {JOINS}" if bound else figure.title)]


def _bound(run: Finished) -> list[str]:
    """The curve of the evidence bound, if the algorithm has one; it starts when the first clients have joined."""
    found = ((record["number"], record.get("bound")) for record in run.history.measured)
    points = [(float(number), bound) for number, bound in found if bound is not None]
    if not points:
        return []
    canvas = plot(points, "communication round", COLUMNS["bound"])
    save(canvas, run.folder / "figures" / "bound")
    return [inline_svg(canvas, "By round: evidence bound by communication round")]


def _intervals(run: Finished) -> list[str]:
    """What the model's intervals hold of the test ratings: a table of a few levels, and the curve of all."""
    found = run.intervals
    if found is None:
        return []
    canvas = plot(
        [(one.level, one.coverage) for one in found.levels],
        "probability that the intervals promise",
        "share of test ratings that they hold",
        diagonal=True,
    )
    save(canvas, run.folder / "figures" / "calibration")
    svg = inline_svg(canvas, "Calibration: share of test ratings inside the intervals by their level")
    headings = ("intervals", "hold", f"mean width ({run.unit})")
    rows = [(percent(one.level), f"{100 * one.coverage:.1f} %", one.width) for one in map(found.at, SHOWN)]
    counted = f"Computed from {found.ratings:,} test ratings."
    table = html.table(headings, rows, sorts=False)
    more = html.folded("By level", html.drawing([svg], NOMINAL))
    return [html.section("Intervals", html.paragraph(INTERVALS), table, html.paragraph(counted), more)]


def _worth(folder: Path) -> list[str]:
    """What each part of the model is worth, if the run found out."""
    found = ablation.load(folder)
    if not found:
        return []
    table = html.table(ablation.COLUMNS, ablation.rows(found), sorts=False)
    return [html.section("What each part is worth", table, html.paragraph(ablation.EXPLAINED))]


def _rounds(run: Finished) -> list[str]:
    """The measured rounds, the best one marked; columns that are empty are left out."""
    measured, best = run.history.measured, run.history.best()
    shown = {name: heading for name, heading in COLUMNS.items() if any(r.get(name) is not None for r in measured)}
    rows = [[record.get(name) for name in shown] for record in measured]
    numbers = [record["number"] for record in measured]
    marked = {} if best is None else {numbers.index(best.number): "best"}
    said = [] if best is None else [html.paragraph(best.chosen_by)]
    return [*said, html.table(list(shown.values()), rows, marked=marked)]


def _ranking_table(run: Finished) -> list[str]:
    """All ranking metrics of the last round or of the end, beside those of popularity as far as they are known."""
    found = {**run.history.last, **run.ranked}
    part = next((part for part in ("test", "validation") if f"{part}_ndcg_20" in found), None)
    if part is None:
        return []
    rows = [
        (f"{label}@{K}", found.get(f"{part}_{name}_{K}"), found.get(f"{part}_popular_{name}_{K}"))
        for K in CUTOFFS
        for name, label in LABELS.items()
    ]
    table = html.table(("metric", "model", "popularity"), rows, sorts=False)
    return [html.section("Ranking", *map(html.paragraph, [*ranking(run), RANKING]), html.folded("All metrics", table))]
