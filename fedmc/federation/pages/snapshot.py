"""What a server's page shows: the organisations, the last run, and the runs before. Nothing but what status.json,
history.jsonl and the plan of a run hold, and which nodes the gateway sees."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedmc.errors import FedmcError
from fedmc.federation.pages.clean import number
from fedmc.federation.pages.history import Curve
from fedmc.federation.pages.runs import FoundRun, Listed, Runs, changed
from fedmc.federation.presence import Presence
from fedmc.federation.setup.keys import certificate_end
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.federation.setup.members import LIST
from fedmc.privacy.secagg.rules import exceptions

LATE, LATE_FACTOR = 10.0, 3.0  # at work for longer than so many seconds, and than so many rounds usually take
ERRORS = 8  # that are shown


class Organisation(NamedTuple):
    name: str
    state: str  # online, at work, late, lost, offline, unknown
    since: float | None  # when it was asked, seconds since 1970
    heard: float | None  # when it called last
    note: str  # such as: must approve the run


class Problem(NamedTuple):
    round: int
    organisation: str
    why: str


class RunView(NamedTuple):
    """The last run."""

    name: str
    state: str
    why: str
    round: int
    rounds: int
    seconds_left: float | None
    bytes_up: int
    bytes_down: int
    curves: list[Curve]
    claim: str
    promise: str
    epsilon: float | None  # spent so far
    budget: float | None  # epsilon of the whole run; None without differential privacy
    errors: list[Problem]  # the latest first
    has_model: tuple[str, ...]
    last_round: float | None  # when it ended


class Snapshot(NamedTuple):
    organisations: list[Organisation]
    run: RunView | None
    runs: list[Listed]
    certificate: float | None  # when it expires


class ServerLook:
    """Looks at a server's folder; keeps what it has read."""

    def __init__(self, config: ServerConfig, presence: Presence) -> None:
        self.config, self.presence = config, presence
        self.certificate: float | None = None  # when it expires
        self.runs, self._known = Runs(config.runs), (0.0, 0.0)

    def __call__(self) -> Snapshot:
        self._look_again()
        listed, last = self.runs.look()
        run = None if last is None else _run_view(last)
        return Snapshot(self.organisations(last), run, listed, self.certificate)

    def _look_again(self) -> None:
        """Members join and leave, and the certificate is renewed, while the server runs."""
        listed, certificate = (self.config.path(name) for name in (LIST, "server.pem"))
        known = changed(listed), changed(certificate)
        if known != self._known:
            self._known = known
            with suppress(FedmcError):  # what is damaged says the command that reads it
                self.config = load_server(self.config.folder)
                self.certificate = certificate_end(certificate).timestamp()

    def report(self, name: str) -> Path | None:
        """The report of a run of this server; a link that leads elsewhere is none."""
        path = self.config.runs / name / "report.html"
        inside = path.resolve().is_relative_to(self.config.runs.resolve())
        return path if inside and path.is_file() else None

    def organisations(self, last: FoundRun | None) -> list[Organisation]:
        running = last if last is not None and last.state == "running" else None
        return [self._organisation(name, running) for name in self.config.organisations]

    def _organisation(self, name: str, run: FoundRun | None) -> Organisation:
        """Of a run: who was asked and has yet to answer is at work or, if it is not there, lost."""
        now, there, heard = time.time(), self.presence.there(name), self.presence.seen(name).heard
        if run is None or name not in run.waiting:
            state = "unknown" if there is None else "online" if there else "offline"
            return Organisation(name, state, None, heard, _note(name, run))
        since, note = run.since.get(name), _note(name, run)
        slow = since is not None and now - since > max(LATE, LATE_FACTOR * (run.history.pace or 0.0))
        state = "lost" if not there else "late" if slow and not note else "at work"
        return Organisation(name, state, since, heard, note)


def _note(name: str, run: FoundRun | None) -> str:
    return "must approve the run" if run is not None and name in run.awaiting else ""


def _run_view(run: FoundRun) -> RunView:
    history, clients = run.history, len(run.plan.organisations)
    left = None
    if run.state == "running" and history.pace is not None:
        left = max(0, run.plan.rounds - run.round) * history.pace
    privacy = run.plan.settings.privacy
    promise = "; ".join(filter(None, (privacy.promise(clients), exceptions(run.visible))))
    errors = [Problem(*one) for one in reversed(run.absent)][:ERRORS]
    return RunView(
        run.name, run.state, run.why, run.round, run.plan.rounds, left, history.bytes_up, history.bytes_down,
        history.shown(), privacy.claim(), promise, history.epsilon, number(privacy.words().get("epsilon")), errors,
        run.has_model, history.written or None,
    )  # fmt: skip
