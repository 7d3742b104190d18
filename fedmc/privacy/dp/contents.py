"""Which releases a ledger holds as bytes: the last ones, for requests that come again. More would fill the disk.

All others keep their link of the chain, which is what the budget and the proof of a loss depend on.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

MAX_KEPT = 50  # releases: more than there are runs under way, each of which may repeat its last request
MAX_BYTES = 256_000_000  # of their bytes; the newest release is always kept
RECLAIMED = 1_000_000  # bytes that are worth rewriting the file
PAGES = ("freelist_count", "page_count", "page_size")


def excess(file: sqlite3.Connection) -> int:
    """The number up to which releases are too many or too large; 0: none are."""
    used = 0
    sizes = file.execute("SELECT number, length(content) FROM releases ORDER BY number DESC LIMIT ?", (MAX_KEPT + 1,))
    for kept, (number, size) in enumerate(sizes, 1):
        used += size
        if kept > 1 and (kept > MAX_KEPT or used > MAX_BYTES):
            return int(number)
    return 0


def trim(file: sqlite3.Connection) -> None:
    """Delete the bytes of old releases; the pages are used again."""
    file.execute("DELETE FROM releases WHERE number <= ?", (excess(file),))


def reclaim(file: sqlite3.Connection) -> None:
    """Give unused pages back if they are more than a quarter of the file."""
    free, pages, size = (file.execute(f"PRAGMA {name}").fetchone()[0] for name in PAGES)
    if 4 * free > pages and free * size > RECLAIMED:
        with suppress(sqlite3.OperationalError):  # no space for the copy, or another process reads: another time
            file.execute("VACUUM")
