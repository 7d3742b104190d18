"""What a node's state remembers of its ledger: where the ledger stood, so that a lost or older copy is noticed.

seen      the ledger's head after the last release
next      the head that it gets by the release that is being written; after a crash, the ledger has either of the two
witness   the releases that the server says it has received, if the ledger did not hold them
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from fedmc.errors import DataError

MarkKind = Literal["seen", "next", "witness"]
SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (
    kind TEXT PRIMARY KEY, id TEXT NOT NULL, height INTEGER NOT NULL, hash TEXT NOT NULL, cost REAL NOT NULL
);
"""


class Mark(NamedTuple):
    """A ledger's id, height, last hash and cost; of a witness, how many releases there were and their keys."""

    id: str
    height: int
    hash: str
    cost: float


Marks = Mapping[MarkKind, Mark]


def read(database: sqlite3.Connection) -> Marks:
    return {row[0]: Mark(*row[1:]) for row in database.execute("SELECT kind, id, height, hash, cost FROM ledger")}


def write(database: sqlite3.Connection, kind: MarkKind, mark: Mark) -> None:
    database.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?)", (kind, *mark))
    if kind == "seen":
        database.execute("DELETE FROM ledger WHERE kind = 'next'")


def read_file(path: Path) -> Marks:
    """The marks in a state file that another process may be using; none if it is missing or an earlier version's."""
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone()
            return read(database) if known else {}
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read: {error}") from None
