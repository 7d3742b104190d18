"""Notices messages that come again: a node acts on a message only if it is newer than all before it in its run.

The server's transport repeats a message to a silent node: the same bytes, with the same number, are answered as before.
The final message of a run must also be newer than that of any other run that has finished here: an old one would put an
old model in the place of the organisation's newest. Everything is on disk before a message is acted on.
"""

from __future__ import annotations

from fedmc.federation.envelope import Opened
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS issued (run TEXT PRIMARY KEY, issued INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS finished (run TEXT PRIMARY KEY, key TEXT NOT NULL);
"""
CURE = "an old message came again, or the server's clock was set back: its operator sets it right"


class Replays:
    """What this node has acted on, kept in its store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.add_tables(SCHEMA)

    def admit(self, run: str, opened: Opened, final: bool) -> None:
        """Refuse a message that is older than one before it; note any other as the newest of its run."""
        with self.store.transaction() as database:
            last = database.execute("SELECT issued, digest FROM issued WHERE run = ?", (run,)).fetchone()
            if last == (opened.issued, opened.digest):
                return
            if last is not None and opened.issued <= last[0]:
                raise RefusedError("replayed", f"number {opened.issued}, after {last[0]} in this run: {CURE}")
            if final:
                self._refuse_older_model(run, opened)
            values = run, opened.issued, opened.digest
            database.execute("INSERT OR REPLACE INTO issued VALUES (?, ?, ?)", values)

    def _refuse_older_model(self, run: str, opened: Opened) -> None:
        query = "SELECT run, issued FROM finished JOIN issued USING (run) WHERE run <> ? AND issued > ?"
        with self.store.reading() as database:
            newer = database.execute(query, (run, opened.issued)).fetchone()
        if newer is not None:
            raise RefusedError("replayed", f"number {opened.issued}, after {newer[1]} of run {newer[0]}: {CURE}")

    def finished(self, run: str) -> str | None:
        """The key of the request that ended the run here; its model has been written."""
        with self.store.reading() as database:
            found = database.execute("SELECT key FROM finished WHERE run = ?", (run,)).fetchone()
        return None if found is None else str(found[0])

    def finish(self, run: str, key: str) -> None:
        with self.store.transaction() as database:
            database.execute("INSERT INTO finished VALUES (?, ?)", (run, key))
