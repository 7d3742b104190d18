"""A member's part in secure aggregation (`session` describes the protocol), as a pure state machine.

Each function takes the member's state in a run and returns the next one. A node stores the next state durably before it
sends what came with it. So a member that is killed at any moment comes back with the same bytes, or refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto, misdealing
from fedmc.privacy.secagg.rules import Rules
from fedmc.privacy.secagg.serial import digest
from fedmc.privacy.secagg.session import (
    NO_SUM,
    Certificate,
    Head,
    Masked,
    Opened,
    Pinned,
    Proof,
    PublicKeys,
    Session,
    box_key,
    box_label,
    boxes_hash,
    commitment_to,
    open_content,
    pair_key,
    self_key,
    signed_keys,
)  # fmt: skip
from fedmc.types import Array


class SnapshotError(DataError):
    """The member was restored from an old copy of its state: it has signed keys that it does not know of."""


class Member(NamedTuple):
    """Who a member is in a run, and what it demands."""

    run: str
    number: int
    identity: Ed25519PrivateKey
    pinned: Pinned
    rules: Rules

    def __repr__(self) -> str:
        return f"Member({self.number} of {len(self.pinned)})"  # and not its secret


class OneTime(NamedTuple):
    """The private keys of a member that have not been used, and their signed public halves."""

    mask: bytes
    seal: bytes
    public: PublicKeys

    def __repr__(self) -> str:
        return f"OneTime({self.public.seq})"


class Replied(NamedTuple):
    """The last session that a member replied to."""

    session: Session
    seal: bytes  # its private seal key, for exchange 2
    head: bytes  # hash of the head that it signed
    opened: Opened | None
    losses: int  # the most that may be lost of any session of this sum that it replied to

    @property
    def bound(self) -> bool:
        """Whether a session of this sum was opened: this one, or the one that it replaces."""
        return self.opened is not None or self.session.instead_of != b""

    def __repr__(self) -> str:
        return f"Replied({self.session.number}, {self.opened is not None})"


@dataclass(frozen=True)
class MemberState:
    """What a member keeps of a run."""

    seq: int = 0  # of the newest keys
    keys: OneTime | None = None  # unused
    peers: Mapping[int, int] = field(default_factory=dict)  # the highest seq of each peer that was answered
    certified: int = NO_SUM  # the last sum whose certificate was seen
    certificate: bytes = b""  # its hash
    base: int = NO_SUM  # the last certified sum that this member is in
    replied: Replied | None = None  # to a session of the sum after `certified`


def hello(member: Member, state: MemberState) -> tuple[MemberState, PublicKeys]:
    """New keys, at the start and when the member comes back.

    Not those that it has and did not use: peers may have seen them in a session that it never heard of, and refuse to
    see them twice.
    """
    state = _with_new_keys(member, state)
    assert state.keys is not None
    return state, state.keys.public


def learn(member: Member, state: MemberState, certificates: Iterable[Certificate]) -> tuple[MemberState, bool | None]:
    """Take note of certificates, in order; second: whether the last reply is counted, None if that is not decided.

    Certificates of sums that the member knows are skipped. It needs the one of the sum that it replied to last, and
    the newest; of those in between only these two tell something about the member itself.
    """
    decided: bool | None = None
    for one in sorted(certificates, key=lambda found: found.number):
        if one.number > state.certified:
            state, mine = _learn_one(member, state, one)
            decided = mine if decided is None else decided
    return state, decided


def _learn_one(member: Member, state: MemberState, one: Certificate) -> tuple[MemberState, bool | None]:
    replied = state.replied
    if one.run != member.run:
        raise DataError(f"a certificate of run {one.run} came in run {member.run}")
    if replied is not None and one.number > replied.session.number:
        raise DataError(f"the certificate of sum {replied.session.number} is missing, which this member replied to")
    one.check(member.pinned)
    mine = replied is not None and one.session == replied.session.hash
    if replied is not None and replied.bound and not mine:
        raise DataError(f"sum {one.number} was certified for another session than this member opened")
    if member.number in one.members and not mine:
        raise SnapshotError(f"this member is in sum {one.number} by a session that it does not know of")
    base = one.number if mine and one.kept else state.base
    state = replace(state, certified=one.number, certificate=one.hash, replied=None, base=base)
    return state, None if replied is None else mine


def check(member: Member, state: MemberState, session: Session, proofs: Iterable[Proof] = ()) -> None:
    """Refuse a session that does not fit, before any rating is read. `learn` comes first."""
    _check_form(member, session)
    if session.run != member.run or session.number != state.certified + 1 or session.previous != state.certificate:
        raise DataError(
            f"sum {session.number} of run {session.run} was asked for: this member knows of sum {state.certified} of "
            f"run {member.run}, or of another one with that number"
        )
    _check_keys(member, state, session)
    _check_repeat(member, state, session, tuple(proofs))
    if session.bases[member.number] != state.base:
        raise DataError(f"sum {session.bases[member.number]} of this member is said to be counted, {state.base} is")
    sharing = sum(base == state.base for base in session.bases.values())
    if session.kept and not member.rules.hides(len(session.members), sharing):
        what = "joins" if state.base == NO_SUM else "comes back"
        raise DataError(f"this member {what} with {sharing - 1} others: too few to hide its change among")


def reply(
    member: Member, state: MemberState, session: Session, words: Array, failed: bool
) -> tuple[MemberState, Masked]:
    """Mask the input. `check` comes first.

    If computing it failed, random words travel, so that the whole sum is noise. With zeros in their place, whoever can
    make some members fail would read the sum over the others.
    """
    if words.shape != (session.length,) or words.dtype != np.uint64:
        raise DataError(f"expected {session.length} words of 64 bits, got {words.shape} {words.dtype}")
    assert state.keys is not None
    assert state.keys.public == session.keys[member.number]
    number, H, used = member.number, session.hash, state.keys
    peers = [peer for peer in session.members if peer != number]
    secret, (ephemeral, ephemeral_public) = crypto.new_secret(), crypto.new_pair()
    masks = [(self_key(secret, H), 1)]
    masks += [pair_key(used.mask, number, peer, session.keys[peer].mask, H) for peer in peers]
    extra = np.array([1, int.from_bytes(crypto.random_word()) if failed else 0], np.uint64)
    sent = crypto.random_words(len(words)) if failed else words
    masked = crypto.add_masks(np.concatenate([sent, extra]), masks)
    boxes = {
        peer: crypto.seal(
            box_key(ephemeral, session.keys[peer].seal, number, peer, H), share, box_label(number, peer, H)
        )
        for peer, share in crypto.share(secret, peers, session.threshold).items()
    }
    state = _with_new_keys(member, state)
    assert state.keys is not None
    head = Head(number, ephemeral_public, commitment_to(secret), boxes_hash(boxes), digest(masked), state.keys.public)
    head = head._replace(signature=crypto.sign(member.identity, head.content(H)))
    seqs = dict(state.peers) | {peer: session.keys[peer].seq for peer in peers}
    losses = max(session.losses, state.replied.losses if state.replied else 0)
    replied = Replied(session, used.seal, digest(*head[:5], list(head.next), head.signature), None, losses)
    return replace(state, peers=seqs, replied=replied), Masked(head, boxes, masked)


def open_(member: Member, state: MemberState, session: bytes, heads: Iterable[Head]) -> tuple[MemberState, Opened]:
    """Open the session that the member replied to last, once all members signed a head for it."""
    replied = state.replied
    if replied is None or replied.session.hash != session:
        raise DataError("another session than the last one that this member replied to was to be opened")
    if replied.opened is not None:
        return state, replied.opened
    found = {head.member: head for head in heads}
    if tuple(sorted(found)) != replied.session.members:
        raise DataError(f"{len(found)} heads came, {len(replied.session.members)} members must have replied")
    for head in found.values():
        crypto.check(member.pinned[head.member], head.signature, head.content(session))
    own = found[member.number]
    if digest(*own[:5], list(own.next), own.signature) != replied.head:
        raise DataError("this member signed another head")
    opened = Opened(member.number, replied.seal, crypto.sign(member.identity, open_content(session)))
    return replace(state, replied=replied._replace(opened=opened)), opened


def _with_new_keys(member: Member, state: MemberState) -> MemberState:
    (mask, mask_public), (seal, seal_public) = crypto.new_pair(), crypto.new_pair()
    public = PublicKeys(member.number, state.seq + 1, mask_public, seal_public, member.rules.alone)
    keys = OneTime(mask, seal, signed_keys(member.identity, member.run, public))
    return replace(state, seq=state.seq + 1, keys=keys)


def _check_form(member: Member, session: Session) -> None:
    members = session.members
    if list(members) != sorted(set(members)) or not set(members) <= set(member.pinned) or member.number not in members:
        raise DataError("the cohort names a member twice or out of order, or one that is not known, or not this one")
    member.rules.check(len(members), session.losses)
    publics = [key for keys in session.keys.values() for key in (keys.mask, keys.seal)]
    if len(set(publics)) != len(publics):
        raise DataError("two members have the same key")


def _check_keys(member: Member, state: MemberState, session: Session) -> None:
    for keys in session.keys.values():
        keys.check(member.run, member.pinned)
        keys.check_usable()
    own = session.keys[member.number]
    if own.seq > state.seq:
        raise SnapshotError(f"this member signed keys {own.seq}, its state knows keys up to {state.seq}")
    if state.keys is None or own != state.keys.public:
        raise DataError(f"this member's keys {own.seq} have been used: the server must ask for new ones")
    for peer, keys in session.keys.items():
        if peer != member.number and keys.seq <= state.peers.get(peer, 0):
            raise DataError(f"keys {keys.seq} of member {peer} have been used")


def _check_repeat(member: Member, state: MemberState, session: Session, proofs: tuple[Proof, ...]) -> None:
    """A second session for the same sum: the same request to fewer members; once one is opened, only without guilty."""
    replied = state.replied
    if replied is None:
        if session.instead_of:
            raise DataError("a session that replaces one that this member did not reply to")
        return
    before = replied.session
    if session.content != before.content or session.kept != before.kept or session.length != before.length:
        raise DataError(f"sum {session.number} was asked for with another request")
    if not set(session.members) <= set(before.members):
        raise DataError(f"sum {session.number} was asked for with members that were not in its first cohort")
    if member.rules.honest(len(session.members)) <= replied.losses:
        raise DataError(
            f"sum {session.number} was asked for with {len(session.members)} members: too few, an earlier session of "
            f"it can be opened without {replied.losses}"
        )
    if replied.bound:
        _check_replacing(member, replied, session, proofs)
    elif session.instead_of not in (b"", before.hash):
        raise DataError("a session that replaces one that this member did not reply to last")


def _check_replacing(member: Member, replied: Replied, session: Session, proofs: tuple[Proof, ...]) -> None:
    """After a session was opened: all of its members but those proven guilty, however often this is repeated."""
    before, guilty = replied.session, {proof.head.member for proof in proofs}
    if replied.opened is None and session.instead_of == before.instead_of and session.members == before.members:
        return
    if session.instead_of != before.hash or set(session.members) != set(before.members) - guilty or not guilty:
        raise DataError(f"sum {session.number} was opened for another session")
    for proof in proofs:
        misdealing.check(proof, before, member.pinned)
