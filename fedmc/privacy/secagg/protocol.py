"""Secure aggregation after Bonawitz et al. (2017): the collector learns the sum of the members' words, and no more.

A round has four stages. In each the collector waits for messages, goes on with those that came if they are at least
`threshold` many, and else gives up with nothing unmasked.

    advertise   fresh public keys, signed by a pinned identity
    share       of a fresh secret b and of the private key of the masks, a share for every member, sealed for it
    mask        words + PRG(b) + sum over peers of +-PRG(key of the pair), modulo 2^32 or 2^64
    reveal      for who sent words: shares of b; for who did not: shares of its mask key; never both for one member

Before it reveals, a member wants to see that a threshold of members signed the same list of survivors, so that no
collector can tell different members different lists. Members hold keys for one round only; asked a second time for a
stage, or out of order, they refuse.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError, FedmcError
from fedmc.privacy.secagg import crypto as p
from fedmc.types import Array


class AbortedError(FedmcError):
    """Too few members are left; nothing was unmasked."""


class Session(NamedTuple):
    """What a round of secure aggregation is about; part of every signature, key and seal."""

    run: str
    round: int
    cohort: tuple[int, ...]
    threshold: int
    length: int  # words
    bits: int = 64  # of a word

    @property
    def dtype(self) -> Any:
        return {32: np.uint32, 64: np.uint64}[self.bits]

    @property
    def label(self) -> bytes:
        return hashlib.sha256(repr(tuple(self)).encode()).digest()


def threshold_of(members: int) -> int:
    """More than two thirds: no two lists of survivors can each have so many signatures unless a third signed both."""
    return 2 * members // 3 + 1


class Advert(NamedTuple):
    member: int
    seal_key: bytes
    mask_key: bytes
    signature: bytes
    new: bool = False  # it adds all of its contribution, not a change
    promise: bytes = b""  # the hash of b, by which what is revealed of it is checked

    def content(self, session: Session) -> bytes:
        about = session.label + _number(self.member) + _number(int(self.new))
        return b"advert" + about + self.seal_key + self.mask_key + self.promise


class Revealed(NamedTuple):
    member: int
    of_survivors: dict[int, bytes]  # shares of b
    of_lost: dict[int, bytes]  # shares of mask keys


class Member:
    """One member's part in one round."""

    def __init__(
        self,
        number: int,
        identity: Ed25519PrivateKey,
        pinned: Mapping[int, Ed25519PublicKey],
        session: Session,
        min_cohort: int,
        new: bool = False,
    ) -> None:
        cohort = session.cohort
        if len(set(cohort)) != len(cohort) or number not in cohort or any(peer not in pinned for peer in cohort):
            raise DataError("the cohort names a member twice, or one that is not known, or leaves this one out")
        if len(cohort) < min_cohort:
            raise DataError(f"a cohort of {len(cohort)} members is too small to hide in: at least {min_cohort}")
        if not threshold_of(len(cohort)) <= session.threshold <= len(cohort):
            raise DataError(f"a threshold of {session.threshold} of {len(cohort)} is not safe")
        self.number, self.identity, self.pinned, self.session = number, identity, pinned, session
        self._least_newcomers = threshold_of(min_cohort) if new else 0
        self._stage = 0
        self._seal_private, seal_public = p.new_pair()
        self._mask_private, mask_public = p.new_pair()
        self._b = secrets.token_bytes(p.SECRET)
        advert = Advert(number, seal_public, mask_public, b"", new, _promise(self._b))
        self._advert = advert._replace(signature=p.sign(identity, advert.content(session)))
        self._peers: dict[int, Advert] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}  # of each member: a share of b, a share of its mask key
        self._survivors: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Member({self.number}, round {self.session.round})"  # and none of its secrets

    def _enter(self, stage: int) -> None:
        if self._stage != stage:
            raise DataError(f"stage {stage} was asked for at stage {self._stage}: a member goes through each once")
        self._stage += 1

    def advertise(self) -> Advert:
        self._enter(0)
        return self._advert

    def share(self, adverts: list[Advert]) -> dict[int, bytes]:
        """Sealed shares by the member they are for."""
        self._enter(1)
        session = self.session
        peers = {advert.member: advert for advert in adverts}
        if (
            len(peers) != len(adverts)
            or not set(peers) <= set(session.cohort)
            or peers.get(self.number) != self._advert
        ):
            raise DataError("the list of adverts names a member twice, or a stranger, or not this one's own")
        if len(peers) < session.threshold:
            raise AbortedError(f"{len(peers)} of {len(session.cohort)} members are there, {session.threshold} must be")
        if len({key for advert in adverts for key in (advert.seal_key, advert.mask_key)}) != 2 * len(adverts):
            raise DataError("two members advertise the same key")
        for advert in adverts:
            p.check(self.pinned[advert.member], advert.signature, advert.content(session))
        self._hidden_among(adverts)
        self._peers = peers
        holders = sorted(peers)
        of_b = p.share(self._b, holders, session.threshold)
        of_key = p.share(self._mask_private, holders, session.threshold)
        self._held[self.number] = of_b[self.number], of_key[self.number]
        return {
            peer: p.seal(self._seal_key(self.number, peer), of_b[peer] + of_key[peer], self._pair(self.number, peer))
            for peer in holders
            if peer != self.number
        }

    def mask(self, sealed: Mapping[int, bytes], words: Array) -> Array:
        """This member's words, hidden; `sealed` holds the others' shares for it."""
        self._enter(2)
        session = self.session
        if words.shape != (session.length,) or words.dtype != session.dtype:
            raise DataError(f"expected {session.length} words of {session.bits} bits, got {words.shape} {words.dtype}")
        if not set(sealed) <= set(self._peers) - {self.number}:
            raise DataError("shares came of a member that did not advertise")
        if len(sealed) + 1 < session.threshold:
            raise AbortedError(f"{len(sealed) + 1} members shared, {session.threshold} must")
        for peer, content in sealed.items():
            plain = p.unseal(self._seal_key(peer, self.number), content, self._pair(peer, self.number))
            self._held[peer] = plain[: p.SHARE], plain[p.SHARE :]
        masks = [(self_key(self._b, session), 1)]
        masks += [pair(self._mask_private, self.number, peer, self._peers[peer].mask_key, session) for peer in sealed]
        return p.add_masks(words, masks)

    def confirm(self, survivors: tuple[int, ...]) -> bytes:
        """A signature under the list of members whose words arrived."""
        self._enter(3)
        listed = tuple(sorted(survivors))
        if len(set(listed)) != len(listed) or not set(listed) <= set(self._held) or self.number not in listed:
            raise DataError("the list of survivors names a member twice, a stranger, or not this one")
        if len(listed) < self.session.threshold:
            raise AbortedError(f"{len(listed)} members are left, {self.session.threshold} must be")
        self._hidden_among([self._peers[peer] for peer in listed])
        self._survivors = listed
        return p.sign(self.identity, _confirmed(self.session, listed))

    def reveal(self, signatures: Mapping[int, bytes]) -> Revealed:
        """What the collector needs to unmask the survivors' sum, once a threshold of them agree who they are."""
        self._enter(4)
        if not set(signatures) <= set(self._survivors) or len(signatures) < self.session.threshold:
            raise AbortedError(f"{len(signatures)} members confirmed, {self.session.threshold} of the survivors must")
        for peer, signature in signatures.items():
            p.check(self.pinned[peer], signature, _confirmed(self.session, self._survivors))
        left = set(self._survivors)
        of_survivors = {peer: share[0] for peer, share in self._held.items() if peer in left}
        of_lost = {peer: share[1] for peer, share in self._held.items() if peer not in left}
        self._held.clear()
        return Revealed(self.number, of_survivors, of_lost)

    def _hidden_among(self, adverts: list[Advert]) -> None:
        """A newcomer adds far more than others, and hides among newcomers only."""
        newcomers = sum(advert.new for advert in adverts)
        if newcomers < self._least_newcomers:
            raise AbortedError(f"{newcomers} newcomers are too few to hide among: {self._least_newcomers} must be")

    def _seal_key(self, sender: int, receiver: int) -> bytes:
        peer = receiver if sender == self.number else sender
        return p.agree(self._seal_private, self._peers[peer].seal_key, b"seal" + self._pair(sender, receiver))

    def _pair(self, sender: int, receiver: int) -> bytes:
        return self.session.label + _number(sender) + _number(receiver)


class Collector:
    """The server's part in one round. What it is sent by whom is the transport's word; all else is checked."""

    def __init__(self, session: Session, pinned: Mapping[int, Ed25519PublicKey]) -> None:
        self.session, self.pinned = session, pinned
        self.adverts: dict[int, Advert] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}
        self.hidden: dict[int, Array] = {}

    def take_adverts(self, adverts: Mapping[int, Advert]) -> list[Advert]:
        """The list that everybody gets."""
        for member, advert in adverts.items():
            self.check_advert(member, advert)
        self.adverts = dict(sorted(self._enough(adverts, "advertised").items()))
        return list(self.adverts.values())

    def check_advert(self, member: int, advert: Advert) -> None:
        if advert.member != member or member not in self.session.cohort:
            raise DataError(f"an advert of {advert.member} came from {member}")
        p.check(self.pinned[member], advert.signature, advert.content(self.session))
        if advert.seal_key == advert.mask_key:
            raise DataError(f"member {member} advertises one key for two uses")
        for key in (advert.seal_key, advert.mask_key):
            p.agree(p.new_pair()[0], key, b"")  # one that nobody can agree with would stop all others

    def take_sealed(self, sealed: Mapping[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """By receiver, what each sender sealed for it."""
        for member, shares in sealed.items():
            self.check_sealed(member, shares)
        self.sealed = dict(self._enough(sealed, "shared"))
        return {
            receiver: {sender: shares[receiver] for sender, shares in self.sealed.items() if sender != receiver}
            for receiver in self.sealed
        }

    def check_sealed(self, member: int, shares: Mapping[int, bytes]) -> None:
        if member not in self.adverts or set(shares) != set(self.adverts) - {member}:
            raise DataError(f"member {member} did not share with everybody who advertised")

    def take_hidden(self, hidden: Mapping[int, Array]) -> tuple[int, ...]:
        """The survivors."""
        for member, words in hidden.items():
            self.check_hidden(member, words)
        self.hidden = dict(self._enough(hidden, "sent words"))
        return tuple(sorted(self.hidden))

    def check_hidden(self, member: int, words: Array) -> None:
        if member not in self.sealed:
            raise DataError(f"words of {member}, who did not share")
        if words.shape != (self.session.length,) or words.dtype != self.session.dtype:
            raise DataError(f"words of {member} have shape {words.shape} and type {words.dtype}")

    def take_signatures(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        for member, signature in signatures.items():
            self.check_signature(member, signature)
        return dict(self._enough(signatures, "confirmed"))

    def check_signature(self, member: int, signature: bytes) -> None:
        if member not in self.hidden:
            raise DataError(f"a confirmation of {member}, who sent no words")
        p.check(self.pinned[member], signature, _confirmed(self.session, tuple(sorted(self.hidden))))

    def check_revealed(self, member: int, revealed: Revealed) -> None:
        survivors = set(self.hidden)
        lost = set(self.sealed) - survivors
        if member not in survivors or revealed.of_survivors.keys() != survivors or revealed.of_lost.keys() != lost:
            raise DataError(f"member {member} did not reveal what it should, and no more")

    def unmask(self, revealed: Mapping[int, Revealed]) -> Array:
        """The sum of the survivors' words."""
        self._enough(revealed, "revealed")
        session, survivors = self.session, sorted(self.hidden)
        lost = sorted(set(self.sealed) - set(survivors))
        total = np.zeros(session.length, session.dtype)
        for member in survivors:
            total += self.hidden[member]
        secrets_of = {member: self._secret(revealed, member, True) for member in survivors}
        for member, b in secrets_of.items():
            if _promise(b) != self.adverts[member].promise:
                raise DataError(f"the shares of {member}'s secret do not give its secret")
        masks = [(self_key(b, session), -1) for b in secrets_of.values()]
        for member in lost:
            private = self._secret(revealed, member, False)
            if p.public_of(private) != self.adverts[member].mask_key:
                raise DataError(f"the shares of {member}'s key do not give its key")
            # Each survivor added the opposite of what the lost one would have.
            masks += [pair(private, member, peer, self.adverts[peer].mask_key, session) for peer in survivors]
        return p.add_masks(total, masks)

    def _secret(self, revealed: Mapping[int, Revealed], member: int, survived: bool) -> bytes:
        shares = {}
        for holder, one in revealed.items():
            found = (one.of_survivors if survived else one.of_lost).get(member)
            if found is None or one.member != holder:
                raise DataError(f"member {holder} did not reveal its share of {member}")
            shares[holder] = found
        return p.combine(dict(list(shares.items())[: self.session.threshold]))

    def _enough(self, messages: Mapping[int, Any], what: str) -> Mapping[int, Any]:
        if len(messages) < self.session.threshold:
            cohort = len(self.session.cohort)
            raise AbortedError(f"{len(messages)} of {cohort} members {what}, {self.session.threshold} must")
        return messages


def self_key(b: bytes, session: Session) -> bytes:
    """Of the mask that hides a member's words even if all its pairs are known."""
    return p.derive(b, b"self" + session.label)


def pair(private: bytes, own: int, peer: int, public: bytes, session: Session) -> tuple[bytes, int]:
    """The key of a pair's mask, and its sign: plus at the smaller number, minus at the larger, so that it goes out."""
    low, high = sorted((own, peer))
    key = p.agree(private, public, b"mask" + session.label + _number(low) + _number(high))
    return key, 1 if own == low else -1


def _promise(b: bytes) -> bytes:
    return hashlib.sha256(b"promise" + b).digest()


def _confirmed(session: Session, survivors: tuple[int, ...]) -> bytes:
    return b"survivors" + session.label + b"".join(_number(member) for member in survivors)


def _number(member: int) -> bytes:
    return member.to_bytes(8)
