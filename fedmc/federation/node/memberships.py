"""Among whom a node takes part in a run: the members that were in the list when the run began.

A new run is among the members of the node's newest list. A run that has begun keeps its list, whatever joins or leaves
meanwhile, so that its numbers and keys stay what they were. Lists are kept by their hash, which each request names.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.errors import DataError
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Store
from fedmc.federation.setup import members
from fedmc.federation.setup.identities import Identity, identity_of
from fedmc.federation.setup.members import MemberList
from fedmc.federation.setup.statements import Departure
from fedmc.federation.statuses import UNKNOWN_MEMBERS
from fedmc.federation.wire import Request

SCHEMA = """
CREATE TABLE IF NOT EXISTS member_lists (hash TEXT PRIMARY KEY, list BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS run_members (run TEXT PRIMARY KEY, hash TEXT NOT NULL);
"""


class Own(NamedTuple):
    """This organisation in the federation: its newest list of members, and its own part in it."""

    listed: MemberList
    name: str
    key: Ed25519PrivateKey
    min_cohort: int
    departure: Departure | None = None  # what it said about leaving

    def __repr__(self) -> str:
        return f"Own({self.name})"  # and not its secret


class Memberships:
    """The node's identity in each run. Without a list it has the one that it was given, in all of them."""

    def __init__(self, store: Store, identity: Identity | None, own: Own | None) -> None:
        self.store, self.identity, self.own = store, identity, own
        store.add_tables(SCHEMA)

    def of(self, request: Request) -> Identity | None:
        """The identity in the run of this request. RefusedError: the run is among other members than are known here."""
        own = self.own
        if own is None:
            return self.identity
        bound, named = self._bound(request.run), self._named(request, own)
        if bound is not None and bound != named:
            raise RefusedError("wrong-member", f"run {request.run} began among other members")
        if bound is None and named != own.listed.hash:
            known = f"version {own.listed.version} of the list of members is known here"
            raise RefusedError(UNKNOWN_MEMBERS, f"a new run is among members of another list; {known}")
        return self.identity if named == own.listed.hash else self._earlier(own, named)

    def of_run(self, run: str) -> Identity | None:
        """The identity in a run that this node has answered in."""
        bound = self._bound(run)
        if self.own is None or bound in (None, self.own.listed.hash):
            return self.identity
        assert bound is not None
        return self._earlier(self.own, bound)

    def bind(self, request: Request) -> None:
        """Note the list of a run, at its first request that was admitted."""
        if self.own is None or request.invitation is None:
            return
        named = self._named(request, self.own)
        with self.store.transaction() as database:
            if named == self.own.listed.hash:
                row = named, members.to_bytes(self.own.listed)
                database.execute("INSERT OR IGNORE INTO member_lists VALUES (?, ?)", row)
            database.execute("INSERT OR IGNORE INTO run_members VALUES (?, ?)", (request.run, named))

    def _named(self, request: Request, own: Own) -> str:
        """The list that a request names; earlier servers name none: then it is the one that the run began with here."""
        return request.members or self._bound(request.run) or own.listed.hash

    def _bound(self, run: str) -> str | None:
        with self.store.reading() as database:
            row = database.execute("SELECT hash FROM run_members WHERE run = ?", (run,)).fetchone()
        return None if row is None else str(row[0])

    def _earlier(self, own: Own, hash: str) -> Identity:
        with self.store.reading() as database:
            row = database.execute("SELECT list FROM member_lists WHERE hash = ?", (hash,)).fetchone()
        try:
            if row is None:
                raise DataError("the list of members of this run is not kept here")
            found = identity_of(members.parsed(row[0]), own.name, own.key, own.min_cohort)
        except DataError as error:
            raise RefusedError("wrong-member", str(error)) from None
        return found._replace(visible=own.listed.visible, departed=own.listed.departed)
