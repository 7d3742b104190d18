"""A ledger that cannot be forgotten: a node compares it with its state, and with what the server has received.

    at the start, and before     the ledger must stand where the state last saw it: same id, height and hash
    each release                 (or where the release leads that a crash interrupted)
    before each release          the ledger must hold the last releases that the server received

A ledger or a state that is missing, replaced, rolled back or forked is refused, with the cure. If both are rolled back
together and the server lies, or has lost its own record, nothing is noticed.
"""

from __future__ import annotations

from collections.abc import Callable

from fedmc.errors import DataError, InputError
from fedmc.federation.node.marks import Mark, Marks
from fedmc.federation.node.store import Store
from fedmc.federation.wire import Witnessed
from fedmc.privacy.dp.ledger import Head, Ledger
from fedmc.privacy.dp.mechanism import epsilon_of

CURE = "put the newest copy of both back; if lost, stop the node, `fedmc node ledger FOLDER --accept-loss EPSILON`"


class LedgerMismatchError(DataError):
    """Ledger, state and server do not agree: nothing may be released."""


class Guard:
    """A ledger, and the store that remembers where it stood."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger

    def check(self) -> None:
        """Refuse a ledger that is not the one that the state knows; the first one is paired with the state."""
        for file, what in ((self.ledger, self.ledger.path), (self.store, self.store.folder / "state.sqlite")):
            if not file.in_place():
                raise LedgerMismatchError(f"{what} was moved or replaced while the node runs: stop the node; {CURE}")
        marks, head = self.store.marks(), self.ledger.head()
        said = disagreement(marks, self.ledger)
        if said is not None:
            raise LedgerMismatchError(f"{said}: {CURE}")
        if "next" in marks or not same(marks.get("seen"), head):
            self.store.mark("seen", Mark(*head))
        if not self.ledger.paired:
            self.ledger.pair()  # after the state knows it

    def release(self, key: str, multiplier: float, make: Callable[[], bytes], witnessed: Witnessed | None) -> bytes:
        """`Ledger.release`, once ledger, state and server agree."""
        self.check()
        self.check_witness(witnessed)
        content = self.ledger.release(key, multiplier, make, lambda head: self.store.mark("next", Mark(*head)))
        self.store.mark("seen", Mark(*self.ledger.head()))
        return content

    def check_witness(self, witnessed: Witnessed | None) -> None:
        """Refuse if the server has received releases that this ledger does not hold."""
        if witnessed is None:
            return
        height, missing = self.ledger.head().height, self.ledger.missing(witnessed.last)
        if height < witnessed.releases or missing:
            self.store.mark("witness", Mark("", witnessed.releases, " ".join(witnessed.last), 0.0))
            said = f"the ledger {self.ledger.path} stands at release {height}"
            said += f" and lacks {missing[0][:60]!r}" if missing else ""
            received = f"the server has received {witnessed.releases}"
            raise LedgerMismatchError(f"{said}, {received}: it was lost, or replaced by an older copy; {CURE}")

    def accept_loss(self, epsilon: float) -> None:
        """Record that `epsilon` was spent in all, and pair ledger and state again; never less than either knows of."""
        known = self.known_spent()
        if not epsilon >= known * (1 - 1e-6):
            raise InputError(f"epsilon {known:.4g} is known to be spent on these ratings: accept at least that")
        marks = self.store.marks()
        lost = marks["witness"].hash.split() if "witness" in marks else []
        height = max((mark.height for mark in marks.values()), default=0)
        self.ledger.accept_loss(epsilon, height, lost, lambda head: self.store.mark("next", Mark(*head)))
        self.store.mark("seen", Mark(*self.ledger.head()))
        self.ledger.pair()

    def known_spent(self) -> float:
        """The least that was spent, by what the ledger holds and the state has seen; their sum, if they differ."""
        seen, head = self.store.marks().get("seen"), self.ledger.head()
        if seen is None:
            return self.ledger.spent()
        older = seen.id == head.id and (head.height < seen.height or self.ledger.passed(seen.hash))
        total = max(seen.cost, head.cost) if older else seen.cost + head.cost
        return max(self.ledger.spent(), epsilon_of(total, self.ledger.delta))


def same(mark: Mark | None, head: Head) -> bool:
    return mark is not None and mark[:3] == head[:3]


def disagreement(marks: Marks, ledger: Ledger) -> str | None:
    """How a ledger differs from what the state has seen of it; None if it does not."""
    head, seen = ledger.head(), marks.get("seen")
    here = f"the ledger {ledger.path} stands at release {head.height}"
    if seen is None:
        return f"{here}, the state knows nothing of it: the state was lost" if ledger.paired else None
    if same(seen, head) or same(marks.get("next"), head):
        return None
    known = f"the state has seen release {seen.height}"
    if seen.id != head.id:
        unused = seen.height == head.height == 0 and "next" not in marks
        return None if unused else f"{here}, {known} of another ledger: the ledger was lost or replaced"
    if head.height < seen.height:
        return f"{here}, {known}: the ledger was replaced by an older copy"
    if head.height > seen.height:
        return f"{here}, {known}: the state was replaced by an older copy"
    return f"{here}, and so does the state, but with another content: one of them is of another copy"
