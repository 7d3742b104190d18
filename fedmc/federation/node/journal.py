"""A node's journal in its state.sqlite: the runs that it was asked to take part in, and its last refusals.

The node writes it through its store. `fedmc node approve`, `reject` and `status` use the same tables from a process of
their own while the node runs (`fedmc.federation.node.overview`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

WAITING, APPROVED, REJECTED = "waiting", "approved", "rejected"
MAX_WAITING = 100  # runs: a server that names more has to wait until a person decided about those
MAX_REFUSALS = 200
MAX_TEXT = 500  # characters of a reason, which quotes what a server sent
SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
    run TEXT PRIMARY KEY, settings TEXT NOT NULL, description TEXT NOT NULL, decision TEXT NOT NULL DEFAULT '',
    asked REAL NOT NULL, begun REAL, finished REAL
);
CREATE TABLE IF NOT EXISTS refusals (
    number INTEGER PRIMARY KEY, first REAL NOT NULL, last REAL NOT NULL, times INTEGER NOT NULL,
    run TEXT NOT NULL, what TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, cure TEXT NOT NULL
);
"""


class Known(NamedTuple):
    """A run that the node was asked to take part in. Times are seconds since 1970, UTC."""

    run: str
    settings: str  # hash
    description: str
    decision: str  # WAITING, APPROVED, REJECTED, or empty if nobody had to decide
    asked: float
    begun: float | None = None  # when it passed the policy
    finished: float | None = None


class Refusal(NamedTuple):
    """Equal refusals in a row are one entry."""

    first: float
    last: float
    times: int
    run: str
    what: str
    status: str
    reason: str
    cure: str


Guard = Callable[[], AbstractContextManager[None]]


class Journal:
    """`reading` turns database errors into ours, and `writing` is a transaction that does so too."""

    def __init__(self, database: sqlite3.Connection, reading: Guard, writing: Guard) -> None:
        self._database, self._reading, self._writing = database, reading, writing

    # --- runs

    def known(self, run: str) -> Known | None:
        row = self._row("SELECT * FROM journal WHERE run = ?", run)
        return None if row is None else Known(*row)

    def has_begun(self, run: str) -> bool:
        """Whether the node has taken part in the run, also before there was a journal."""
        query = "SELECT 1 FROM journal WHERE run = ?1 AND begun IS NOT NULL UNION SELECT 1 FROM runs WHERE run = ?1"
        return self._row(query, run) is not None

    def begun_since(self, moment: float) -> int:
        """How many runs began at this moment or later."""
        row = self._row("SELECT count(*) FROM journal WHERE begun >= ?", moment)
        assert row is not None
        return int(row[0])

    def wait(self, known: Known) -> bool:
        """List a run for a person's decision; False: too many are waiting."""
        with self._writing():
            waiting = self._database.execute("SELECT count(*) FROM journal WHERE decision = ?", (WAITING,)).fetchone()
            if waiting[0] < MAX_WAITING:
                self._put(known._replace(decision=WAITING))
        return self.known(known.run) is not None

    def begin(self, known: Known, now: float) -> None:
        with self._writing():
            self._put(known)
            self._database.execute("UPDATE journal SET begun = ? WHERE run = ? AND begun IS NULL", (now, known.run))

    def finish(self, run: str, now: float) -> None:
        with self._writing():
            self._database.execute("UPDATE journal SET finished = ? WHERE run = ?", (now, run))

    def decide(self, known: Known, decision: str) -> bool:
        """Write down what a person decided; False if the run has other settings by now, or is not known."""
        with self._writing():
            if decision == REJECTED:
                self._put(known)
            changed = self._database.execute(
                "UPDATE journal SET decision = ? WHERE run = ? AND settings = ?",
                (decision, known.run, known.settings),
            )
        return changed.rowcount == 1

    def _put(self, known: Known) -> None:
        self._database.execute("INSERT OR IGNORE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", known)

    # --- refusals

    def refuse(self, refusal: Refusal) -> None:
        """Add a refusal, or count it with the last one if that was the same; only the newest MAX_REFUSALS are kept."""
        clipped = refusal._replace(**{name: getattr(refusal, name)[:MAX_TEXT] for name in Refusal._fields[3:]})
        with self._writing():
            row = self._database.execute("SELECT * FROM refusals ORDER BY number DESC LIMIT 1").fetchone()
            if row is not None and Refusal(*row[1:])[3:] == clipped[3:]:
                again = "UPDATE refusals SET last = ?, times = times + 1 WHERE number = ?"
                self._database.execute(again, (clipped.last, row[0]))
                return
            number = 1 if row is None else row[0] + 1
            self._database.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (number, *clipped))
            self._database.execute("DELETE FROM refusals WHERE number <= ?", (number - MAX_REFUSALS,))

    def _row(self, query: str, value: str | float) -> tuple[Any, ...] | None:
        with self._reading():
            row: tuple[Any, ...] | None = self._database.execute(query, (value,)).fetchone()
        return row
