"""What the server keeps of a run's secure sums: enough to repeat the last session after a crash, to the same bits.

It is written before each exchange. Nodes answer a repeated session with the same bytes, so neither masked inputs nor
sums need to be stored here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.privacy.secagg import encoding
from fedmc.privacy.secagg.encoding import Json, items, whole_from
from fedmc.privacy.secagg.session import NO_SUM, Certificate, Proof, PublicKeys, Session
from fedmc.types import Array

FILE = "secagg.json"


@dataclass
class SecAggRecord:
    """Without a `path`, nothing is written: for tests and single sums."""

    path: Path | None = None
    keys: dict[int, PublicKeys] = field(default_factory=dict)  # the unused ones of each member
    bases: dict[int, int] = field(default_factory=dict)  # the last certified sum of each member
    asked: dict[int, set[int]] = field(default_factory=dict)  # the sums that each member was asked for since it replied
    certificates: dict[int, Certificate] = field(default_factory=dict)  # the last, and what members may not know
    session: Session | None = None  # the last one
    proofs: tuple[Proof, ...] = ()  # with which it replaces the one before
    opening: bool = False  # its members may have opened it, so that it cannot be replaced
    losses: int = 0  # the most that a session of the same sum could do without: no cohort may be as small
    misdealt: set[int] = field(default_factory=set)  # members that dealt wrong shares
    visible: set[int] = field(default_factory=set)  # members that accept sums which show their own change
    sums: dict[str, int] = field(default_factory=dict)  # the requests of sums that are kept in files, and their numbers
    seqs: dict[int, int] = field(default_factory=dict)  # of each member's last keys in a session: others refuse older
    measured: set[int] = field(default_factory=set)  # members of whom a measurement is counted

    @property
    def certified(self) -> int:
        """The last certified sum."""
        return max(self.certificates, default=NO_SUM)

    @property
    def done(self) -> bool:
        """Whether the last session is certified."""
        return self.session is not None and self.session.number == self.certified

    def take_keys(self, keys: PublicKeys) -> None:
        """Keep a member's next keys, which have been checked; DataError if its peers have seen newer ones."""
        if keys.seq <= self.seqs.get(keys.member, 0):
            raise DataError(f"keys {keys.seq}, after keys {self.seqs[keys.member]} in a session")
        self.keys[keys.member] = keys
        (self.visible.add if keys.alone else self.visible.discard)(keys.member)

    def knows(self, member: int, certified: int) -> None:
        """A member says which sums it knows of: it can have replied to the next one only, and needs no others."""
        self.asked[member] = self.asked.get(member, set()) & {certified + 1}

    def begin(self, session: Session, proofs: tuple[Proof, ...] = ()) -> None:
        """Before exchange 1: the keys in the session count as used."""
        again = self.session is not None and self.session.number == session.number
        self.losses = max(session.losses, self.losses if again else 0)
        self.session, self.proofs, self.opening = session, proofs, False
        for member, keys in session.keys.items():
            self.seqs[member] = keys.seq
            self.asked.setdefault(member, set()).add(session.number)
            self.keys.pop(member, None)
        self.save()

    def replied(self, member: int, keys: PublicKeys) -> None:
        """A member has replied to the session: it knows the certificates of all sums before."""
        assert self.session is not None
        if not self.done:
            self.take_keys(keys)
            self.asked[member] = {self.session.number}

    def open(self) -> None:
        """Before exchange 2."""
        if not self.opening:
            self.opening = True
            self.save()

    def certify(self, certificate: Certificate) -> None:
        """After exchange 2, before anything else is done with the sum."""
        if certificate.number > self.certified:
            self.certificates[certificate.number] = certificate
            if certificate.kept:
                self.bases |= dict.fromkeys(certificate.members, certificate.number)
            needed = {certificate.number}.union(*self.asked.values())
            self.certificates = {number: one for number, one in self.certificates.items() if number in needed}
        self.save()

    def keep(self, session: Session, words: Array) -> None:
        """Keep a sum of the start of a run: until the first checkpoint, a resumed run asks for all of them again."""
        if self.path is not None and session.content.hex() not in self.sums:
            write_whole(self._sum(session.number), words.tobytes())
            self.sums[session.content.hex()] = session.number
            self.save()

    def kept(self, content: bytes) -> Array | None:
        """A sum that was kept, by the hash of its request."""
        number = self.sums.get(content.hex())
        return None if number is None else np.frombuffer(self._sum(number).read_bytes(), np.int64)

    def forget_sums(self) -> None:
        """After the first checkpoint."""
        for number in self.sums.values():
            self._sum(number).unlink(missing_ok=True)
        if self.sums:
            self.sums = {}
            self.save()

    def _sum(self, number: int) -> Path:
        assert self.path is not None
        return self.path.with_name(f"sum-{number}.bin")

    def for_member(self, member: int) -> tuple[Certificate, ...]:
        """The certificates that a member may not know: of sums that it may have replied to, and the newest."""
        numbers = sorted({self.certified} | self.asked.get(member, set()))
        return tuple(self.certificates[number] for number in numbers if number in self.certificates)

    def save(self) -> None:
        if self.path is not None:
            write_whole(self.path, json.dumps(self._words()).encode())

    @classmethod
    def load(cls, path: Path) -> SecAggRecord:
        """What an earlier process kept, or an empty record."""
        if not path.exists():
            return cls(path)
        try:
            return encoding.parsed(path.read_bytes(), lambda value: cls._read(path, value))
        except (DataError, OSError) as error:
            raise DataError(f"{path} is damaged: {error}; restore it from a backup, or start a new run") from None

    def _words(self) -> Json:
        return [
            [encoding.keys_to(keys) for keys in self.keys.values()],
            _pairs(self.bases), [[member, sorted(numbers)] for member, numbers in sorted(self.asked.items())],
            [encoding.certificate_to(one) for one in self.certificates.values()],
            [] if self.session is None else encoding.session_to(self.session),
            [encoding.proof_to(one) for one in self.proofs],
            self.opening, self.losses, sorted(self.misdealt), sorted(self.visible),
            [[content, number] for content, number in self.sums.items()], _pairs(self.seqs),
            sorted(self.measured),
        ]  # fmt: skip

    @classmethod
    def _read(cls, path: Path, value: Json) -> SecAggRecord:
        keys, bases, asked, certificates, session, proofs, opening, losses, misdealt, visible, *rest = items(value)
        sums, seqs, measured = rest
        found = [encoding.certificate_from(one) for one in items(certificates)]
        return cls(
            path, {one.member: one for one in map(encoding.keys_from, items(keys))}, _numbers(bases),
            {whole_from(member): set(map(whole_from, items(some))) for member, some in map(items, items(asked))},
            {one.number: one for one in found}, encoding.session_from(session) if items(session) else None,
            tuple(encoding.proof_from(one) for one in items(proofs)), opening is True, whole_from(losses),
            set(map(whole_from, items(misdealt))), set(map(whole_from, items(visible))),
            {str(content): whole_from(number) for content, number in map(items, items(sums))},
            _numbers(seqs), set(map(whole_from, items(measured))),
        )  # fmt: skip


def _pairs(table: dict[int, int]) -> Json:
    pairs: list[Json] = [[member, number] for member, number in sorted(table.items())]
    return pairs


def _numbers(value: Json) -> dict[int, int]:
    pairs: Iterable[Json] = items(value)
    return {whole_from(member): whole_from(number) for member, number in map(items, pairs)}
