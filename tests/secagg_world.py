"""Secure aggregation for tests: members with a disk, an honest server that repeats and waits, and light cryptography.

`LIGHT` replaces signatures and key agreement by hashes, so that tests can run many thousands of sessions: everybody
could forge them, but nobody here does. Masks, shares and the protocol itself are the real ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto, rules
from fedmc.privacy.secagg.aggregator import Aggregator, MisdealtError, Unmasked
from fedmc.privacy.secagg.member import Member, MemberState, check, hello, learn, open_, reply
from fedmc.privacy.secagg.rules import Rules
from fedmc.privacy.secagg.session import (
    NO_SUM,
    AbortedError,
    Certificate,
    Head,
    Invited,
    Masked,
    Opened,
    Proof,
    PublicKeys,
    Session,
)  # fmt: skip

RUN, MOST = "a-run", 50
REQUEST = b"what the inputs are computed from"
AWAY, BEFORE, AFTER = "away", "before", "after"  # not reached; killed before, or after, what it did was on disk


class LightIdentity:
    """Stands for an identity key and its public half."""

    def __init__(self, number: int) -> None:
        self.secret = b"identity %d" % number

    def public_key(self) -> LightIdentity:
        return self


IDENTITIES = [Ed25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([k])).digest()) for k in range(MOST)]
PINNED = {k: identity.public_key() for k, identity in enumerate(IDENTITIES)}
LIGHT_IDENTITIES = [LightIdentity(k) for k in range(MOST)]
LIGHT_PINNED = dict(enumerate(LIGHT_IDENTITIES))


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"|".join(parts)).digest()


def _light_sign(identity: LightIdentity, content: bytes) -> bytes:
    return _hash(identity.secret, content)


def _light_check(identity: LightIdentity, signature: bytes, content: bytes) -> None:
    if signature != _hash(identity.secret, content):
        raise DataError("a signature does not fit")


def _light_pair() -> tuple[bytes, bytes]:
    private = crypto.new_secret()
    return private, _light_public(private)


def _light_public(private: bytes) -> bytes:
    return _hash(b"public", private)


def _light_agree(private: bytes, public: bytes, info: bytes) -> bytes:
    return _hash(*sorted((_light_public(private), public)), info)


def _light_seal(key: bytes, content: bytes, about: bytes) -> bytes:
    return content + _hash(key, content, about)


def _light_unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    content = sealed[:-32]
    if sealed != _light_seal(key, content, about):
        raise DataError("a sealed share was changed, or is not for this member or session")
    return content


LIGHT = {
    "sign": _light_sign, "check": _light_check, "new_pair": _light_pair, "public_of": _light_public,
    "agree": _light_agree, "seal": _light_seal, "unseal": _light_unseal,
}  # fmt: skip


@contextmanager
def light():
    """The protocol with light cryptography."""
    with mock.patch.multiple(crypto, **LIGHT):
        yield


@contextmanager
def assuming(colluding: int):
    """Members assume so many colluders in every cohort."""

    def assumed(members: int) -> int:
        return colluding

    with mock.patch.object(rules, "colluders", assumed):
        yield


def is_light() -> bool:
    return crypto.sign is _light_sign


def identity_of(number: int):
    return (LIGHT_IDENTITIES if is_light() else IDENTITIES)[number]


def pinned(members: int = MOST):
    return {k: identity_of(k).public_key() for k in range(members)}


def words_of(member: int, number: int, length: int):
    return np.random.default_rng([member, number]).integers(0, 2**64, length, np.uint64)


def total_of(members: Iterable[int], number: int, length: int):
    return sum((words_of(k, number, length) for k in members), np.zeros(length, np.uint64))


class Died(Exception):
    """A process was killed."""


class ServerDied(Exception):
    """The server was killed."""


@dataclass
class Disk:
    """What a node finds again after it was killed; replaced as a whole."""

    state: MemberState = field(default_factory=MemberState)
    sent: dict[bytes, Masked] = field(default_factory=dict)  # by session


class Node:
    """A member that stores its state before it sends. `kill` says what befalls it this time."""

    def __init__(self, number: int, demands: Rules, members: int = MOST) -> None:
        self.member = Member(RUN, number, identity_of(number), pinned(members), demands)
        self.disk = Disk()
        self.counted: dict[int, bool] = {}  # by sum that it replied to
        self.heads: list[tuple[Session, Head]] = []  # that it sent
        self.opens: list[tuple[Session, Opened]] = []
        self.fails = False

    def _store(self, disk: Disk, kill: str | None) -> None:
        if kill != BEFORE:
            self.disk = disk
        if kill in (BEFORE, AFTER):
            raise Died

    def hello(self, kill: str | None = None) -> PublicKeys:
        state, keys = hello(self.member, self.disk.state)
        self._store(replace(self.disk, state=state), kill)
        return keys

    def learn(self, certificates: Iterable[Certificate]) -> None:
        replied = self.disk.state.replied
        state, mine = learn(self.member, self.disk.state, certificates)
        if mine is not None:
            assert replied is not None
            self.counted[replied.session.number] = mine
        self.disk = replace(self.disk, state=state)

    def ask(
        self,
        session: Session,
        certificates: Iterable[Certificate] = (),
        proofs: Iterable[Proof] = (),
        kill: str | None = None,
    ) -> Masked:
        """Exchange 1: the same bytes if it has replied to this session already."""
        if session.hash not in self.disk.sent:
            self.learn(certificates)
            check(self.member, self.disk.state, session, proofs)
            words = words_of(self.member.number, session.number, session.length)
            state, masked = reply(self.member, self.disk.state, session, words, self.fails)
            self._store(Disk(state, {**self.disk.sent, session.hash: masked}), kill)
        elif kill in (BEFORE, AFTER):
            raise Died
        masked = self.disk.sent[session.hash]
        self.heads.append((session, masked.head))
        return masked

    def open(self, session: bytes, heads: Iterable[Head], kill: str | None = None) -> Opened:
        """Exchange 2."""
        state, opened = open_(self.member, self.disk.state, session, heads)
        self._store(replace(self.disk, state=state), kill)
        assert state.replied is not None
        self.opens.append((state.replied.session, opened))
        return opened

    def check_kept_to_the_rules(self) -> None:
        """One head a key, one opened session a sum unless it was replaced on proof, all with the same bytes."""
        by_key: dict[int, set[Head]] = {}
        for session, head in self.heads:
            by_key.setdefault(session.keys[self.member.number].seq, set()).add(head)
        assert all(len(heads) == 1 for heads in by_key.values())
        for number in {session.number for session, _ in self.opens}:
            opened = {session.hash: session for session, _ in self.opens if session.number == number}
            replaced = {session.instead_of for session in opened.values()} - {b""}
            assert len(opened.keys() - replaced) == 1


def nodes_of(members: int, min_cohort: int = 3, **demands) -> dict[int, Node]:
    return {k: Node(k, Rules(min_cohort, rules.colluders(members), **demands), members) for k in range(members)}


def session_of(nodes: dict[int, Node], members: Iterable[int] | None = None, length: int = 3, **given) -> Session:
    """The session that fits these members' states."""
    invited = []
    for k in sorted(nodes if members is None else members):
        keys = nodes[k].hello()
        invited.append(Invited(keys, nodes[k].disk.state.base))
    state = nodes[invited[0].keys.member].disk.state
    parts = {
        "run": RUN, "number": state.certified + 1, "attempt": 0, "content": REQUEST, "invited": tuple(invited),
        "losses": rules.losses_of(len(invited)), "previous": state.certificate, "length": length,
    }  # fmt: skip
    return Session(**parts | given)


def all_replied(nodes: dict[int, Node], session: Session, proofs: Iterable[Proof] = ()) -> Aggregator:
    made = Aggregator(session, pinned(MOST))
    for k in session.members:
        made.take_masked(k, nodes[k].ask(session, (), proofs))
    return made


def all_opened(nodes: dict[int, Node], made: Aggregator, but: Iterable[int] = ()) -> Aggregator:
    for k in set(made.session.members) - set(but):
        made.take_opened(k, nodes[k].open(made.session.hash, made.heads()))
    return made


class Event(NamedTuple):
    """A message of the server to a member, of which a test decides the fate."""

    stage: str  # hello, mask or open
    number: int
    attempt: int
    turn: int  # how often the same was sent
    member: int


Fate = Callable[[Event], str | None]


@dataclass
class Progress:
    """What the server has on disk of the sum that it forms."""

    session: Session | None = None
    proofs: tuple[Proof, ...] = ()
    masked: dict[int, Masked] = field(default_factory=dict)
    opening: bool = False
    opened: dict[int, Opened] = field(default_factory=dict)


class Server:
    """An honest server. Everything in `disk` survives; `die_at` kills it at that write, before or after it."""

    def __init__(self, nodes: dict[int, Node], fate: Fate | None = None, patience: int = 1, length: int = 3) -> None:
        self.nodes, self.fate, self.patience, self.length = nodes, fate or (lambda event: None), patience, length
        self.keys: dict[int, PublicKeys] = {}
        self.bases: dict[int, int] = {}
        self.certificates: list[Certificate] = []
        self.sums: list[Unmasked] = []
        self.sessions: list[Session] = []
        self.progress = Progress()
        self.die_at: tuple[int, str] | None = None
        self.writes = 0

    def _write(self, change: Callable[[], None]) -> None:
        now, self.writes = self.writes, self.writes + 1
        if self.die_at == (now, BEFORE):
            raise ServerDied
        change()
        if self.die_at == (now, AFTER):
            raise ServerDied

    def sum(self, wanted: Iterable[int]) -> Unmasked:
        """Form the next sum, or go on forming it; AbortedError if it must wait for somebody."""
        progress = self.progress
        if progress.session is None:
            self._propose(self._present(wanted))
        while True:
            session = progress.session
            assert session is not None
            if not progress.opening:
                missing = self._exchange_1()
                for k in missing:  # its peers have seen these keys: they refuse to see them again
                    self.keys.pop(k, None)
                if missing:
                    self._propose(tuple(k for k in session.members if k not in missing))
                    continue
                self._write(lambda: setattr(progress, "opening", True))
            self._exchange_2()
            try:
                found = self._aggregator().unmask()
            except MisdealtError as error:
                guilty = {proof.head.member for proof in error.proofs}
                left = tuple(k for k in session.members if k not in guilty)
                self._propose(left, error.proofs, session.hash)
                continue
            self._write(partial(self._finish, found))
            return found

    def _finish(self, found: Unmasked) -> None:
        self.sums.append(found)
        self.certificates.append(found.certificate)
        if found.certificate.kept:
            self.bases |= dict.fromkeys(found.certificate.members, found.certificate.number)
        self.progress = Progress()

    def _number(self) -> int:
        return len(self.certificates) + 1

    def _reach(self, stage: str, member: int, turn: int) -> str | None:
        attempt = self.progress.session.attempt if self.progress.session else 0
        kill = self.fate(Event(stage, self._number(), attempt, turn, member))
        if kill == AWAY:
            raise Died
        return kill

    def _present(self, wanted: Iterable[int]) -> tuple[int, ...]:
        """Who has keys, or says hello."""
        for k in wanted:
            for turn in range(self.patience + 1):
                if k not in self.keys:
                    with suppress(Died):
                        keys = self.nodes[k].hello(self._reach("hello", k, turn))
                        self._write(lambda k=k, keys=keys: self.keys.update({k: keys}))
        return tuple(sorted(set(wanted) & set(self.keys)))

    def _propose(self, members: tuple[int, ...], proofs: tuple[Proof, ...] = (), instead_of: bytes = b"") -> None:
        before = self.progress.session
        losses = rules.losses_of(len(members))
        bound = before is not None and before.instead_of
        if bound and not proofs and members != before.members:
            raise AbortedError("members of a session that replaces an opened one are missing")
        earlier = [one.losses for one in self.sessions if one.number == self._number()]
        least = Rules(2, rules.colluders(len(self.nodes)))
        if least.honest(len(members)) <= max(earlier, default=0):
            raise AbortedError(f"{len(members)} members are there: an earlier session can be opened without so many")
        for demands in {least, *(self.nodes[k].member.rules for k in members)}:
            try:
                demands.check(len(members), losses)
            except DataError as error:
                raise AbortedError(f"too few members are there: {error}") from None
        session = Session(
            RUN, self._number(), before.attempt + 1 if before else 0, REQUEST,
            tuple(Invited(self.keys[k], self.bases.get(k, NO_SUM)) for k in members), losses,
            self.certificates[-1].hash if self.certificates else b"", self.length, True,
            instead_of or (before.instead_of if before else b""),
        )  # fmt: skip
        self._write(lambda: self._begin(session, proofs))

    def _begin(self, session: Session, proofs: tuple[Proof, ...]) -> None:
        self.sessions.append(session)
        self.progress.__init__(session, proofs)

    def _exchange_1(self) -> set[int]:
        """Who did not reply after some patience. Keys that were used are asked for anew."""
        progress = self.progress
        assert progress.session is not None
        for turn in range(self.patience + 1):
            for k in progress.session.members:
                if k in progress.masked:
                    continue
                with suppress(Died):
                    kill = self._reach("mask", k, turn)
                    masked = self.nodes[k].ask(progress.session, self.certificates, progress.proofs, kill)
                    self._take(k, masked)
        return set(progress.session.members) - set(progress.masked)

    def _take(self, member: int, masked: Masked) -> None:
        progress = self.progress
        Aggregator(progress.session, pinned(MOST)).take_masked(member, masked)
        self._write(
            lambda: (progress.masked.update({member: masked}), self.keys.update({member: masked.head.next}), None)[-1]
        )

    def _exchange_2(self) -> None:
        progress = self.progress
        session, heads = progress.session, self._aggregator().heads()
        assert session is not None
        for turn in range(self.patience + 1):
            for k in session.members:
                if k in progress.opened:
                    continue
                with suppress(Died):
                    opened = self.nodes[k].open(session.hash, heads, self._reach("open", k, turn))
                    self._write(lambda k=k, opened=opened: progress.opened.update({k: opened}))

    def _aggregator(self) -> Aggregator:
        progress = self.progress
        made = Aggregator(progress.session, pinned(MOST))
        for k, masked in progress.masked.items():
            made.take_masked(k, masked)
        for k, opened in progress.opened.items():
            made.take_opened(k, opened)
        return made
