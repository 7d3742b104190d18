"""Curves in the paper's layout: the objective on a log axis, the mean over seeds as a line, the range as a band."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedmc.errors import quoted, require
from fedmc.evaluation.outcomes import Outcome, value
from fedmc.evaluation.study import Figure, Panel
from fedmc.training.rounds import Round

COLOURS = ("#3b7dd8", "#d9622b", "#2f9e6e", "#b04fc4", "#c8961e", "#d6455d", "#2aa5b5", "#7d8a35", "#8673e0", "#a0705a")
MEASURES = ("test_rmse", "validation_rmse", "validation_ndcg_20", "train_rmse", "objective")  # the first known one
INSET = (0.42, 0.4, 0.56, 0.5)  # left, bottom, width and height, as shares of the axes
CLOSE = 0.1  # ends in less than this share of the axis are magnified
FEW = 30  # points of a curve that are marked one by one
INK = "#5f6b7a"  # replaced by the page's text colour in the report
AXES = {
    "objective": "objective F(U, V)", "objective_at_copies": "objective F(U_i, W_i)",
    "test_rmse": "test RMSE", "test_ndcg_20": "test NDCG@20",
    "nonzeros": "share of non-zeros in U and V",
    "round": "communication round", "seconds": "seconds of updates", "cpu_seconds": "CPU seconds of updates",
    "megabytes": "MB travelled, both ways",
}  # fmt: skip
STYLE: dict[Any, Any] = {  # matplotlib types the keys as a Literal of all its settings
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.color": INK,
    "font.size": 10, "legend.frameon": False, "svg.hashsalt": "fedmc", "svg.fonttype": "none", "lines.linewidth": 1.8,
}  # fmt: skip


def draw(figure: Figure, outcomes: Sequence[Outcome], setting: str = "") -> Canvas:
    """The figure's panels side by side, the setting above, one legend below."""
    labels = list(dict.fromkeys(outcome.label for outcome in outcomes))
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(max(4.6 * len(figure.panels), 5.2), 3.9), layout="constrained")
        axes = canvas.subplots(1, len(figure.panels), squeeze=False)[0]
        handles: dict[str, Line2D] = {}
        for place, panel in zip(axes, figure.panels, strict=True):
            shown = [label for label in labels if not panel.labels or label in panel.labels]
            for label, line in _draw_panel(place, panel, shown, outcomes).items():
                handles.setdefault(label, line)
        columns = min(len(handles), 3 if len(figure.panels) > 1 else 2) or 1
        lines = setting.count("\n") + 1 if setting else 0
        canvas.set_figheight(3.4 + 0.22 * -(-len(handles) // columns) + 0.2 * lines)
        canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        if setting:
            canvas.suptitle(setting, fontsize=9)
    return canvas


def _draw_panel(place: Axes, panel: Panel, labels: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Line2D]:
    """The curves of these cases and the axes; returns each curve's line, for the legend."""
    groups = {label: [one for one in outcomes if one.label == label and one.rows] for label in labels}
    lines = _curves(place, panel, groups)
    place.set_xlabel(AXES[panel.x])
    place.set_ylabel(AXES[panel.y])
    if panel.x == "round":
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.y.startswith("objective"):
        place.set_yscale("log")
    elif panel.y == "test_rmse":
        _magnify_ends(place, panel, groups)
    return lines


def _curves(place: Axes, panel: Panel, groups: Mapping[str, Sequence[Outcome]]) -> dict[str, Line2D]:
    lines = {}
    for number, (label, group) in enumerate(groups.items()):
        line = _curve(place, panel, group, COLOURS[number % len(COLOURS)]) if group else None
        if line is not None:
            lines[label] = line
    return lines


def _curve(place: Axes, panel: Panel, group: Sequence[Outcome], colour: str) -> Line2D | None:
    """Mean and range of one case. A method without rounds is a dashed line, or nothing if it lacks that measure."""
    if group[0].rows[0]["round"] is None:
        values = [value(outcome.rows[-1], panel.y) for outcome in group]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            return None
        return place.axhline(float(np.mean(known)), color=colour, linestyle="--", linewidth=1.4)
    length = min(len(outcome.rows) for outcome in group)
    y = np.array([[value(row, panel.y) for row in outcome.rows[:length]] for outcome in group], float)
    x = np.array([[value(row, panel.x) for row in outcome.rows[:length]] for outcome in group], float).mean(axis=0)
    if len(group) > 1:
        place.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.18, linewidth=0)
    return place.plot(x, y.mean(axis=0), color=colour)[0]


def _magnify_ends(place: Axes, panel: Panel, groups: Mapping[str, Sequence[Outcome]]) -> None:
    """If the final values lie close together below those of the start, show them once more, magnified."""
    ends = [outcome.rows[-1].get("test_rmse") for group in groups.values() for outcome in group]
    known = [end for end in ends if end is not None]
    if len(known) < 2 or max(known) == min(known):
        return
    low, high, (bottom, start) = min(known), max(known), place.get_ylim()
    top = high + max(high - low, 0.05 * high)
    if high - low < CLOSE * (start - bottom) and top < start:
        inset = place.inset_axes(INSET)
        _curves(inset, panel, groups)
        inset.set_ylim(low - 0.08 * (top - low), top)
        inset.set_title("magnified", fontsize=8)
        inset.tick_params(labelsize=8)


def save(canvas: Canvas, stem: Path) -> list[Path]:
    """The figure as PNG, PDF and SVG; no date inside, so that the same curves give the same file."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None}), ("svg", {"Date": None})):
        paths.append(stem.with_suffix(f".{ending}"))
        with matplotlib.rc_context(STYLE):
            canvas.savefig(paths[-1], dpi=150, metadata=metadata, facecolor="white")
    return paths


def panels(figure: Figure, outcomes: Sequence[Outcome]) -> list[str]:
    """Each panel as a separate SVG, so that the page can place them side by side or below each other."""
    singles = (Figure(figure.name, figure.title, (panel,)) for panel in figure.panels)
    return [inline_svg(draw(single, outcomes), _alt_text(single)) for single in singles]


def plot(
    points: Sequence[tuple[float, float]],
    x: str,
    y: str,
    diagonal: bool = False,
    best: tuple[float, float] | None = None,
    kind: type[Canvas] = Canvas,
    levels: Mapping[str, float] | None = None,
) -> Canvas:
    """One curve over axes with these names: by round, or from 0 to 1 with the diagonal as a dashed line.

    The `best` of the points is marked. `levels` are drawn as dashed lines with their names.
    """
    with matplotlib.rc_context(STYLE):
        canvas = kind(figsize=(5.2, 3.6), layout="constrained")
        place = canvas.subplots()
        if diagonal:
            place.axline((0, 0), slope=1, color=INK, linestyle="--", linewidth=1.4)
            place.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        else:
            place.xaxis.set_major_locator(MaxNLocator(integer=True))
        few = len(points) <= FEW
        place.plot(*zip(*points, strict=True), color=COLOURS[0], marker="o" if few else "", markersize=3)
        if best is not None:
            place.plot(*best, color=COLOURS[1], marker="o", markersize=7, fillstyle="none", markeredgewidth=1.8)
            place.annotate(f"best: round {best[0]:.0f}", best, (0, 9), textcoords="offset points", ha="center")
        place.set(xlabel=x, ylabel=y)
        if levels:
            _draw_levels(canvas, place, points, levels)
    return canvas


def _draw_levels(
    canvas: Canvas, place: Axes, points: Sequence[tuple[float, float]], levels: Mapping[str, float]
) -> None:
    """Dashed lines with a legend below; starting values far above all of them are cut off."""
    lines = [
        place.axhline(level, color=colour, linestyle="--", linewidth=1.4)
        for level, colour in zip(levels.values(), COLOURS[1:], strict=False)
    ]
    canvas.legend(
        [*place.get_lines()[:1], *lines], ["this model", *levels], loc="outside lower center", ncols=2,
    )  # fmt: skip
    ends = [points[-1][1], *levels.values()]
    low, high = min(ends), max(ends)
    margin = max(high - low, 0.05 * abs(high), 1e-9)
    bottom, top = place.get_ylim()
    place.set_ylim(max(bottom, low - 0.5 * margin), top if top <= high + 2 * margin else high + margin)


def dots(rows: Sequence[tuple[str, float, float]], names: tuple[str, str], x: str) -> Canvas:
    """A line for each row, from its first value to its second one; the rows are named if they are few."""
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(5.2, 1.5 + min(0.24 * len(rows), 6)), layout="constrained")
        place, heights = canvas.subplots(), np.arange(len(rows))[::-1]
        before, after = (np.array([row[k] for row in rows], float) for k in (1, 2))
        place.hlines(heights, before, after, color=INK, alpha=0.5, linewidth=1.4)
        drawn = [
            place.plot(values, heights, linestyle="", marker=marker, color=colour, markersize=6)[0]
            for values, marker, colour in ((before, "s", COLOURS[1]), (after, "o", COLOURS[0]))
        ]
        place.set_yticks(heights, [row[0] for row in rows]) if len(rows) <= FEW else place.set_yticks([])
        place.set(xlabel=x)
        place.grid(axis="y", visible=False)
        canvas.legend(drawn, names, loc="outside lower center", ncols=2)
    return canvas


def decades(curves: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Canvas:
    """Curves by name, with both axes in powers of ten."""
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(5.2, 3.9), layout="constrained")
        place = canvas.subplots()
        for colour, (name, points) in zip(COLOURS, curves.items(), strict=False):
            place.plot(*zip(*points, strict=True), color=colour, label=name)
        place.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        canvas.legend(loc="outside lower center", ncols=1)
    return canvas


def plot_history(rounds: Sequence[Round], measure: str | None = None) -> Shown:
    """A measure of a run by round; by default of what was held out, else of the training ratings."""
    rows = [round.record() for round in rounds]
    known = list(dict.fromkeys(name for row in rows for name, found in row.items() if isinstance(found, float)))
    name = measure or next((one for one in MEASURES if one in known), known[0])
    require(name in known, lambda: f"the history has no {quoted(name)}: choose one of {', '.join(known)}")
    points = [(float(cast(float, row["number"])), float(cast(float, row[name]))) for row in rows if name in row]
    return cast(Shown, plot(points, AXES["round"], name.replace("_", " ").replace("rmse", "RMSE"), kind=Shown))


class Shown(Canvas):
    """A figure that a notebook shows without pyplot."""

    def _repr_svg_(self) -> str:
        return inline_svg(self, "measure by round")


def _alt_text(figure: Figure) -> str:
    return f"{figure.title}: {AXES[figure.panels[0].y]} by {AXES[figure.panels[0].x]}"


def inline_svg(canvas: Canvas, label: str) -> str:
    """The figure as SVG for a page: transparent, as wide as its container, in the page's text colour."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", svg, count=1)
    svg = re.sub(r'<svg([^>]*?) height="[^"]*"', r"<svg\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
