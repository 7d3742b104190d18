"""The page of an organisation about its own part in a federation. It is made at the node, and belongs to it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from fedmc.data.files import write_whole
from fedmc.data.prepared import Prepared
from fedmc.errors import FedmcError, printable, require
from fedmc.evaluation.coverage import SHOWN, percent
from fedmc.federation.node import models, overview
from fedmc.federation.node.models import Version
from fedmc.federation.node.organisation import ledger_of
from fedmc.federation.node.overview import RunAtNode
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import Model, load
from fedmc.model.given import titled
from fedmc.report import claims, examples, html
from fedmc.report.legends import NDCG, RMSE
from fedmc.report.node_measures import Measured, counts, measure, prepared_of
from fedmc.report.run_folder import unit_of
from fedmc.report.sentences import change

FILE = "report.html"
NOTE = "This page belongs to the organisation. Every number is a count or a mean; none is about a single user."
ALONE = "this organisation alone: the same algorithm on its own data"
BIASES = "biases only: averages of the organisation's own users and items"
COUNTED = "Pairs that both models know and that neither was trained on."
NOT_MEASURED = (
    "Not measured: the node has no model of this run, or holds nothing out that its model knows. An entry such as "
    'test = "random:0.1" under [ratings] of config.toml holds ratings out, from the next time they are read.'
)


def write_report(config: NodeConfig, run: str | None = None, alone: bool = False) -> Path:
    """Write report.html into the node's folder, readable by its owner only: about a run, or the last one.

    With `alone`, a model of the organisation's own data is trained to compare with.
    """
    look, known = overview.look(config), models.versions(config)
    chosen = _choose(look.runs, known, run)
    at = next((k for k, version in enumerate(known) if version.run == chosen), None)
    prepared, model, found = prepared_of(config), None, None
    if at is not None:
        model = load(config.path(models.FOLDER) / f"{known[at].run}.npz")
    if at is not None and model is not None and prepared is not None:
        model = titled(model, prepared.catalogue.features)
        found = measure(config, prepared, known[at], known[at + 1] if at + 1 < len(known) else None, alone)
    body = [
        html.summary([*_describe(look.runs, known, chosen), *_in_short(found), *_claim_in_short(model)]),
        _data(prepared),
        _quality([one.run for one in known[at:]], found),
        *examples.section(model, "stars" if model is None else unit_of(*(model.rating_range or (None, None)))),
        *_claim(model),
        html.section("Privacy budget", html.paragraph(_budget(config))),
        html.section("Models", _models(known)),
        html.section("Runs", _runs(look.runs)),
        html.folded_section("Made with", html.pairs(html.versions())),
    ]
    path = config.path(FILE)
    page = html.page(f"{config.organisation} in a federation", f"server {config.server}", body, NOTE)
    write_whole(path, page.encode())
    os.chmod(path, 0o600)
    return path


def _choose(runs: Sequence[RunAtNode], known: Sequence[Version], run: str | None) -> str | None:
    """The run of this name or id, or the last one; None if there is none yet."""
    ids = list(dict.fromkeys([*(one.run for one in runs), *(one.run for one in known)]))
    if run is None:
        return next((one.run for one in known), ids[0] if ids else None)
    found = [one for one in ids if one == run or one.rpartition("-")[0] == run]
    require(bool(found), f"there is no run {run!r} at this node: choose from {', '.join(ids) or 'none yet'}")
    return found[0]


def _describe(runs: Sequence[RunAtNode], known: Sequence[Version], chosen: str | None) -> list[str]:
    if chosen is None:
        return ["The node has taken part in no run yet."]
    found = next((one for one in runs if one.run == chosen), None)
    said = [f"This page is about run {chosen}."]
    if found is not None:
        said = [f"This page is about run {chosen}: {found.state}{printable(found.why and f' ({found.why})')}."]
        said += [f"It was asked for as: {printable(found.description)}."] if found.description else []
    used = next((one.run for one in known if one.in_use), None)
    return said + ([] if used is None else [f"The model of run {used} is in use."])


def _data(prepared: Prepared | None) -> str:
    if prepared is None:
        cure = "The data have not been read yet: fedmc node check reads them."
        return html.section("Own data", html.paragraph(cure))
    return html.section("Own data", html.pairs(_shown(counts(prepared, prepared.shards[0]))))


def _shown(values: dict[str, object]) -> dict[str, object]:
    return {name: html.short(value) for name, value in values.items()}


def _in_short(found: Measured | None) -> list[str]:
    """How good the model is, and what being together is worth."""
    if found is None:
        return []
    said = [f"On held-out data of this organisation the model has an {found.label} of {found.after:.4f}."]
    for name, value in (("a model of its own data alone", found.alone), ("biases only", found.biases)):
        if value is not None:
            said.append(f"Beside {name}, with {value:.4f}, that is {change(found.after, value)}.")
    return said


def _quality(runs: Sequence[str], found: Measured | None) -> str:
    """What the run has changed on the organisation's own held-out pairs; `runs` are it and those before it."""
    if found is None:
        return html.section("On own held-out data", html.paragraph(NOT_MEASURED))
    others = (
        ("the model before", "".join(runs[1:2]), found.before),
        (ALONE, "", found.alone),
        (BIASES, "", found.biases),
    )
    rows: list[tuple[object, ...]] = [("the model of this run", found.after, "", runs[0])]
    rows += [(name, value, change(found.after, value), run) for name, run, value in others if value is not None]
    headings = "model", found.label, "this model is", "run"
    table = html.table(headings, rows, sorts=False, marked={0: "this run"})
    counted = f"{COUNTED if found.before is not None else 'Pairs that the model knows and was not trained on.'}"
    said = html.paragraph(f"Computed here, from {found.pairs:,} held-out pairs. {counted}")
    legend = NDCG if found.biases is None else RMSE.format(unit="the units of the ratings")
    return html.section("On own held-out data", html.paragraph(legend), table, said, *_intervals(found))


def _intervals(found: Measured) -> list[str]:
    if found.intervals is None:
        return []
    rows = [(percent(one.level), f"{100 * one.coverage:.1f} %", one.width) for one in map(found.intervals.at, SHOWN)]
    return [html.table(("intervals", "hold", "mean width"), rows, sorts=False)]


def _claim_in_short(model: Model | None) -> list[str]:
    return [] if model is None else [claims.sentence(model.settings.privacy)]


def _claim(model: Model | None) -> list[str]:
    """The privacy of the run, from the settings in its model."""
    return [] if model is None else [claims.section(model.settings.privacy, model.clients)]


def _budget(config: NodeConfig) -> str:
    if not config.epsilon:
        return "config.toml sets no epsilon: the node takes part in no run with differential privacy."
    if not config.path("ledger.sqlite").exists():
        return f"Nothing of epsilon {config.epsilon:g} is spent: there is no ledger of releases yet."
    try:
        with ledger_of(config) as ledger:
            return f"Epsilon {ledger.spent():.4g} of {config.epsilon:g} is spent, delta {config.delta:g}."
    except FedmcError as error:
        return f"Unknown: {printable(str(error))}"


def _models(known: Sequence[Version]) -> str:
    if not known:
        return html.paragraph("None yet: a model is written at the end of a run.")
    rows = [(one.run, _utc(one.written), one.megabytes, "in use" if one.in_use else "") for one in known]
    return html.table(("run", "written", "MB", ""), rows, sorts=False)


def _runs(runs: Sequence[RunAtNode]) -> str:
    if not runs:
        return html.paragraph("None yet.")
    rows = [
        (one.run, one.state, one.round, "" if one.asked is None else _utc(one.asked), printable(one.description))
        for one in runs[: overview.LISTED]
    ]
    return html.table(("run", "state", "round", "first asked", "settings"), rows, sorts=False)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
