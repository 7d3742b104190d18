"""The page of one run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedmc.errors import InputError
from fedmc.evaluation.runner import Outcome
from fedmc.evaluation.study import Figure, Panel
from fedmc.report import audit, html
from fedmc.report.figures import draw, panels, save

COLUMNS = {
    "number": "round", "test_rmse": "test RMSE", "validation_rmse": "validation RMSE", "train_rmse": "train RMSE",
    "objective": "objective", "bytes_up": "bytes up", "bytes_down": "bytes down", "seconds": "seconds",
    "stationarity": "stationarity", "primal_residual": "primal residual", "beta_needed": "beta needed",
}  # fmt: skip


def write_report(folder: Path, others: dict[str, float] | None = None) -> Path:
    """report.html and figures of a run folder; `others` are test RMSEs to stand beside, by name."""
    try:
        settings = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
        lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        history = [record for record in map(json.loads, lines) if "objective" in record]
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    if not history:
        raise InputError(f"{folder} holds no measured round")
    outcomes = [_outcome(history)] + [
        Outcome(name, "pooled", 0, "", [{"round": None, "seconds": 0.0, "test_rmse": rmse}], None)
        for name, rmse in (others or {}).items()
    ]
    tested = history[-1].get("test_rmse") is not None
    figure = Figure(
        "run", "By round", (Panel("objective", "round"),) + ((Panel("test_rmse", "round"),) if tested else ())
    )
    save(draw(figure, outcomes), folder / "figures" / "run")
    shown = {
        name: heading for name, heading in COLUMNS.items() if any(record.get(name) is not None for record in history)
    }
    rows = [[record.get(name) for name in shown] for record in history]
    body = [
        html.summary(in_words(settings, history, others or {})),
        html.section("Curves", html.drawing(panels(figure, outcomes), figure.title)),
        html.section("Rounds", html.table(list(shown.values()), rows)),
        html.section("The theory's certificate", html.paragraph(certificate(history[-1]))),
        *audit.of_folder(folder),
        html.section("Settings", html.pairs(settings)),
        html.section("Made with", html.pairs(html.versions())),
    ]
    if others:
        compared = [("fedmc", history[-1]["test_rmse"]), *others.items()]
        body.insert(2, html.section("Beside the alternatives", html.table(("method", "test RMSE"), compared)))
    about = f"{settings.get('source', '')}: {settings.get('clients')} clients, {settings.get('active')} a round"
    path = folder / "report.html"
    title = f"fedmc: {settings.get('source', 'a run')}, rank {settings.get('rank')}"
    path.write_text(html.page(title, about, body), encoding="utf-8")
    return path


def _outcome(history: list[dict[str, Any]]) -> Outcome:
    """The run as one curve."""
    rows, up, down, seconds = [], 0, 0, 0.0
    for record in history:
        up, down = up + record["bytes_up"], down + record["bytes_down"]
        seconds += record["seconds"]
        rows.append(record | {"round": record["number"], "up": up, "down": down, "seconds": seconds})
    return Outcome("fedmc", "fedmc", 0, "", rows, None)


def in_words(settings: dict[str, Any], history: list[dict[str, Any]], others: dict[str, float]) -> list[str]:
    """How it went, in plain words."""
    last = history[-1]
    up = sum(record["bytes_up"] for record in history) / 1e6
    said = []
    error, on = last.get("test_rmse"), "ratings it has not seen"
    if error is None:
        error, on = last["train_rmse"], "the ratings it was trained on"
    said.append(f"After {last['number']} rounds the model errs by {error:.4f} (RMSE) on {on}.")
    for name, rmse in others.items():
        change = 100 * (last["test_rmse"] / rmse - 1)
        said.append(f"Beside it, {name}: {rmse:.4f} ({abs(change):.1f} % {'less' if change > 0 else 'more'} error).")
    said.append(
        f"{settings.get('clients')} clients sent {up:,.1f} MB in all, as sums; ratings and users' factors stayed."
    )
    return said


def certificate(record: dict[str, Any]) -> str:
    if record.get("beta_needed") is None:
        return "Not worked out in this run: `fedmc train --diagnostics` adds it."
    needed = f"With the constants met so far the theorem asks for beta above {record['beta_needed']:.3g}."
    if record.get("certified"):
        return f"{needed} This run's beta is: its convergence is certified."
    return (
        f"{needed} It does not certify this run, either because beta is smaller or because it speaks of other settings."
    )
