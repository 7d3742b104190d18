"""A node's state as another process sees it while the node runs: `fedmc node status`, `approve` and `reject`.

It needs no lock. SQLite's write-ahead log lets it read while the node writes, and a decision is one short transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedmc.data import catalogue
from fedmc.data.prepared import is_prepared
from fedmc.errors import InputError, require
from fedmc.federation.node import journal
from fedmc.federation.node.journal import APPROVED, REJECTED, WAITING, Journal, Known, Refusal
from fedmc.federation.node.organisation import ratings_hash, source_of
from fedmc.federation.node.store import StoreError
from fedmc.federation.setup.layout import NodeConfig
from fedmc.federation.wire import NEVER
from fedmc.training.aggregation import is_masked

PATIENCE = 10.0  # seconds to wait for the node's own transactions
LISTED = 20  # runs and refusals that are shown
RUN_STATES = ("awaiting approval", "approved", "active", "finished", "ended", "rejected")
RUNS = """
SELECT runs.run, coalesce(journal.description, ''), coalesce(journal.decision, ''), journal.asked, journal.begun,
       journal.finished, ended.status, ended.reason, (SELECT max(round) FROM states WHERE states.run = runs.run)
FROM (SELECT run FROM journal UNION SELECT run FROM runs) AS runs
LEFT JOIN journal USING (run) LEFT JOIN ended USING (run)
ORDER BY coalesce(journal.begun, journal.asked, 0) DESC
"""


class RunAtNode(NamedTuple):
    """A run as a node knows it; times are seconds since 1970, UTC."""

    run: str
    state: str
    why: str
    round: int | None  # the last one of which the node holds a state
    asked: float | None
    description: str


class Overview(NamedTuple):
    catalogue: str | None  # hashes; None: not there yet
    ratings: str | None
    runs: list[RunAtNode]  # the latest first
    refusals: list[Refusal]  # the latest first


def look(config: NodeConfig) -> Overview:
    """Everything but the ratings; nothing is written."""
    path, source = config.path("catalogue.json"), source_of(config)
    place = source if is_prepared(source) else config.path("shard")
    items = catalogue.load(path).hash if path.is_file() else None
    ratings = ratings_hash(place) if is_prepared(place) else None
    return Overview(items, ratings, runs(config), refusals(config))


def runs(config: NodeConfig) -> list[RunAtNode]:
    """The runs that the node knows, the latest first."""
    return [_run_at_node(*row) for row in _rows(config, RUNS)]


def refusals(config: NodeConfig) -> list[Refusal]:
    """The last refusals, the latest first."""
    newest = _rows(config, f"SELECT * FROM refusals ORDER BY number DESC LIMIT {LISTED}")
    return [Refusal(*row[1:]) for row in newest]


def policy_in_words(config: NodeConfig) -> list[str]:
    """What the organisation accepts."""
    cohort = ""
    if any(map(is_masked, config.accept)):  # mode: only secure aggregation has cohorts
        cohort = f", over at least {config.min_cohort} organisations"
    first = f"accepts runs with privacy {', '.join(config.accept)}{cohort}, and of these:"
    own = ", ".join(f"{name} {spec}" for name, spec in config.objective.items())
    told = [f"with its own objective, which stays here: {own}"] if own else []
    return [first, *(f"  {line}" for line in config.policy.in_words()), *told]


def waiting(config: NodeConfig) -> list[Known]:
    """The runs that wait for a decision, the oldest first."""
    return [Known(*row) for row in _rows(config, f"SELECT * FROM journal WHERE decision = '{WAITING}' ORDER BY asked")]


def decide(config: NodeConfig, run: str, approved: bool) -> Known:
    """Approve a run that waits or was rejected, or reject any run that the node knows."""
    require(_file(config).is_file(), f"no server has asked {config.organisation} for a run yet")
    with _opened(config, "rw") as database:
        book = Journal(database, lambda: _errors(config), lambda: _transaction(config, database))
        known = book.known(run) or _before_journal(database, run)
        cure = "`fedmc node approve --list FOLDER` lists the runs that wait"
        require(known is not None, f"there is no run {run!r} here: {cure}")
        assert known is not None
        if approved and known.decision not in (WAITING, REJECTED, APPROVED):
            raise InputError(f"run {run} does not wait for approval: {cure}")
        done = book.decide(known, APPROVED if approved else REJECTED)
        require(done, f"run {run} changed meanwhile: look at it again and repeat")
    return known


def _run_at_node(
    run: str, description: str, decision: str, asked: float | None, begun: float | None, finished: float | None,
    *last: str | int | None,
) -> RunAtNode:  # fmt: skip
    status, reason, number = last
    if decision == REJECTED:
        state, why = "rejected", ""
    elif status is not None:
        state, why = "ended", f"{status}: {reason}"
    elif finished is not None:
        state, why = "finished", ""
    elif decision == WAITING:
        state, why = "awaiting approval", ""
    else:
        state, why = "approved" if decision == APPROVED and begun is None else "active", ""
    return RunAtNode(run, state, why, None if number in (None, NEVER) else int(number or 0), asked, description)


def _before_journal(database: sqlite3.Connection, run: str) -> Known | None:
    row = database.execute("SELECT settings FROM runs WHERE run = ?", (run,)).fetchone()
    return None if row is None else Known(run, str(row[0]), "begun before this version", "", 0.0, 0.0)


def _rows(config: NodeConfig, query: str) -> list[tuple[Any, ...]]:
    if not _file(config).is_file():
        return []
    with _opened(config, "ro") as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        return list(database.execute(query)) if "journal" in tables else []  # a new version's node makes it


def _file(config: NodeConfig) -> Path:
    return config.path("state") / "state.sqlite"


@contextmanager
def _opened(config: NodeConfig, access: str) -> Iterator[sqlite3.Connection]:
    """The node's database, to read (ro) or to write as well (rw)."""
    address = f"{_file(config).resolve().as_uri()}?mode={access}"
    with (
        _errors(config),
        closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=PATIENCE)) as database,
    ):
        if access == "rw":
            database.executescript(journal.SCHEMA)
        yield database


@contextmanager
def _transaction(config: NodeConfig, database: sqlite3.Connection) -> Iterator[None]:
    with _errors(config), database:
        database.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def _errors(config: NodeConfig) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{_file(config)} cannot be read: {error}") from None
