"""The page of one run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from fedmc.errors import InputError
from fedmc.evaluation import coverage, final
from fedmc.evaluation.coverage import SHOWN, Calibration, percent
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.study import Figure, Panel
from fedmc.privacy import modes
from fedmc.privacy.protocol import Privacy
from fedmc.problem.ranking import CUTOFFS, beside
from fedmc.report import audit, claims, html
from fedmc.report.comparison import LABELS, RANKING
from fedmc.report.figures import draw, inline_svg, panels, plot, save
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
NOMINAL = (
    "The baseline is the dashed diagonal: intervals that hold exactly the share of ratings that they promise. Below it "
    "they are too narrow and promise too much; above it they are wider than they need to be."
)


class Record(TypedDict, total=False):
    """A line of history.jsonl: the fields of every round, and those of measured rounds only."""

    number: int
    seconds: float
    bytes_up: int
    bytes_down: int
    objective: float | None
    bound: float | None
    train_rmse: float
    test_rmse: float | None
    beta_needed: float | None
    certified: bool | None
    epsilon: float | None


class History(NamedTuple):
    """A run: all rounds, the measured ones, and the curve with cumulative bytes and seconds."""

    rounds: Sequence[Record]
    measured: Sequence[Record]
    curve: list[dict[str, float | None]]  # the measured rounds, with bytes and seconds since the start

    @property
    def last(self) -> Record:
        return self.measured[-1]


def write_report(folder: Path, others: Mapping[str, float] | None = None) -> Path:
    """Write report.html and figures of a run folder; `others` are test RMSEs of other methods, by name."""
    others = others or {}
    settings, history = _read(folder)
    outcomes = [Outcome("fedmc", "fedmc", 0, "", history.curve, None), *map(_level, others, others.values())]
    tested = history.last.get("test_rmse") is not None
    shown_panels = (Panel("objective", "round"), *((Panel("test_rmse", "round"),) if tested else ()))
    figure = Figure("run", "By round", shown_panels)
    save(draw(figure, outcomes), folder / "figures" / "run")
    intervals = coverage.load(folder)
    bound = _bound(history, folder)
    curves, caption = [*panels(figure, outcomes), *bound], f"{figure.title}. {JOINS}" if bound else figure.title
    said = [] if intervals is None else [f"{intervals.at(0.9).in_words()}."]
    body = [
        html.summary([*describe(settings, history, others, final.load(folder)), *said]),
        html.section("Curves", html.drawing(curves, caption)),
        *_comparison(history, others),
        *([] if intervals is None else [_intervals(intervals, folder)]),
        *_ranking_table(history.last, final.load(folder)),
        *_worth(folder),
        claims.section(_privacy(settings), int(str(settings.get("clients", 1))), history.last.get("epsilon")),
        html.section("Rounds", _table(history)),
        html.section("The theory's certificate", html.paragraph(certificate(history.last))),
        *audit.of_folder(folder),
        html.section("Settings", html.pairs(settings)),
        html.section("Made with", html.pairs(html.versions())),
    ]
    about = f"{settings.get('source', '')}: {settings.get('clients')} clients, {settings.get('active')} a round"
    title = f"fedmc: {settings.get('source', 'a run')}, rank {settings.get('rank')}"
    path = folder / "report.html"
    path.write_text(html.page(title, about, body), encoding="utf-8")
    return path


def _read(folder: Path) -> tuple[dict[str, object], History]:
    try:
        settings = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
        lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        rounds: list[Record] = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    measured: list[Record] = []
    curve: list[dict[str, float | None]] = []
    up, down, seconds = 0, 0, 0.0
    for record in rounds:
        up, down, seconds = up + record["bytes_up"], down + record["bytes_down"], seconds + record["seconds"]
        if "objective" in record:
            measured.append(record)
            rmse = {"train_rmse": record.get("train_rmse"), "test_rmse": record.get("test_rmse")}
            point = {"objective": record["objective"], "round": record["number"], "up": up, "down": down}
            curve.append({**rmse, **point, "seconds": seconds})
    if not measured:
        raise InputError(f"{folder} holds no measured round")
    return settings, History(rounds, measured, curve)


def _level(name: str, rmse: float) -> Outcome:
    """Another method as a horizontal line."""
    return Outcome(name, "pooled", 0, "", [{"round": None, "seconds": 0.0, "test_rmse": rmse}], None)


def _comparison(history: History, others: Mapping[str, float]) -> list[str]:
    if not others:
        return []
    compared = [("fedmc", history.last["test_rmse"]), *others.items()]
    return [html.section("Other methods", html.table(("method", "test RMSE"), compared))]


def _bound(history: History, folder: Path) -> list[str]:
    """The curve of the evidence bound, if the algorithm has one; it starts when the first clients have joined."""
    found = ((record["number"], record.get("bound")) for record in history.measured)
    points = [(float(number), bound) for number, bound in found if bound is not None]
    if not points:
        return []
    canvas = plot(points, "communication round", COLUMNS["bound"])
    save(canvas, folder / "figures" / "bound")
    return [inline_svg(canvas, "By round: evidence bound by communication round")]


def _intervals(found: Calibration, folder: Path) -> str:
    """What the model's intervals hold of the test ratings: a table of a few levels, and the curve of all."""
    canvas = plot(
        [(one.level, one.coverage) for one in found.levels],
        "probability that the intervals promise",
        "share of test ratings that they hold",
        diagonal=True,
    )
    save(canvas, folder / "figures" / "calibration")
    svg = inline_svg(canvas, "Calibration: share of test ratings inside the intervals by their level")
    headings = ("intervals", "hold", "mean width")
    rows = [(percent(one.level), f"{100 * one.coverage:.1f} %", one.width) for one in map(found.at, SHOWN)]
    counted = f"Computed from {found.ratings:,} test ratings. Widths are on the scale of the ratings."
    parts = html.table(headings, rows, sorts=False), html.paragraph(counted), html.drawing([svg], NOMINAL)
    return html.section("Intervals", *parts)


def _worth(folder: Path) -> list[str]:
    """What each part of the model is worth, if the run found out."""
    found = ablation.load(folder)
    if not found:
        return []
    table = html.table(ablation.COLUMNS, ablation.rows(found), sorts=False)
    return [html.section("What each part is worth", table, html.paragraph(ablation.EXPLAINED))]


def _table(history: History) -> str:
    """The measured rounds; columns that are empty are left out."""
    shown = {
        name: heading for name, heading in COLUMNS.items() if any(r.get(name) is not None for r in history.measured)
    }
    rows = [[record.get(name) for name in shown] for record in history.measured]
    return html.table(list(shown.values()), rows)


def describe(
    settings: Mapping[str, object], history: History, others: Mapping[str, float], ranked: Mapping[str, float]
) -> list[str]:
    """The results of the run, in sentences; `ranked` are metrics that were computed at its end."""
    error, on = history.last.get("test_rmse"), "ratings it has not seen"
    if error is None and "train_rmse" in history.last:
        error, on = history.last["train_rmse"], "the ratings it was trained on"
    said = [] if error is None else [f"the model has an RMSE of {error:.4f} on {on}."]
    said = [f"After {history.last['number']} rounds {one}" for one in said or [_ranking({**history.last, **ranked})]]
    if error is not None and ranked:
        said.append(f"T{_ranking(ranked)[1:]}")
    for name, rmse in others.items():
        assert error is not None
        change = 100 * (error / rmse - 1)
        said.append(f"For comparison, {name}: {rmse:.4f} ({abs(change):.1f} % {'lower' if change > 0 else 'higher'}).")
    up = sum(record["bytes_up"] for record in history.rounds) / 1e6
    down = sum(record["bytes_down"] for record in history.rounds) / 1e6
    seconds = sum(record["seconds"] for record in history.rounds)
    sent = _privacy(settings).server_saw()
    said.append(
        f"{settings.get('clients')} clients sent {up:,.1f} MB and received {down:,.1f} MB in all; the updates took "
        f"{seconds:,.1f} seconds. {sent} Ratings, events and user factors never left a client."
    )
    return said


def _privacy(settings: Mapping[str, object]) -> Privacy:
    """The privacy mode of a run, from its settings."""
    words = {name: value for name, value in settings.items() if name in modes.WORDS}
    return modes.parse(str(settings.get("privacy", "plain")), words)


def _ranking(record: Mapping[str, object]) -> str:
    """How a model of events ranks, beside popularity."""
    part = next((part for part in ("test", "validation") if f"{part}_ndcg_20" in record), None)
    if part is None:
        return "the model was not measured on held-out events: hold some out (--test) to see how it ranks."
    ndcg, recall = (beside(record, part, name) for name in ("ndcg_20", "recall_20"))
    return f"the model ranks what it has not seen with an NDCG@20 of {ndcg} and a Recall@20 of {recall}."


def _ranking_table(record: Mapping[str, object], ranked: Mapping[str, float]) -> list[str]:
    """All ranking metrics of the last round or of the end, beside those of popularity as far as they are known."""
    found = {**record, **ranked}
    parts = (part for part in ("test", "validation") if f"{part}_ndcg_20" in found)
    part = next(parts, None)
    if part is None:
        return []
    rows = [
        (f"{label}@{K}", found.get(f"{part}_{name}_{K}"), found.get(f"{part}_popular_{name}_{K}"))
        for K in CUTOFFS
        for name, label in LABELS.items()
    ]
    table = html.table(("metric", "model", "popularity"), rows, sorts=False)
    return [html.section("Ranking", html.paragraph(RANKING), table)]


def certificate(record: Record) -> str:
    """Whether the convergence theorem covers this run, in a sentence."""
    if record.get("bound") is not None:
        return "The theorem is about FedMC-ADMM. The progress of a Bayesian model shows in its evidence bound."
    needed = record.get("beta_needed")
    if needed is None:
        return "Not worked out in this run: `fedmc train --diagnostics` adds it."
    text = f"With the constants measured so far the theorem requires beta above {needed:.3g}."
    if record.get("certified"):
        return f"{text} This run's beta is: its convergence is certified."
    return f"{text} It does not certify this run: beta is smaller, or the theorem does not cover its settings."
