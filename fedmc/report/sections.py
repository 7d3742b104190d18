"""The sections of a run's report that a reader needs no knowledge of the field for."""

from __future__ import annotations

import time

from fedmc.data.counts import Counts
from fedmc.evaluation.baselines import NAMES, Baselines
from fedmc.report import html
from fedmc.report.figures import dots, inline_svg, plot, save
from fedmc.report.legends import NDCG, RMSE
from fedmc.report.run_folder import Finished
from fedmc.report.sentences import change, traffic
from fedmc.report.title import data_name

HOW_TO_HOLD_OUT = "No ratings were held out, so nobody can tell how good the model is on new ones: use --test."
OF_NEW_USERS = "Whole users were held out, and folded in after training: how they are served is below, under Ranking."
MORE = "`fedmc train --baselines` also trains each organisation alone, and on all data in one place."
SAME_DATA = "All figures are of the same held-out data, which no method was trained on."


def trained_on(run: Finished) -> str:
    """The data in counts; of a run of an earlier version, what its settings say."""
    source = data_name(run.settings.get("source"), run.events)
    if run.counts is None:
        known = {"data": source, "organisations": run.settings.get("clients"), "held out": run.settings.get("test")}
        return html.section("What it was trained on", html.pairs({k: v for k, v in known.items() if v is not None}))
    values = {"data": source, **_counted(run.counts, run.unit)}
    return html.section("What it was trained on", html.pairs(values, "What the model was trained on"))


def _counted(found: Counts, unit: str) -> dict[str, object]:
    what, aside = "events" if found.events else "ratings", found.test + found.validation
    counted = f"{found.ratings:,} to train on" if aside else f"{found.ratings:,}"
    values: dict[str, object] = {"users": f"{found.users:,}", "items": f"{found.items:,}", what: counted}
    if found.lowest is not None:
        values[what] += f", from {found.lowest:g} to {found.highest:g} {unit}"  # type: ignore[operator]
    values["organisations"] = f"{found.clients:,} (clients), simulated on one machine"
    if found.first is not None and found.last is not None:
        values["period"] = f"{_day(found.first)} to {_day(found.last)}"
    held_out = f"{aside:,} {what}, {100 * found.held_out:.0f} % of all: not used for training"
    values["held out"] = held_out if aside else "nothing"
    return values


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def quality(run: Finished) -> str:
    """How good the model is, beside what can be had without it, and by round."""
    parts = [*_levels_table(run), *_curve(run), html.paragraph(traffic(run))]
    legend = NDCG if run.events else RMSE.format(unit=run.unit)
    return html.section("How good it is", html.paragraph(legend), *parts)


def _levels_table(run: Finished) -> list[str]:
    """The model beside its baselines."""
    found, record = run.baselines, {**run.ranked, **run.history.last}
    value = record.get("test_ndcg_20" if run.events else "test_rmse")
    if not isinstance(value, float):
        return [] if run.events else [html.paragraph(OF_NEW_USERS if run.ranked else HOW_TO_HOLD_OUT)]
    popular = record.get("test_popular_ndcg_20") if run.events else None
    others = [("popularity: the same items for everybody", popular, "how often items are had")]
    if found is not None:
        some = "" if found.trained_alone == run.clients else f" ({found.trained_alone:,} of {run.clients:,})"
        others += [
            ("biases only: averages of users and items", found.biases, "every rating"),
            (f"each organisation alone{some}", found.alone, "nothing"),
            ("the same model, all data in one place", found.pooled, "everything"),
        ]
    rows: list[tuple[object, ...]] = [("trained together", value, "", "updates only")]
    rows += [(name, base, change(value, base), leaves) for name, base, leaves in others if isinstance(base, float)]
    measure = "NDCG@20" if run.events else f"RMSE ({run.unit})"
    headings = "prediction by", measure, "this model is", "what leaves an organisation"
    table = html.table(headings, rows, sorts=False, marked={0: "this model"}, label="This model beside others")
    more = [] if found is not None and found.alone is not None else [MORE]
    return [table, html.paragraph(" ".join([SAME_DATA, *more]))]


def _curve(run: Finished) -> list[str]:
    """The measure by round, its best round marked, and the baselines as lines."""
    best = run.history.best()
    if best is None or len(best.points) < 2:
        return []
    found, levels = run.baselines, dict[str, float]()
    same = "rmse" if best.label.endswith("RMSE") else "ndcg_20"
    if found is not None and found.measure == same and not best.label.startswith("train"):
        levels = {NAMES[name]: value for name, value in found.values().items()}
    unit = run.unit if same == "rmse" else ""
    label = f"{best.label} ({unit})" if unit else best.label
    canvas = plot(best.points, "communication round", label, best=best.best, levels=levels)
    save(canvas, run.folder / "figures" / "quality")
    above = max(value for _, value in best.points) > canvas.axes[0].get_ylim()[1]
    cut = " The curve begins far above the drawing, which leaves that part out." if above else ""
    caption = f"{best.in_words(unit)} {best.chosen_by}{cut}"
    return [html.drawing([inline_svg(canvas, f"{best.label} by round, the best one marked")], caption)]


def gains(run: Finished) -> list[str]:
    """What each organisation gains over training alone, where that was computed."""
    found = run.baselines
    if found is None or not found.clients:
        return []
    measure = f"RMSE ({run.unit})" if found.measure == "rmse" else "NDCG@20"
    ordered = sorted(found.clients, key=lambda one: one.client)
    rows = [(one.label, one.alone, one.together) for one in ordered]
    canvas = dots(rows, ("alone", "together"), measure)
    save(canvas, run.folder / "figures" / "gains")
    better = "lower is better" if found.measure == "rmse" else "higher is better"
    caption = f"Each organisation's own held-out data, with a model of its own and with the model of all: {better}."
    drawing = html.drawing([inline_svg(canvas, f"{measure} of each organisation, alone and together")], caption)
    what = "ratings" if found.measure == "rmse" else "events"
    headings = "organisation", "users", what, "alone", "together", "together is"
    cells = [
        [one.label, one.users, one.ratings, one.alone, one.together, change(one.together, one.alone)] for one in ordered
    ]
    table = html.folded("As a table", html.table(headings, cells, label="What each organisation gains"))
    return [html.section("What each organisation gains", drawing, table, *_left_out(found))]


def _left_out(found: Baselines) -> list[str]:
    """Why organisations are missing from the list."""
    missing = found.trained_alone - len(found.clients)
    if not missing:
        return []
    few = "are not listed, because numbers about very few users would be about single users"
    return [html.paragraph(f"{missing:,} organisations with fewer than 5 users {few}.")]
