"""What a person sees of a federation's run: a bar while it goes on, and how it ended."""

from __future__ import annotations

import time
from typing import Any

import typer

from fedmc.cli.display import bar_of, say
from fedmc.cli.runs import to_json


def follow(folder: Any, begin_within: float = 60) -> None:
    """A bar until the run ends."""
    until = time.monotonic() + begin_within
    while not folder.locked() and folder.status()["state"] != "finished" and time.monotonic() < until:
        time.sleep(0.2)
    with bar_of("MofNCompleteColumn", "{task.fields[now]}") as bar:
        task = bar.add_task("round", total=folder.plan().rounds, now="")
        while True:
            going = folder.locked()  # looked at before the status, which is written last
            found, lines = folder.status(), folder.history()
            rmse = next((rmse_of(line) for line in reversed(lines) if rmse_of(line) is not None), None)
            late = [name for name in found.get("waiting", []) if name in found.get("online", [])]
            lost = [name for name in found.get("waiting", []) if name not in found.get("online", [])]
            there = ", ".join(found.get("online", [])) or "nobody yet"
            spent = next((line["epsilon"] for line in reversed(lines) if "epsilon" in line), None)
            parts = [
                "" if spent is None else f"epsilon {spent:.3g}", "" if rmse is None else f"RMSE {rmse:.4f}",
                f"online {there}",
                f"at work: {', '.join(late)}" if late else "", f"not there: {', '.join(lost)}" if lost else "",
            ]  # fmt: skip
            bar.update(task, completed=found["round"], now="  ".join(part for part in parts if part))
            if not going:
                return
            time.sleep(0.3)


def report(folder: Any, as_json: bool) -> None:
    """How it ended; an error if not well."""
    from fedmc.errors import FedmcError

    found, lines = folder.status(), folder.history()
    rmse = next((rmse_of(line) for line in reversed(lines) if rmse_of(line) is not None), None)
    up = sum(line["bytes_up"] for line in lines)
    summary = {
        "run": folder.path.name, "state": found["state"], "rounds": found["round"], "rmse": rmse, "bytes_up": up,
        "has_model": found.get("has_model", []),
    }  # fmt: skip
    spent = lines[-1].get("epsilon") if lines else None
    errs = "" if rmse is None else f", RMSE {rmse:.4f}, {up / 1e6:,.1f} MB up"
    errs += "" if spent is None else f", epsilon {spent:.3g} spent"
    say(f"run {folder.path.name}: {in_words(found)}{errs}")
    if found["state"] == "finished":
        missing = [name for name in folder.plan().organisations if name not in summary["has_model"]]
        rest = f"; not yet with {', '.join(missing)}: `resume` gives it to them" if missing else ""
        say(f"the model is with {', '.join(summary['has_model']) or 'nobody'}{rest}")
    if as_json:
        typer.echo(to_json(summary))
    if found["state"] not in ("finished", "stopped"):
        why = found.get("why") or "see the log of the server"
        raise FedmcError(f"the run {found['state']}: {why}; `fedmc federation resume` goes on with it")


def rmse_of(line: dict[str, Any]) -> float | None:
    found = line.get("test_rmse")
    return line.get("train_rmse") if found is None else found


def in_words(found: dict[str, Any]) -> str:
    words = f"{found['state']}, round {found['round']} of {found.get('rounds', '?')}"
    return words + (f" ({found['why']})" if found.get("why") else "")
