"""Display of a federation's runs: the list of runs, their progress and their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from fedmc.cli.display import print_text, progress_bar
from fedmc.cli.echo import echo
from fedmc.cli.runs import to_json
from fedmc.errors import FedmcError, require
from fedmc.federation.server.round_words import in_words
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.setup.layout import ServerConfig
from fedmc.problem.quality import PARTS, quality

Server = Annotated[Path, typer.Argument(help="The server's folder.")]
RunName = Annotated[str | None, typer.Option("--run", help="Name of the run.", show_default="the last one")]
Json = Mapping[str, Any]  # a line of history.jsonl, or status.json

OnHistory = Callable[[Sequence[Json]], None]  # gets all lines of history each time

RESUME = "once that is mended, `fedmc federation resume` continues it"
RANKED = tuple(f"{part}_" for part in PARTS)  # measurements of events
NEXT = {"diverged": "start a new run with other settings"}  # by the state that a run ended in


def run_paths(config: ServerConfig) -> list[Path]:
    """The folders of the server's runs, the latest last."""
    plans = sorted(config.runs.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    return [path.parent for path in plans]


def run_going_on(config: ServerConfig) -> str | None:
    """The name of a run that a process is conducting."""
    return next((path.name for path in run_paths(config) if RunFolder(path).locked()), None)


def find_run(config: ServerConfig, name: str | None) -> RunFolder:
    """The run of this name; the last one if no name is given."""
    paths = run_paths(config)
    require(bool(paths), f"there is no run in {config.runs} yet: `fedmc federation train {config.folder}`")
    path = paths[-1] if name is None else config.runs / name
    require((path / "plan.json").is_file(), f"there is no run {name} in {config.runs}")
    return RunFolder(path)


def follow(
    folder: RunFolder, told: int = 0, start_within: float = 60, on_history: OnHistory = lambda history: None
) -> None:
    """Show the run's progress until it ends: a bar, or without a terminal a line a round after the first `told`."""
    deadline = time.monotonic() + start_within
    while not folder.locked() and folder.status()["state"] != "finished" and time.monotonic() < deadline:
        time.sleep(0.2)
    show = _show_bar if sys.stderr.isatty() else partial(print_rounds, told=told)
    show(folder, on_history=on_history)


def print_rounds(folder: RunFolder, told: int = 0, on_history: OnHistory = lambda history: None) -> None:
    """Print a line on stderr for each round after the first `told` lines of history, until the run ends."""
    rounds, awaiting, running = folder.plan().rounds, "", True
    while running:
        running = folder.locked()  # read before the rest, which is written last
        found, history = folder.status(), folder.history()
        on_history(history)
        for line in history[told:]:
            echo(round_line(line, rounds, found.get("absent", [])), err=True)
        told = max(told, len(history))
        if _awaiting(found) not in ("", awaiting):
            echo(_awaiting(found), err=True)
        awaiting = _awaiting(found)
        if running:
            time.sleep(0.3)


def round_line(line: Json, rounds: int, absent: Sequence[Json]) -> str:
    """A round in words: its measurements, and who was left out and why."""
    left_out = {one["organisation"]: one["why"] for one in absent if one["round"] == line["number"]}
    names = ", ".join(f"{name} ({why})" for name, why in left_out.items())
    return in_words(line, rounds) + (f"; left out: {names}" if names else "")


def _show_bar(folder: RunFolder, on_history: OnHistory = lambda history: None) -> None:
    with progress_bar(MofNCompleteColumn(), "{task.fields[now]}") as bar:
        task = bar.add_task("round", total=folder.plan().rounds, now="")
        running = True
        while running:
            running = folder.locked()  # read before the status, which is written last
            found, history = folder.status(), folder.history()
            on_history(history)
            bar.update(task, completed=found["round"], now=_progress(found, history))
            if running:
                time.sleep(0.3)


def _progress(found: Json, history: Sequence[Json]) -> str:
    """The last RMSE or ranking metrics, the nodes that are online, and those whose answers are still missing."""
    online, waiting = found.get("online", []), found.get("waiting", [])
    spent = _last_epsilon(history)
    late = [name for name in waiting if name in online]
    lost = [name for name in waiting if name not in online]
    parts = (
        "" if spent is None else f"epsilon {spent:.3g}",
        quality(_last_measured(history)),
        f"online: {', '.join(online) or 'none yet'}",
        f"working: {', '.join(late)}" if late else "",
        f"offline: {', '.join(lost)}" if lost else "",
        _awaiting(found),
    )
    return "  ".join(part for part in parts if part)


def _awaiting(found: Json) -> str:
    """The organisations that have yet to approve the run, and how they do it."""
    names = ", ".join(found.get("awaiting_approval", []))
    return names and f"{names} must approve it: `fedmc node approve {found['id']} FOLDER` there"


def report(folder: RunFolder, as_json: bool) -> None:
    """Print the result of the run; raise an error if it failed."""
    found, history = folder.status(), folder.history()
    bytes_up = sum(line["bytes_up"] for line in history)
    holders = found.get("has_model", [])
    spent = history[-1].get("epsilon") if history else None
    shown = quality(_last_measured(history))
    result = f", {shown}, {bytes_up / 1e6:,.1f} MB up" if shown else ""
    result += "" if spent is None else f", epsilon {spent:.3g} spent"
    print_text(f"run {folder.path.name}: {describe(found)}{result}")
    if found["state"] == "finished":
        print_text(f"the model is with {', '.join(holders) or 'nobody'}")
        for name in folder.plan().organisations:
            if name not in holders:
                print_text(f"not with {name} ({_why_absent(found, name)}): `fedmc federation resume` sends it again")
    if as_json:
        summary = {"run": folder.path.name, "state": found["state"], **result_of(folder)}
        typer.echo(to_json(summary | {"has_model": holders}))
    if found["state"] not in ("finished", "stopped"):
        why = found.get("why") or f"see {folder.path / 'run.log'}"
        raise FedmcError(f"the run {found['state']}: {why}; {NEXT.get(found['state'], RESUME)}")


def result_of(folder: RunFolder) -> dict[str, float | None]:
    """The main numbers of a run."""
    history = folder.history()
    ranking = {name: value for name, value in _last_measured(history).items() if name.startswith(RANKED)}
    numbers = {"rounds": folder.status()["round"], "rmse": last_rmse(history)}
    return numbers | ranking | {"bytes_up": sum(line["bytes_up"] for line in history)}


def _why_absent(found: Json, name: str) -> str:
    """Why an organisation was left out last."""
    reasons = [one["why"] for one in found.get("absent", []) if one["organisation"] == name]
    return str(reasons[-1]) if reasons else "it did not answer"


def last_rmse(history: Sequence[Json]) -> float | None:
    """The last measured RMSE: on test ratings or, if there are none, on training ratings."""
    errors = (line.get("train_rmse") if line.get("test_rmse") is None else line["test_rmse"] for line in history)
    return next((error for error in reversed(list(errors)) if error is not None), None)


def _last_measured(history: Sequence[Json]) -> Json:
    """The last line with measurements."""
    return next((line for line in reversed(history) if "objective" in line), {})


def _last_epsilon(history: Sequence[Json]) -> float | None:
    return next((line["epsilon"] for line in reversed(history) if "epsilon" in line), None)


def describe(found: Json) -> str:
    """The state of a run as a short text."""
    text = f"{found['state']}, round {found['round']} of {found.get('rounds', '?')}"
    if found["state"] == "running" and _awaiting(found):
        text += f"; {_awaiting(found)}"
    return text + (f" ({found['why']})" if found.get("why") else "")
