"""A node's state on disk, in one SQLite file: committed (the server counted it) and pending (it may have counted it).

State and reply of a contribution are written in one transaction before the reply is sent. After a crash the node can
resend the same reply, and the server's next request tells it whether to commit or roll back the pending state.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.state import State
from fedmc.errors import DataError, FedmcError
from fedmc.federation.node import journal
from fedmc.federation.node import marks as ledger_marks
from fedmc.federation.node.journal import Journal
from fedmc.federation.node.marks import Mark, MarkKind, Marks
from fedmc.federation.node.states import dump, load
from fedmc.federation.wire import NEVER

FORMAT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (format INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS states (
    run TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('committed', 'pending')),
    round INTEGER NOT NULL, key TEXT, state BLOB NOT NULL, reply BLOB,
    PRIMARY KEY (run, kind)
);
CREATE TABLE IF NOT EXISTS final (
    run TEXT NOT NULL, round INTEGER NOT NULL, task TEXT NOT NULL, request TEXT NOT NULL, survivors TEXT NOT NULL,
    PRIMARY KEY (run, round, task)
);
CREATE TABLE IF NOT EXISTS ended (run TEXT PRIMARY KEY, status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, ratings TEXT NOT NULL, settings TEXT NOT NULL);
"""
KEPT_RUNS = 50  # runs whose states are kept: a server names the runs, and they must not fill the disk
FORGET = """
DELETE FROM states WHERE run NOT IN (SELECT run FROM states GROUP BY run ORDER BY MAX(rowid) DESC LIMIT ?)
"""
Kind = Literal["committed", "pending"]


class BusyError(FedmcError):
    """Another process holds the state."""


class Entry(NamedTuple):
    round: int
    state: State | None
    key: str | None = None  # of the request that it answers
    reply: bytes | None = None


NOTHING = Entry(NEVER, None)


class StoreError(DataError):
    """The node's disk or its database fails: the node must stop, and sends nothing."""


class TooLargeError(FedmcError):
    """State and reply of a contribution do not fit into a row of the database; nothing was stored."""


class Ended(NamedTuple):
    """Why this node takes no further part in a run."""

    status: str
    reason: str


class Store:
    """Only one process can open it at a time; only the organisation can read its folder (0700)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use the state folder {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BusyError(f"{self.folder} is in use by another process of this organisation") from None
        self._open()
        self.journal = Journal(self._database, self._errors, self._transaction)

    def _open(self) -> None:
        path = self.folder / "state.sqlite"
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            os.chmod(path, 0o600)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("PRAGMA secure_delete=ON")
            if self._database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its pages are inconsistent")
            self._database.executescript(f"BEGIN;{SCHEMA}{ledger_marks.SCHEMA}{journal.SCHEMA}COMMIT;")
            self._place = os.stat(path).st_ino
            if "reason" not in [row[1] for row in self._database.execute("PRAGMA table_info(ended)")]:
                self._database.execute("ALTER TABLE ended ADD COLUMN reason TEXT NOT NULL DEFAULT ''")  # before 0.2
            found = self._database.execute("SELECT format FROM about").fetchone()
            if found is None:
                self._database.execute("INSERT INTO about VALUES (?)", (FORMAT,))
            elif found[0] != FORMAT:
                raise StoreError(f"{path} has format {found[0]}, this fedmc reads {FORMAT}")
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            cure = "restore the state folder from a backup, or move it away and ask for a new run"
            raise StoreError(f"{path} cannot be used: {error}; {cure}") from None

    def marks(self) -> Marks:
        """What this node has seen of its ledger."""
        with self._errors():
            return ledger_marks.read(self._database)

    def mark(self, kind: MarkKind, mark: Mark) -> None:
        """Record what was seen of the ledger; a release that is `seen` is no longer `next`."""
        with self._transaction():
            ledger_marks.write(self._database, kind, mark)

    def in_place(self) -> bool:
        """Whether the file that was opened is still the one under its name."""
        path = self.folder / "state.sqlite"
        return path.exists() and path.stat().st_ino == self._place

    def begun_with(self, run: str, ratings: str, settings: str) -> tuple[str, str]:
        """The ratings and settings that the run began with at this node; its first message records them."""
        with self._errors():
            self._database.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", (run, ratings, settings))
            found = self._database.execute("SELECT ratings, settings FROM runs WHERE run = ?", (run,)).fetchone()
        return str(found[0]), str(found[1])

    def get(self, run: str, kind: Kind, algorithm: Algorithm) -> Entry:
        """The committed or pending entry of a run of this algorithm; NOTHING if there is none."""
        with self._errors():
            row = self._database.execute(
                "SELECT round, state, key, reply FROM states WHERE run = ? AND kind = ?", (run, kind)
            ).fetchone()
        if row is None:
            return NOTHING
        number, state, key, reply = row
        try:
            return Entry(number, load(state, algorithm), key, reply)
        except (DataError, TypeError, KeyError) as error:
            raise StoreError(f"the {kind} state of run {run} in {self.folder} is damaged: {error}") from None

    def hold(self, run: str, entry: Entry) -> None:
        """Store an entry as pending, in place of any earlier one; the states of runs long past are dropped."""
        with self._transaction():
            try:
                self._put(run, "pending", entry)
            except sqlite3.DataError as error:  # SQLite's limit, 1,000,000,000 bytes a row
                raise TooLargeError(f"state and reply of round {entry.round} cannot be stored: {error}") from None
            self._database.execute(FORGET, (KEPT_RUNS,))

    def promote(self, run: str, state: State | None = None) -> None:
        """Commit the pending entry, with `state` in place of its own if given."""
        with self._transaction():
            if state is not None:
                self._database.execute(
                    "UPDATE states SET state = ? WHERE run = ? AND kind = 'pending'", (dump(state), run)
                )
            self._database.execute("DELETE FROM states WHERE run = ? AND kind = 'committed'", (run,))
            self._database.execute(
                "UPDATE states SET kind = 'committed', key = NULL, reply = NULL WHERE run = ? AND kind = 'pending'",
                (run,),
            )

    def drop(self, run: str) -> None:
        """Roll back: delete the pending entry, which the server did not count."""
        with self._transaction():
            self._database.execute("DELETE FROM states WHERE run = ? AND kind = 'pending'", (run,))

    def bound(self, run: str, round: int, task: str, request: str) -> str:
        """The request that a task of a round is bound to: the first that came, by its hash."""
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO final VALUES (?, ?, ?, ?, '')", (run, round, task, request))
            where = "run = ? AND round = ? AND task = ?"
            found = self._database.execute(f"SELECT request FROM final WHERE {where}", (run, round, task))
            return str(found.fetchone()[0])

    def ended(self, run: str) -> Ended | None:
        """How a run ended here, for good."""
        with self._errors():
            row = self._database.execute("SELECT status, reason FROM ended WHERE run = ?", (run,)).fetchone()
        return None if row is None else Ended(*row)

    def end(self, run: str, how: Ended) -> None:
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO ended VALUES (?, ?, ?)", (run, *how))

    def drop_states(self, runs: Sequence[str], how: Ended) -> int:
        """Drop the states and replies of all runs, and end these runs; returns of how many runs there were states."""
        with self._transaction():
            (number,) = self._database.execute("SELECT count(DISTINCT run) FROM states").fetchone()
            self._database.executemany("INSERT OR IGNORE INTO ended VALUES (?, ?, ?)", [(run, *how) for run in runs])
            self._database.execute("DELETE FROM states")
        return int(number)

    def erase(self) -> bool:
        """Remove what was overwritten or deleted from the write-ahead log, too; False: a reader stands in the way."""
        with self._errors():
            return bool(self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    def add_tables(self, schema: str) -> None:
        """Create further tables, where they are missing."""
        with self._errors():
            self._database.executescript(f"BEGIN; {schema} COMMIT;")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            yield self._database

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk at the end."""
        with self._transaction():
            yield self._database

    def close(self) -> None:
        self._database.close()
        os.close(self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _put(self, run: str, kind: str, entry: Entry) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?)",
            (run, kind, entry.round, entry.key, dump(entry.state), entry.reply),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"cannot use the state in {self.folder}: {error}") from None
