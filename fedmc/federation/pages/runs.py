"""The runs of a server as its page finds them. Each file is read again only after it has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedmc.errors import FedmcError
from fedmc.federation.pages import clean
from fedmc.federation.pages.history import History
from fedmc.federation.server.run_folder import RunFolder, RunPlan

LISTED = 30  # runs
STATES = ("running", "finished", "stopped", "failed", "diverged", "broken off", "not begun")


class Listed(NamedTuple):
    """A run in the list of all."""

    name: str
    state: str
    round: int
    rounds: int
    at: float | None  # when its status changed last
    report: bool


class FoundRun(NamedTuple):
    """The last run: its plan, history, and status."""

    name: str
    plan: RunPlan
    history: History
    state: str
    why: str
    round: int
    online: tuple[str, ...]
    waiting: tuple[str, ...]
    awaiting: tuple[str, ...]  # approval
    since: dict[str, float]  # when each organisation got into its present state
    absent: list[tuple[int, str, str]]  # round, organisation, why
    has_model: tuple[str, ...]
    visible: tuple[str, ...]  # who accepts that secure sums show its own part


class Runs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plans: dict[Path, tuple[float, RunPlan | None]] = {}
        self._statuses: dict[Path, tuple[float, dict[str, Any]]] = {}
        self._history: History | None = None

    def look(self) -> tuple[list[Listed], FoundRun | None]:
        """All runs, the latest first, and the latest one in full."""
        paths = self._paths()
        self._plans = {path: kept for path, kept in self._plans.items() if path in paths}
        self._statuses = {path: kept for path, kept in self._statuses.items() if path in paths}
        return [self._listed(path) for path in paths], self._found(paths[0]) if paths else None

    def _paths(self) -> list[Path]:
        plans = [(changed(path), path.parent) for path in self.folder.glob("*/plan.json")]
        return [path for _, path in sorted(plans, reverse=True)][:LISTED]

    def _plan(self, path: Path) -> RunPlan | None:
        at = changed(path / "plan.json")
        if path not in self._plans or self._plans[path][0] != at:
            self._plans[path] = at, _read_plan(path)
        return self._plans[path][1]

    def _status(self, path: Path) -> dict[str, Any]:
        at = changed(path / "status.json")
        if path not in self._statuses or self._statuses[path][0] != at:
            self._statuses[path] = at, clean.read_json(path / "status.json")
        found = self._statuses[path][1]
        if found.get("state") == "running" and not RunFolder(path).locked():
            return found | {"state": "broken off", "why": "the process that conducted it died: resume it"}
        return found

    def _listed(self, path: Path) -> Listed:
        plan, status = self._plan(path), self._status(path)
        rounds = plan.rounds if plan is not None else 0
        report = (path / "report.html").is_file()
        return Listed(path.name, state_of(status), clean.whole(status.get("round")), rounds, _at(status), report)

    def _found(self, path: Path) -> FoundRun | None:
        plan, status = self._plan(path), self._status(path)
        if plan is None:
            return None
        file = path / "history.jsonl"
        if self._history is None or self._history.path != file:
            self._history = History(file)
        self._history.look()
        known = tuple(plan.organisations)
        lists = "online", "waiting", "awaiting_approval", "has_model", "visible"
        online, waiting, awaiting, holders, visible = (clean.names(status.get(name), known) for name in lists)
        return FoundRun(
            path.name, plan, self._history, state_of(status), clean.words(status.get("why")),
            clean.whole(status.get("round")), online, waiting, awaiting, _since(status, known), _absent(status, known),
            holders, visible,
        )  # fmt: skip


def changed(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def state_of(status: dict[str, Any]) -> str:
    state = status.get("state", "not begun")
    return state if state in STATES else "unreadable"


def _read_plan(path: Path) -> RunPlan | None:
    if not clean.read_json(path / "plan.json"):
        return None  # too large, or no JSON
    try:
        return RunFolder(path).plan()
    except FedmcError:
        return None


def _at(status: dict[str, Any]) -> float | None:
    return None if state_of(status) == "running" else clean.number(status.get("at"))


def _since(status: dict[str, Any], known: tuple[str, ...]) -> dict[str, float]:
    said = status.get("since")
    times = {name: clean.number(said.get(name)) for name in known} if isinstance(said, dict) else {}
    return {name: at for name, at in times.items() if at is not None}


def _absent(status: dict[str, Any], known: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Who was left out and why; entries of another form are left out."""
    said = status.get("absent")
    entries = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return [
        (clean.whole(one.get("round")), str(one["organisation"]), clean.words(one.get("why")))
        for one in entries
        if one.get("organisation") in known
    ]
