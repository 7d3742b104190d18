"""Notices messages that come again: a node acts on a message only if it is newer than all before it in its run.

The server's transport repeats a message to a silent node: the same bytes, with the same number, are answered as before.
The final message of a run must also be newer than that of any other run that has finished here: an old one would put an
old model in the place of the organisation's newest. Everything is on disk before a message is acted on.

A server names the runs, so only the newest MAX_RUNS numbers are kept. The largest number that was dropped is the floor:
a run without a number here, and the end of any run, must be above it. Nothing that was acted on is thereby acted on
again, and a run that goes on is not disturbed: its next number is newer than the floor. The keys of the last MAX_RUNS
finished runs are kept too; the journal says of earlier ones that they have finished.
"""

from __future__ import annotations

from fedmc.federation.envelope import Opened
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS issued (run TEXT PRIMARY KEY, issued INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS finished (run TEXT PRIMARY KEY, key TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS dropped (one INTEGER PRIMARY KEY CHECK (one = 1), floor INTEGER NOT NULL);
"""
MAX_RUNS = 1_000
OLDEST = "SELECT run FROM issued ORDER BY issued DESC LIMIT -1 OFFSET ?"
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
            if last is None or final:
                self._refuse_below_floor(opened)
            if final:
                self._refuse_older_model(run, opened)
            if last is None:
                self._make_room()
            values = run, opened.issued, opened.digest
            database.execute("INSERT OR REPLACE INTO issued VALUES (?, ?, ?)", values)

    def _refuse_below_floor(self, opened: Opened) -> None:
        with self.store.reading() as database:
            found = database.execute("SELECT floor FROM dropped").fetchone()
        if found is not None and opened.issued <= found[0]:
            reason = f"number {opened.issued}, and numbers up to {found[0]} are no longer kept for each run"
            raise RefusedError("replayed", f"{reason}: {CURE}")

    def _make_room(self) -> None:
        """Drop the smallest numbers, so that there is room for one more run; the largest of them is the new floor."""
        with self.store.reading() as database:
            query = f"SELECT max(issued) FROM issued WHERE run IN ({OLDEST})"
            (largest,) = database.execute(query, (MAX_RUNS - 1,)).fetchone()
            if largest is None:
                return
            database.execute(f"DELETE FROM issued WHERE run IN ({OLDEST})", (MAX_RUNS - 1,))
            raised = "INSERT INTO dropped VALUES (1, ?) ON CONFLICT DO UPDATE SET floor = max(floor, excluded.floor)"
            database.execute(raised, (largest,))

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
            last = "SELECT rowid FROM finished ORDER BY rowid DESC LIMIT ?"
            database.execute(f"DELETE FROM finished WHERE rowid NOT IN ({last})", (MAX_RUNS,))
