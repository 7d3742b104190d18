"""The ledger of an organisation's releases under differential privacy, in one SQLite file, and its budget.

Every release is written to disk, with its noise multiplier and its bytes, before it is sent. A release that would
exceed (epsilon, delta) is refused, in any run and also after a crash. A repeated request (the same key) gets the bytes
of the first release, which costs nothing; a new draw of noise would be a new release. Only the last releases are kept
as bytes (`contents`): a request for an older one is refused.

A ledger has a random id. Its releases are numbered and chained: each has a hash over the one before. So the last
number and hash (the `Head`) tell whether a copy is this ledger, an older copy of it, or another one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from fedmc.errors import DataError, FedmcError
from fedmc.privacy.dp import bounds, contents
from fedmc.privacy.dp.mechanism import calibrate, cost, epsilon_of
from fedmc.privacy.secagg.serial import digest

SLACK = 1e-9  # relative, for rounding in a plan that spends all of epsilon
LEAST = 1e-6  # epsilon that each release costs at least: in theory, the first ones are free if delta is large
SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, multiplier REAL NOT NULL, content BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS chain (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL, multiplier REAL NOT NULL, digest BLOB NOT NULL, hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS about (id TEXT NOT NULL, paired INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lost (key TEXT PRIMARY KEY);
"""


class OverBudgetError(FedmcError):
    """A release would exceed the organisation's budget; it was not made."""


class LedgerError(DataError):
    """The ledger's file cannot be written: nothing may leave."""


class LostReleaseError(FedmcError):
    """A release is asked for again, but its bytes are no longer kept, or were lost with an earlier ledger."""


class Head(NamedTuple):
    """Where a ledger stands: its id, the number of its last release (0: none), that one's hash, and the cost of all."""

    id: str
    height: int
    hash: str
    cost: float  # sum of 1/multiplier^2


class Ledger:
    """One ledger per table of ratings, for all runs on it; several processes may open it."""

    def __init__(self, path: str | Path, epsilon: float, delta: float) -> None:
        self.epsilon, self.delta = bounds.check_epsilon(epsilon), bounds.check_delta(delta)
        self.path = Path(path)
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._place = _inode(self.path)
            self._file = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._file.execute("PRAGMA synchronous = EXTRA")  # COMMIT returns once it is on disk, journal deleted
            self._file.executescript(f"BEGIN;{SCHEMA}COMMIT;")
            self._migrate()
            self._verify()
            self._trim()
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot open the ledger {path}: {error}") from None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def release(
        self, key: str, multiplier: float, make: Callable[[], bytes], intend: Callable[[Head], None] = lambda head: None
    ) -> bytes:
        """The bytes to send: those of this key's earlier release, or new ones from `make` if the budget allows.

        `intend` gets the head that the ledger will have, just before a new release is written.
        """
        noise = bounds.check_multiplier(multiplier)
        with self._alone():
            found = self._file.execute("SELECT content FROM releases WHERE key = ?", (key,)).fetchone()
            if found is not None:
                return bytes(found[0])
            if self._found("SELECT 1 FROM lost WHERE key = ?", key):
                raise LostReleaseError("the bytes of this release were lost with an earlier ledger")
            if self._found("SELECT 1 FROM chain WHERE key = ?", key):
                kept = f"only the last {contents.MAX_KEPT} releases are kept, and none of before a user was forgotten"
                raise LostReleaseError(f"{kept}: this one is older")
            self._refuse(noise)
            content = make()
            self._append(self.head().height + 1, key, noise, content, intend)
        return content

    def accept_loss(self, epsilon: float, height: int, keys: Iterable[str], intend: Callable[[Head], None]) -> None:
        """Record that `epsilon` was spent in all, releases included that this file does not hold.

        The ledger then stands at `height` at least. `keys` name releases that are no longer missed.
        """
        total = calibrate(bounds.check_epsilon(epsilon), self.delta) ** -2
        with self._alone():
            head = self.head()
            missing = max(total - head.cost, bounds.MAX_MULTIPLIER**-2)  # never nothing
            height = max(height, head.height + 1)
            self._file.executemany("INSERT OR IGNORE INTO lost VALUES (?)", [(key,) for key in self.missing(keys)])
            self._append(height, f"accepted loss {height}", missing**-0.5, b"", intend)

    def drop_contents(self) -> None:
        """Delete the bytes of all releases. What they cost, and the chain of all releases, stay."""
        with self._alone():
            self._file.execute("DELETE FROM releases")
        try:
            self._file.execute("VACUUM")  # the pages of what was deleted, now and earlier
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self.path} still holds deleted pages: {error}") from None

    def spent(self) -> float:
        """The epsilon of all releases so far, at the ledger's delta."""
        return epsilon_spent(self.multipliers(), self.delta)

    def multipliers(self) -> list[float]:
        return [one for (one,) in self._file.execute("SELECT multiplier FROM chain ORDER BY number")]

    def head(self) -> Head:
        (name,) = self._file.execute("SELECT id FROM about").fetchone()
        last = self._file.execute("SELECT number, hash FROM chain ORDER BY number DESC LIMIT 1").fetchone()
        height, found = last or (0, name)
        return Head(name, height, found, cost(self._counted()))

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of these releases that the ledger neither holds nor accepts as lost."""
        known = "SELECT 1 FROM chain WHERE key = ?1 UNION ALL SELECT 1 FROM lost WHERE key = ?1"
        return [key for key in keys if not self._found(known, key)]

    def passed(self, hash: str) -> bool:
        """Whether the ledger ever stood at this hash."""
        return hash == self.head().id or self._found("SELECT 1 FROM chain WHERE hash = ?", hash)

    @property
    def paired(self) -> bool:
        """Whether a node's state knows this ledger."""
        return bool(self._file.execute("SELECT paired FROM about").fetchone()[0])

    def pair(self) -> None:
        with self._alone():
            self._file.execute("UPDATE about SET paired = 1")

    def in_place(self) -> bool:
        """Whether the file that was opened is still the one under its name."""
        return _inode(self.path) == self._place

    def _found(self, query: str, value: str) -> bool:
        return self._file.execute(query, (value,)).fetchone() is not None

    def _counted(self) -> list[float]:
        """The multipliers; 0 where an earlier version's noise overflowed, so that there was none."""
        return [0.0 if one > bounds.OVERFLOWED else one for one in self.multipliers()]

    def _epsilon(self, total: float, releases: int) -> float:
        return max(epsilon_of(total, self.delta), LEAST * releases)

    def _refuse(self, multiplier: float) -> None:
        counted = self._counted()
        after = self._epsilon(cost([*counted, multiplier]), len(counted) + 1)
        if not after <= self.epsilon * (1 + SLACK):
            raise OverBudgetError(
                f"this release would bring epsilon to {after:.4g}, the bound is {self.epsilon:.4g} at delta "
                f"{self.delta:.3g}: {self.spent():.4g} is spent on these ratings; raise the bound, or stop here"
            )

    def _append(self, number: int, key: str, multiplier: float, content: bytes, intend: Callable[[Head], None]) -> None:
        before = self.head()
        row = _Row(number, key, multiplier, hashlib.sha256(content).digest())
        intend(Head(before.id, number, row.hash(before.hash), before.cost + multiplier**-2))
        self._file.execute("INSERT INTO releases VALUES (?, ?, ?, ?)", (number, key, multiplier, content))
        self._chain(row, before.hash)
        contents.trim(self._file)

    def _trim(self) -> None:
        """Bound what an earlier version kept."""
        if contents.excess(self._file):
            with self._alone():
                contents.trim(self._file)
        contents.reclaim(self._file)

    def _chain(self, row: _Row, before: str) -> str:
        after = row.hash(before)
        self._file.execute("INSERT INTO chain VALUES (?, ?, ?, ?, ?)", (*row, after))
        return after

    def _migrate(self) -> None:
        """Give a ledger its id, and chain the releases that an earlier version wrote."""
        missing = "FROM releases WHERE number NOT IN (SELECT number FROM chain)"
        known = self._file.execute("SELECT 1 FROM about").fetchone() is not None
        if known and self._file.execute(f"SELECT 1 {missing} LIMIT 1").fetchone() is None:
            return
        with self._alone():
            if self._file.execute("SELECT 1 FROM about").fetchone() is None:
                self._file.execute("INSERT INTO about VALUES (?, 0)", (secrets.token_hex(16),))
            rows = self._file.execute(f"SELECT number, key, multiplier, content {missing} ORDER BY number").fetchall()
            at = self.head().hash
            for number, key, multiplier, content in rows:
                at = self._chain(_Row(number, key, multiplier, hashlib.sha256(content).digest()), at)

    def _verify(self) -> None:
        """Refuse a file whose chain does not hold."""
        (at,) = self._file.execute("SELECT id FROM about").fetchone()
        rows = self._file.execute("SELECT number, key, multiplier, digest, hash FROM chain ORDER BY number")
        for *row, found in rows:
            at = _Row(*row).hash(at)
            if found != at:
                cure = "put the newest copy back"
                raise DataError(f"the ledger {self.path} is damaged at release {row[0]}: {cure}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """An exclusive transaction: all or nothing, and no other process in between."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self.path} cannot be written, so nothing leaves: {error}") from None


class _Row(NamedTuple):
    """A link of the chain."""

    number: int
    key: str
    multiplier: float
    digest: bytes  # of the content

    def hash(self, before: str) -> str:
        return digest(before, *self).hex()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def multipliers_in(path: Path) -> list[float]:
    """The noise of all releases in a ledger that its node may be using; nothing is written."""
    if not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as file:
            return [one for (one,) in file.execute("SELECT multiplier FROM chain ORDER BY number")]
    except sqlite3.Error as error:
        raise DataError(f"the ledger {path} cannot be read: {error}") from None


def epsilon_spent(multipliers: Sequence[float], delta: float) -> float:
    """The epsilon of these releases, as a ledger counts it."""
    counted = [0.0 if one > bounds.OVERFLOWED else one for one in multipliers]  # an earlier version's, without noise
    return max(epsilon_of(cost(counted), delta), LEAST * len(counted))
