"""What a node was asked and what it sent: how many messages and bytes by task, and the last requests.

It is kept in `state/messages.sqlite`, beside the node's state, and is the organisation's own record: nothing of it is
sent. A record that cannot be written is a warning in the log and never ends the node.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from fedmc.algorithms.messages import TASKS
from fedmc.errors import DataError
from fedmc.federation import envelope
from fedmc.federation.container import Header
from fedmc.federation.node.store import StoreError
from fedmc.federation.statuses import OK, STATUS
from fedmc.federation.wire import RUN, read_header
from fedmc.types import MAX_ROUND

log = logging.getLogger("fedmc.node")

FILE = "messages.sqlite"
KEPT = 200  # requests
LISTED = 10  # requests that are shown
UNREAD = ("not-signed", "malformed")  # answers to messages of which nothing is believed
OTHER = "unreadable"  # the task of such a message
OPEN = "open"  # the second exchange of a session of secure aggregation
PATIENCE = 2.0  # seconds to wait for another process that reads
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS totals (
    task TEXT NOT NULL, status TEXT NOT NULL, messages INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL, PRIMARY KEY (task, status)
);
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, task TEXT NOT NULL, round INTEGER,
    status TEXT NOT NULL, bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL
);
"""
ADD = """
INSERT INTO totals VALUES (?, ?, 1, ?, ?)
ON CONFLICT DO UPDATE SET messages = messages + 1, bytes_down = bytes_down + excluded.bytes_down,
                          bytes_up = bytes_up + excluded.bytes_up
"""


class Asked(NamedTuple):
    """A request and how it was answered."""

    at: float  # seconds since 1970
    run: str
    task: str
    round: int | None
    status: str
    bytes_down: int
    bytes_up: int


class Total(NamedTuple):
    """All messages of a task, over all runs."""

    task: str
    answered: int
    refused: int
    bytes_down: int
    bytes_up: int


class Sent(NamedTuple):
    since: float | None  # when counting began
    totals: list[Total]
    last: list[Asked]  # the latest first


class Tally:
    """Counts what passes through `answer`."""

    def __init__(self, folder: Path, answer: Callable[[bytes], bytes]) -> None:
        self.answer, self._broken = answer, False
        try:
            self._database = _opened(folder / FILE)
        except sqlite3.OperationalError as error:
            raise StoreError(f"{folder / FILE} cannot be used: {error}") from None
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged (%s): what the node sent is counted anew", folder / FILE, error)
            for path in folder.glob(f"{FILE}*"):
                path.unlink()
            self._database = _opened(folder / FILE)

    def answer_bytes(self, sealed: bytes) -> bytes:
        reply = self.answer(sealed)
        try:
            self._add(asked(sealed, reply))
        except (sqlite3.Error, DataError) as error:
            if not self._broken:
                log.warning("the node's page will not show all messages: %s", error)
            self._broken = True
        return reply

    def _add(self, one: Asked) -> None:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(ADD, (one.task, one.status, one.bytes_down, one.bytes_up))
            done = self._database.execute("INSERT INTO requests VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", one)
            self._database.execute("DELETE FROM requests WHERE number <= ?", (int(done.lastrowid or 0) - KEPT,))

    def close(self) -> None:
        self._database.close()


def _opened(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")  # no wait for the disk at a message
        database.executescript(f"BEGIN;{SCHEMA}COMMIT;")
        if database.execute("SELECT 1 FROM about").fetchone() is None:
            database.execute("INSERT INTO about VALUES (?)", (time.time(),))
    except sqlite3.Error:
        database.close()
        raise
    return database


def asked(sealed: bytes, reply: bytes) -> Asked:
    """What a message asked for, as far as the node believed it, and the status of the reply."""
    status = str(read_header(reply).get("status"))
    header: Header = {}
    with suppress(DataError):  # then nothing is known of it
        header = {} if status in UNREAD else read_header(sealed[: -envelope.SIZE])
    run, number = header.get("run"), header.get("round")
    known = isinstance(run, str) and re.fullmatch(RUN, run) is not None
    task = OPEN if "stage" in header else header.get("task")
    counted = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_ROUND
    return Asked(
        time.time(), str(run) if known else "", str(task) if task in (*TASKS, OPEN) else OTHER,
        number if counted else None, status if status in STATUS else "failed", len(sealed), len(reply),
    )  # fmt: skip


def read(folder: Path) -> Sent:
    """What the node that uses this folder has counted so far; it may be running."""
    path = folder / FILE
    if not path.is_file():
        return Sent(None, [], [])
    try:
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE)) as database:
            since = database.execute("SELECT since FROM about").fetchone()
            sums = f"sum(messages * (status = '{OK}')), sum(messages * (status <> '{OK}')), sum(bytes_down)"
            totals = database.execute(f"SELECT task, {sums}, sum(bytes_up) FROM totals GROUP BY task ORDER BY task")
            columns = ", ".join(Asked._fields)
            last = database.execute(f"SELECT {columns} FROM requests ORDER BY number DESC LIMIT {LISTED}")
            return Sent(since and since[0], [Total(*row) for row in totals], [Asked(*row) for row in last])
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
