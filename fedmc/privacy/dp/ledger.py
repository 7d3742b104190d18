"""The ledger of an organisation's releases under differential privacy, in one SQLite file, and its budget.

Every release is written to disk, with its noise multiplier and its bytes, before it is sent. A release that would
exceed (epsilon, delta) is refused, in any run and also after a crash. A repeated request (the same key) gets the bytes
of the first release, which costs nothing; a new draw of noise would be a new release.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from fedmc.errors import DataError, FedmcError, require
from fedmc.privacy.dp.mechanism import spent

SLACK = 1e-9  # relative, for rounding in a plan that spends all of epsilon
SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, multiplier REAL NOT NULL, content BLOB NOT NULL
);
"""


class OverBudgetError(FedmcError):
    """A release would exceed the organisation's budget; it was not made."""


class Ledger:
    """One ledger per table of ratings, for all runs on it; several processes may open it."""

    def __init__(self, path: str | Path, epsilon: float, delta: float) -> None:
        require(epsilon > 0, f"epsilon must be above 0, got {epsilon}")
        require(0 < delta < 1, f"delta must lie between 0 and 1, got {delta}")
        self.path, self.epsilon, self.delta = Path(path), epsilon, delta
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._file = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._file.execute("PRAGMA synchronous = EXTRA")  # COMMIT returns once it is on disk, journal deleted
            self._file.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot open the ledger {path}: {error}") from None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def release(self, key: str, multiplier: float, make: Callable[[], bytes]) -> bytes:
        """The bytes to send: those of this key's earlier release, or new ones from `make` if the budget allows."""
        with self._alone():
            found = self._file.execute("SELECT content FROM releases WHERE key = ?", (key,)).fetchone()
            if found is not None:
                return bytes(found[0])
            self._refuse(multiplier)
            content = make()
            self._file.execute(
                "INSERT INTO releases (key, multiplier, content) VALUES (?, ?, ?)", (key, multiplier, content)
            )
        return content

    def spent(self) -> float:
        """The epsilon of all releases so far, at the ledger's delta."""
        return spent(self.multipliers(), self.delta)

    def multipliers(self) -> list[float]:
        return [one for (one,) in self._file.execute("SELECT multiplier FROM releases ORDER BY number")]

    def _refuse(self, multiplier: float) -> None:
        after = spent([*self.multipliers(), multiplier], self.delta)
        if not after <= self.epsilon * (1 + SLACK):
            raise OverBudgetError(
                f"this release would bring epsilon to {after:.4g}, the bound is {self.epsilon:.4g} at delta "
                f"{self.delta:.3g}: {self.spent():.4g} is spent on these ratings; raise the bound, or stop here"
            )

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
            raise DataError(f"the ledger {self.path} cannot be written, so nothing leaves: {error}") from None
