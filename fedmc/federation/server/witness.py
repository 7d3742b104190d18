"""The server as a witness: which releases under differential privacy it ever received, from each organisation.

It tells a node how many there were and which were the last, in every request. A node whose ledger does not hold those
was restored from an older copy, and refuses. The record is one SQLite file in the server's folder, for all runs; a
release is recorded as soon as it arrives. One that was asked for twice is recorded once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from fedmc.errors import DataError
from fedmc.federation.wire import NAMED, Witnessed

NAME, RUNS = "releases.sqlite", "runs"
SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY, organisation TEXT NOT NULL, release TEXT NOT NULL, UNIQUE (organisation, release)
);
"""


class Witness:
    """The file is opened for each question: a run asks few, and an operator may copy the file at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_run(cls, run: Path) -> Witness:
        """The witness of the server to whom this run's folder belongs."""
        return cls((run.parent.parent if run.parent.name == RUNS else run.parent) / NAME)

    def seen(self, organisation: str) -> Witnessed | None:
        """What was received from the organisation; None if nothing was."""
        theirs = "FROM releases WHERE organisation = ?"
        try:
            with closing(self._open()) as file:
                (count,) = file.execute(f"SELECT count(*) {theirs}", (organisation,)).fetchone()
                last = file.execute(f"SELECT release {theirs} ORDER BY number DESC LIMIT {NAMED}", (organisation,))
                return Witnessed(count, tuple(key for (key,) in last)) if count else None
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def record(self, releases: Mapping[str, str]) -> None:
        """Record a release of each of these organisations, on disk."""
        new = "INSERT OR IGNORE INTO releases (organisation, release) VALUES (?, ?)"
        try:
            with closing(self._open()) as file, file:
                file.executemany(new, releases.items())
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        file = sqlite3.connect(self.path, timeout=60)
        file.execute("PRAGMA synchronous = EXTRA")
        file.executescript(SCHEMA)
        return file

    def _unusable(self, error: sqlite3.Error) -> DataError:
        cure = "restore it from a backup; without it, nodes cannot notice that ledger and state were both rolled back"
        return DataError(f"the record of received releases {self.path} cannot be used: {error}; {cure}")
