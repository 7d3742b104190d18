"""The page of a federation's run, made at its server from what the run's folder holds: plan, status and history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fedmc.data.files import write_whole
from fedmc.errors import InputError
from fedmc.federation.pages import clean
from fedmc.federation.pages.history import MEASURES
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.report import applying, claims, html
from fedmc.report.best import Best, best_of
from fedmc.report.figures import inline_svg, plot
from fedmc.report.legends import NDCG, RMSE

Line = Mapping[str, object]
COLUMNS = {
    "number": "round", "test_rmse": "test RMSE", "validation_rmse": "validation RMSE", "train_rmse": "train RMSE",
    "test_ndcg_20": "NDCG@20", "test_popular_ndcg_20": "NDCG@20 of popularity", "objective": "objective",
    "bound": "evidence bound (nats)", "epsilon": "epsilon spent", "bytes_up": "bytes up", "bytes_down": "bytes down",
    "seconds": "seconds",
}  # fmt: skip
LEFT_OUT = "The last 20 of them; `run.log` in the folder of the run has all."
NOTE = "Every number is about organisations; none is about a single user."


class Found(NamedTuple):
    """A run as its folder shows it."""

    name: str
    plan: RunPlan
    status: Line
    rounds: Sequence[Line]  # those of the history, with plain finite numbers

    @property
    def spent(self) -> float | None:
        """The epsilon of all releases so far."""
        return next((clean.number(line["epsilon"]) for line in reversed(self.rounds) if "epsilon" in line), None)


def write_report(path: Path) -> Path:
    """Write report.html into the folder of a run, whole or not at all."""
    found = _read(RunFolder(path))
    curves = [one for kind in MEASURES if (one := _curve(found, kind)) is not None]
    plan, privacy = found.plan, found.plan.settings.privacy
    known = tuple(plan.organisations)
    body = [
        html.summary(describe(found, curves)),
        html.section("What ran", html.pairs(_facts(found))),
        claims.section(privacy, len(plan.organisations), found.spent, clean.names(found.status.get("visible"), known)),
        html.section("Curves", *_legend(curves), html.drawing(_drawings(found, curves), "By round")),
        _left_out(found),
        html.folded_section("Rounds", _table(found, curves)),
        html.folded_section("Settings", html.pairs(applying.that_apply(plan.settings.to_dict()))),
        html.folded_section("Made with", html.pairs(html.versions())),
    ]
    target = path / "report.html"
    about = f"A run of the federation of {', '.join(plan.organisations)}"
    title = f"Run {found.name}: {len(plan.organisations)} organisations, one model"
    write_whole(target, html.page(title, about, body, NOTE).encode())
    return target


def _read(folder: RunFolder) -> Found:
    plan, status = folder.plan(), folder.status()
    rounds = [
        line for line in folder.history() if isinstance(line, dict) and clean.number(line.get("number")) is not None
    ]
    if not rounds:
        raise InputError(f"run {folder.path.name} has no round yet, so there is nothing to report")
    return Found(folder.path.resolve().name, plan, status, rounds)


def _curve(found: Found, kind: str) -> Best | None:
    """The curve of the first measure of this kind that there is, of validation data if there are any."""
    for name in sorted(MEASURES[kind], key=lambda name: not name.startswith("validation")):
        pairs = [(clean.whole(line["number"]), clean.number(line.get(name))) for line in found.rounds]
        points = [(float(number), value) for number, value in pairs if value is not None]
        if points:
            return best_of(name, points)
    return None


def describe(found: Found, curves: Sequence[Best]) -> list[str]:
    """The results of the run, in sentences."""
    plan, number = found.plan, clean.whole(found.rounds[-1]["number"])
    why = clean.words(found.status.get("why"))
    said = [f"The run is {found.status.get('state')} after {number} of {plan.rounds} rounds{why and f': {why}'}."]
    for one in curves:
        said.append(one.in_words())
    up, down = (_total(found, name) / 1e6 for name in ("bytes_up", "bytes_down"))
    seconds = [clean.number(line.get("seconds")) or 0.0 for line in found.rounds]
    said.append(
        f"{len(plan.organisations)} organisations sent {up:,.1f} MB and received {down:,.1f} MB in all; the rounds "
        f"took {sum(seconds):,.1f} seconds, {median(seconds):,.2f} at the median."
    )
    holders = clean.names(found.status.get("has_model"), tuple(plan.organisations))
    if holders:
        said.append(f"The model is with {', '.join(holders)}.")
    return [*said, claims.sentence(plan.settings.privacy)]


def _total(found: Found, name: str) -> int:
    return sum(clean.whole(line.get(name)) for line in found.rounds)


def _facts(found: Found) -> dict[str, object]:
    plan, settings, at = found.plan, found.plan.settings, clean.number(found.status.get("at"))
    facts: dict[str, object] = {
        "run": plan.run, "algorithm": settings.make_algorithm(), "preset": settings.preset_name,
        "rank": settings.rank, "rounds": plan.rounds, "privacy": settings.privacy.mode,
        "organisations": ", ".join(plan.organisations), "organisations a round": settings.active,
        "quorum": plan.quorum, "patience": f"{plan.patience:g} s", "items": f"{plan.items:,}",
        "catalogue": plan.catalogue, "goes on from": plan.start_from or "nothing: it starts from scratch",
    }  # fmt: skip
    if at is not None:
        facts["last change"] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    return facts


def _drawings(found: Found, curves: Sequence[Best]) -> list[str]:
    """The measures with the best round marked, the bytes so far, and the seconds of each round."""
    drawn = [
        inline_svg(plot(one.points, "round", one.label, best=one.best), f"{one.label} by round, the best one marked")
        for one in curves
    ]
    numbers = [float(clean.whole(line["number"])) for line in found.rounds]
    sizes = [(clean.whole(line.get("bytes_up")) + clean.whole(line.get("bytes_down"))) / 1e6 for line in found.rounds]
    seconds = [clean.number(line.get("seconds")) or 0.0 for line in found.rounds]
    for label, values in (("MB so far, both ways", list(accumulate(sizes))), ("seconds of the round", seconds)):
        drawn.append(inline_svg(plot(list(zip(numbers, values, strict=True)), "round", label), f"{label}, by round"))
    return drawn


def _legend(curves: Sequence[Best]) -> list[str]:
    """What the measures mean, and by what the best round was chosen."""
    words = {"RMSE": RMSE.format(unit="the units of the ratings"), "NDCG@20": NDCG}
    said = [text for name, text in words.items() if any(name in one.label for one in curves)]
    return [html.paragraph(text) for text in (*said, *(one.chosen_by for one in curves[:1]))]


def _table(found: Found, curves: Sequence[Best]) -> str:
    """All rounds, the best one marked, and how many organisations took part; empty columns are left out."""
    rows = [{name: clean.number(line.get(name)) for name in COLUMNS} for line in found.rounds]
    shown = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    took_part = [len(some) if isinstance(some := line.get("participants"), list) else None for line in found.rounds]
    cells = [[*(row[name] for name in shown), count] for row, count in zip(rows, took_part, strict=True)]
    numbers = [clean.whole(line.get("number")) for line in found.rounds]
    marked = {numbers.index(curves[0].number): "best"} if curves else None
    return html.table([*(COLUMNS[name] for name in shown), "took part"], cells, marked=marked)


def _left_out(found: Found) -> str:
    """Which organisations were left out of a round, and why."""
    entries, known = found.status.get("absent"), found.plan.organisations
    rows = [
        (clean.whole(one.get("round")), str(one["organisation"]), clean.words(one.get("why")))
        for one in (entries if isinstance(entries, list) else [])
        if isinstance(one, dict) and one.get("organisation") in known
    ]
    if not rows:
        return html.section("Left out", html.paragraph("No organisation was left out of a round that it was asked in."))
    table = html.table(("round", "organisation", "why"), rows)
    return html.section("Left out", table, html.paragraph(LEFT_OUT))
