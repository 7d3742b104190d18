"""What a node keeps of secure aggregation, in its store: its state in each run, its last reply, and whole sums.

The state of a run is never dropped: a node that had forgotten what it opened could open a second sum. It is small; the
masked reply is kept until its sum is certified.
"""

from __future__ import annotations

import json

from fedmc.errors import DataError
from fedmc.federation.node.store import Store, StoreError
from fedmc.privacy.secagg import encoding
from fedmc.privacy.secagg.encoding import Json, hash_from, items, whole_from
from fedmc.privacy.secagg.member import MemberState, OneTime, Replied

SCHEMA = """
CREATE TABLE IF NOT EXISTS secagg (run TEXT PRIMARY KEY, state TEXT NOT NULL, reply BLOB);
CREATE TABLE IF NOT EXISTS first_measured (run TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS taken_out (run TEXT PRIMARY KEY, members TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS whole_sums (origin TEXT NOT NULL, members TEXT NOT NULL, PRIMARY KEY (origin, members));
"""
FORGET = """
UPDATE secagg SET reply = NULL WHERE reply IS NOT NULL AND rowid NOT IN
(SELECT rowid FROM secagg WHERE reply IS NOT NULL ORDER BY rowid DESC LIMIT ?)
"""
NOT_FIRST = "DELETE FROM first_measured WHERE run = ?"
KEPT_REPLIES = 5  # of the newest runs: runs that were broken off must not fill the disk
NEW = MemberState()


class SecAggStore:
    """Reads and writes the states of secure aggregation; every write is on disk when it returns."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.add_tables(SCHEMA)

    def load(self, run: str) -> MemberState:
        with self.store.reading() as database:
            row = database.execute("SELECT state FROM secagg WHERE run = ?", (run,)).fetchone()
        if row is None:
            return NEW
        try:
            return encoding.parsed(row[0], _state_from)
        except DataError as error:
            raise StoreError(f"the state of secure aggregation in run {run} is damaged: {error}") from None

    def first_measured(self, run: str) -> bool:
        """Whether the last reply holds the node's first measurement of the run."""
        with self.store.reading() as database:
            return database.execute("SELECT 1 FROM first_measured WHERE run = ?", (run,)).fetchone() is not None

    def leaving(self, run: str) -> tuple[int, ...]:
        """The members whose part the last reply takes out."""
        with self.store.reading() as database:
            row = database.execute("SELECT members FROM taken_out WHERE run = ?", (run,)).fetchone()
        return () if row is None else tuple(map(int, row[0].split()))

    def save(
        self,
        run: str,
        state: MemberState,
        reply: bytes | None = None,
        first_measured: bool = False,
        leaving: tuple[int, ...] = (),
    ) -> None:
        """Store the state and, if there is a new one, the reply; with it, keys that were used leave the disk."""
        said = json.dumps(_state_to(state))
        with self.store.transaction() as database:
            database.execute("INSERT OR IGNORE INTO secagg VALUES (?, ?, NULL)", (run, said))
            database.execute("UPDATE secagg SET state = ? WHERE run = ?", (said, run))
            if reply is not None:
                change = "INSERT OR IGNORE INTO first_measured VALUES (?)" if first_measured else NOT_FIRST
                database.execute(change, (run,))
                database.execute("INSERT OR REPLACE INTO taken_out VALUES (?, ?)", (run, " ".join(map(str, leaving))))
                database.execute("UPDATE secagg SET reply = ? WHERE run = ?", (reply, run))
                database.execute(FORGET, (KEPT_REPLIES,))
            elif state.replied is None:
                database.execute("UPDATE secagg SET reply = NULL WHERE run = ?", (run,))
        if reply is not None:
            self.store.erase()

    def reply(self, run: str) -> bytes | None:
        """The last reply; None if it is no longer kept."""
        with self.store.reading() as database:
            row = database.execute("SELECT reply FROM secagg WHERE run = ?", (run,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    def drop_replies(self) -> None:
        """Drop all replies. What was opened, and which sums were, stays known."""
        with self.store.transaction() as database:
            database.execute("UPDATE secagg SET reply = NULL")

    def whole_sums(self, origins: list[str]) -> set[tuple[int, ...]]:
        """The sets of members over which whole contributions from these data were summed, in any run."""
        marks = ", ".join("?" * len(origins))
        with self.store.reading() as database:
            rows = database.execute(f"SELECT members FROM whole_sums WHERE origin IN ({marks})", origins).fetchall()
        return {tuple(int(member) for member in listed.split()) for (listed,) in rows}

    def add_whole_sum(self, origins: list[str], members: tuple[int, ...]) -> None:
        listed = " ".join(map(str, members))
        with self.store.transaction() as database:
            database.executemany("INSERT OR IGNORE INTO whole_sums VALUES (?, ?)", [(one, listed) for one in origins])


def _state_to(state: MemberState) -> Json:
    keys, replied = state.keys, state.replied
    return [
        state.seq,
        [] if keys is None else [keys.mask.hex(), keys.seal.hex(), encoding.keys_to(keys.public)],
        [[peer, seq] for peer, seq in sorted(state.peers.items())],
        state.certified, state.certificate.hex(), state.base,
        [] if replied is None else [
            encoding.session_to(replied.session), replied.seal.hex(), replied.head.hex(),
            [] if replied.opened is None else encoding.opened_to(replied.opened), replied.losses,
        ],
    ]  # fmt: skip


def _state_from(value: Json) -> MemberState:
    seq, keys, peers, certified, certificate, base, replied = items(value)
    known = {whole_from(peer): whole_from(number) for peer, number in map(items, items(peers))}
    return MemberState(
        whole_from(seq), _keys(items(keys)), known, whole_from(certified), hash_from(certificate), whole_from(base),
        _replied(items(replied)),
    )  # fmt: skip


def _keys(value: Json) -> OneTime | None:
    if not value:
        return None
    mask, seal, public = items(value)
    return OneTime(hash_from(mask), hash_from(seal), encoding.keys_from(public))


def _replied(value: Json) -> Replied | None:
    if not value:
        return None
    session, seal, head, opened, losses = items(value)
    found = encoding.opened_from(opened) if items(opened) else None
    return Replied(encoding.session_from(session), hash_from(seal), hash_from(head), found, whole_from(losses))
