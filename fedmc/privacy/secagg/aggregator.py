"""The server's part in a session of secure aggregation (`session` describes the protocol)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto, misdealing
from fedmc.privacy.secagg.serial import digest
from fedmc.privacy.secagg.session import (
    EXTRA,
    AbortedError,
    Certificate,
    Head,
    Masked,
    Opened,
    Pinned,
    Proof,
    Session,
    boxes_hash,
    open_content,
    self_key,
)  # fmt: skip
from fedmc.types import Array


class MisdealtError(AbortedError):
    """Members dealt shares that do not open their masks; the proofs name them."""

    def __init__(self, proofs: tuple[Proof, ...]) -> None:
        self.proofs = proofs
        super().__init__(f"members {', '.join(str(proof.head.member) for proof in proofs)} dealt wrong shares")


class Unmasked(NamedTuple):
    """The sum of all members' inputs, and its certificate."""

    words: Array
    failed: bool  # somebody could not compute its input: the words are noise
    certificate: Certificate


class Aggregator:
    """Collects the messages of one session. It trusts the transport on who sent a message, and checks all else."""

    def __init__(self, session: Session, pinned: Pinned) -> None:
        self.session, self.pinned = session, pinned
        self.masked: dict[int, Masked] = {}
        self.opened: dict[int, Opened] = {}

    def take_masked(self, member: int, masked: Masked) -> None:
        """Accept a reply of exchange 1; DataError if it does not fit."""
        session, head = self.session, masked.head
        if head.member != member or head.next.member != member or member not in session.members:
            raise DataError(f"a reply of {head.member} came from {member}")
        crypto.check(self.pinned[member], head.signature, head.content(session.hash))
        head.next.check(session.run, self.pinned)
        if head.next.seq <= session.keys[member].seq:
            raise DataError(f"the next keys of {member} are not new")
        head.next.check_usable()
        if set(masked.boxes) != set(session.members) - {member} or boxes_hash(masked.boxes) != head.boxes:
            raise DataError(f"the boxes of {member} are not those that it signed, one for each other member")
        words = masked.words
        if words.shape != (session.length + EXTRA,) or words.dtype != np.uint64 or digest(words) != head.input:
            raise DataError(f"the masked input of {member} is not the one that it signed, or of another shape")
        self.masked[member] = masked

    def missing(self) -> list[int]:
        """The members that have not replied."""
        return [member for member in self.session.members if member not in self.masked]

    def heads(self) -> list[Head]:
        """What every member gets in exchange 2."""
        if self.missing():
            raise AbortedError(f"members {self.missing()} did not reply")
        return [self.masked[member].head for member in self.session.members]

    def take_opened(self, member: int, opened: Opened) -> None:
        """Accept an answer of exchange 2; DataError if it does not fit."""
        session = self.session
        if opened.member != member or member not in session.members:
            raise DataError(f"an answer of {opened.member} came from {member}")
        crypto.check(self.pinned[member], opened.signature, open_content(session.hash))
        if crypto.public_of(opened.seal) != session.keys[member].seal:
            raise DataError(f"the seal key of {member} is not the one of this session")
        self.opened[member] = opened

    def unmask(self) -> Unmasked:
        """The sum of all inputs; MisdealtError names members whose masks cannot be opened."""
        session = self.session
        self.heads()
        if len(self.opened) < session.needed:
            raise AbortedError(f"{len(self.opened)} of {len(session.members)} members opened, {session.needed} must")
        secrets = self._secrets()
        total = np.zeros(session.length + EXTRA, np.uint64)
        for masked in self.masked.values():
            total += masked.words
        total = crypto.add_masks(total, [(self_key(secret, session.hash), -1) for secret in secrets.values()])
        ones, failure = (int(word) for word in total[-EXTRA:])
        if ones != len(session.members):
            raise DataError(f"the sum counts {ones} members instead of {len(session.members)}: somebody masked wrongly")
        return Unmasked(total[:-EXTRA], failure != 0, self.certificate())

    def certificate(self) -> Certificate:
        session = self.session
        signatures = tuple((member, one.signature) for member, one in sorted(self.opened.items()))
        return Certificate(
            session.run, session.number, session.members, session.losses, session.kept, session.rest, signatures
        )

    def _secrets(self) -> dict[int, bytes]:
        session, seals = self.session, {member: one.seal for member, one in self.opened.items()}
        found, proofs = dict[int, bytes](), []
        for member, masked in self.masked.items():
            secret = misdealing.secret_of(session, masked.head, masked.boxes, seals)
            if secret is None:
                boxes = tuple(sorted(masked.boxes.items()))
                proofs.append(Proof(masked.head, boxes, tuple(sorted(_enough(seals, member, session)))))
            else:
                found[member] = secret
        if proofs:
            raise MisdealtError(tuple(proofs))
        return found


def _enough(seals: Mapping[int, bytes], dealer: int, session: Session) -> list[tuple[int, bytes]]:
    """The seal keys that `secret_of` uses."""
    return sorted((holder, seal) for holder, seal in seals.items() if holder != dealer)[: session.threshold]
