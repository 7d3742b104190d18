"""Secure aggregation in two exchanges: the server learns only the sum of the members' inputs.

A session is one attempt to form a sum. Its hash H covers everything that a member acts on: the request, the members
with their one-time keys, and the certificate of the sum before.

    exchange 1   each member masks its input, x + PRG(b) + sum over peers of +-PRG(key of the pair), with b fresh and
                 pair keys from one-time keys and H. It replies with the masked input, shares of b in boxes that only
                 their holders can open, and a signed head: hashes of all this, and its next one-time keys
    exchange 2   each member gets all heads. If all members signed one for its latest H, it opens: it sends its one-time
                 seal key, with which its boxes can be opened, and signs ("open", H). It opens one session per sum

Pair keys are never revealed, so only the total of a whole cohort can be unmasked. With n members, t = n - 1 - d shares
give b: d members may be lost in exchange 2. If one is lost in exchange 1, the server proposes a smaller cohort.

n - d signatures on ("open", H) are the certificate of the sum. It alone says what is counted: every member of that
cohort, whether it answered in exchange 2 or not. The next session carries it.

**Promise.** With c members that collude with the server, every sum that is unmasked covers all n - c honest members of
its cohort, and no honest input is in two sums of the same number over different honest members, if
n - c >= max(2, 2d + 1). Opening takes n - d - c honest members at least. So at most d honest ones are left for any
other session of that number. A member that replied to both sessions has checked that the second cohort is a subset of
the first, and that it has more than d honest members: all of them would have to be among those d. Who opened a session
replies to another of that number only if it has the same members without some that are proven to have misdealt; and
keeps to these members from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError, FedmcError
from fedmc.privacy.secagg import crypto, rules
from fedmc.privacy.secagg.serial import Value, digest, serialise
from fedmc.types import Array

Pinned = Mapping[int, Ed25519PublicKey]  # the public identities of all members
EXTRA = 2  # words behind an input: a one, so that their sum is the number of members, and the failure word
NO_SUM = 0  # the base of a member that is in no sum yet; sums are numbered from 1


class AbortedError(FedmcError):
    """The session yields no sum; nothing was unmasked."""


class PublicKeys(NamedTuple):
    """A member's one-time public keys, signed by its identity."""

    member: int
    seq: int  # rises with every pair of keys of a run
    mask: bytes
    seal: bytes
    alone: bool = False  # the member accepts sums that show its own change (see `rules`)
    signature: bytes = b""

    def content(self, run: str) -> bytes:
        return serialise("keys", run, self.member, self.seq, self.mask, self.seal, self.alone)

    def check(self, run: str, pinned: Pinned) -> None:
        crypto.check(pinned[self.member], self.signature, self.content(run))

    def check_usable(self) -> None:
        """Refuse keys that nobody can agree on a key with: all peers would fail."""
        if self.mask == self.seal:
            raise DataError(f"member {self.member} has one key for two uses")
        for key in (self.mask, self.seal):
            crypto.agree(crypto.new_pair()[0], key, b"")


class Invited(NamedTuple):
    """A member of a cohort: its keys, and its base, the last certified sum that it is in (or NO_SUM)."""

    keys: PublicKeys
    base: int = NO_SUM


@dataclass(frozen=True)
class Session:
    """One attempt to form sum `number` of a run, over the cohort of `invited` members."""

    run: str
    number: int
    attempt: int
    content: bytes  # hash of the request: what the inputs are computed from
    invited: tuple[Invited, ...]  # by ascending member
    losses: int  # d: so many members may be lost in exchange 2
    previous: bytes  # hash of the certificate of sum `number - 1`; empty for the first
    length: int  # words of an input, without the extra ones
    kept: bool = True  # inputs are changes of what is counted, which members keep; False: statistics, counted once
    instead_of: bytes = b""  # the hash of an opened session that members misdealt in, which this one replaces

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(one.keys.member for one in self.invited)

    @cached_property
    def keys(self) -> dict[int, PublicKeys]:
        return {one.keys.member: one.keys for one in self.invited}

    @cached_property
    def bases(self) -> dict[int, int]:
        return {one.keys.member: one.base for one in self.invited}

    @property
    def threshold(self) -> int:
        """The shares that give a member's secret; members hold none of their own secret."""
        return len(self.invited) - 1 - self.losses

    @property
    def needed(self) -> int:
        """The members that must open the session."""
        return len(self.invited) - self.losses

    @cached_property
    def rest(self) -> bytes:
        """Hash of what a certificate does not repeat."""
        table: Value = [serialise(*one.keys, one.base) for one in self.invited]
        return digest(self.attempt, self.content, table, self.previous, self.length, self.instead_of)

    @cached_property
    def hash(self) -> bytes:
        return hash_of(self.run, self.number, self.members, self.losses, self.kept, self.rest)


def hash_of(run: str, number: int, members: tuple[int, ...], losses: int, kept: bool, rest: bytes) -> bytes:
    """The hash of a session, H, from what its certificate holds."""
    return digest("session", run, number, members, losses, kept, rest)


class Head(NamedTuple):
    """The signed part of a reply in exchange 1."""

    member: int
    ephemeral: bytes  # the public key that its boxes are sealed with
    commitment: bytes  # hash of b
    boxes: bytes  # hash of the boxes
    input: bytes  # hash of the masked input
    next: PublicKeys
    signature: bytes = b""

    def content(self, session: bytes) -> bytes:
        return serialise("head", session, *self[:5], list(self.next))


class Masked(NamedTuple):
    """A member's reply in exchange 1."""

    head: Head
    boxes: dict[int, bytes]  # by receiver
    words: Array


class Opened(NamedTuple):
    """A member's answer in exchange 2."""

    member: int
    seal: bytes  # its private one-time seal key
    signature: bytes  # of ("open", H)


def open_content(session: bytes) -> bytes:
    return serialise("open", session)


class Certificate(NamedTuple):
    """Proof that a session was opened: every member of its cohort is counted in this sum."""

    run: str
    number: int
    members: tuple[int, ...]
    losses: int
    kept: bool
    rest: bytes
    signatures: tuple[tuple[int, bytes], ...]

    @property
    def session(self) -> bytes:
        return hash_of(*self[:6])

    @property
    def hash(self) -> bytes:
        """Whoever signed: two certificates of one session are the same."""
        return digest("certificate", self.session)

    def check(self, pinned: Pinned) -> None:
        signers = [member for member, _ in self.signatures]
        if len(set(signers)) != len(signers) or not set(signers) <= set(self.members):
            raise DataError("a certificate is signed twice, or by others than its members")
        if len(set(self.members)) != len(self.members) or not set(self.members) <= set(pinned):
            raise DataError("a certificate names a member twice, or one that is not known")
        least = rules.Rules(2, rules.colluders(len(pinned)))
        least.check(len(self.members), self.losses)  # so one signer at least is honest
        if len(signers) < len(self.members) - self.losses:
            raise DataError(f"a certificate has {len(signers)} signatures of {len(self.members)} members: too few")
        for member, signature in self.signatures:
            crypto.check(pinned[member], signature, open_content(self.session))


class Proof(NamedTuple):
    """Evidence that a member misdealt: its head and boxes, and seal keys that should have opened them."""

    head: Head
    boxes: tuple[tuple[int, bytes], ...]
    seals: tuple[tuple[int, bytes], ...]  # private seal keys, by holder


def signed_keys(identity: Ed25519PrivateKey, run: str, keys: PublicKeys) -> PublicKeys:
    return keys._replace(signature=crypto.sign(identity, keys.content(run)))


def boxes_hash(boxes: Mapping[int, bytes]) -> bytes:
    return digest("boxes", [[member, box] for member, box in sorted(boxes.items())])


def commitment_to(secret: bytes) -> bytes:
    return digest("commitment", secret)


def self_key(secret: bytes, session: bytes) -> bytes:
    """The key of a member's own mask, which hides its input until the session is opened."""
    return crypto.derive(secret, serialise("self", session))


def pair_key(private: bytes, own: int, peer: int, public: bytes, session: bytes) -> tuple[bytes, int]:
    """The key and sign of a pairwise mask: plus for the smaller number, minus for the larger, so that it cancels."""
    low, high = sorted((own, peer))
    return crypto.agree(private, public, serialise("pair", session, low, high)), 1 if own == low else -1


def box_key(private: bytes, public: bytes, dealer: int, holder: int, session: bytes) -> bytes:
    return crypto.agree(private, public, serialise("box", session, dealer, holder))


def box_label(dealer: int, holder: int, session: bytes) -> bytes:
    return serialise("share", session, dealer, holder)
