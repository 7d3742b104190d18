"""A member's part in one round of secure aggregation (`session` describes the protocol)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.derived import commitment_to, confirmed, pair, self_key
from fedmc.privacy.secagg.serial import serialise
from fedmc.privacy.secagg.session import AbortedError, Advert, Revealed, Session, threshold_of
from fedmc.types import Array


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
        self._min_newcomers = threshold_of(min_cohort) if new else 0
        self._stage = 0
        self._seal_private, seal_public = crypto.new_pair()
        self._mask_private, mask_public = crypto.new_pair()
        self._b = secrets.token_bytes(crypto.SECRET)
        advert = Advert(number, seal_public, mask_public, b"", new, commitment_to(self._b))
        self._advert = advert._replace(signature=crypto.sign(identity, advert.content(session)))
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
        """Sealed shares, by receiver."""
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
            crypto.check(self.pinned[advert.member], advert.signature, advert.content(session))
        self._hidden_among(adverts)
        self._peers = peers
        holders = sorted(peers)
        of_b = crypto.share(self._b, holders, session.threshold)
        of_key = crypto.share(self._mask_private, holders, session.threshold)
        self._held[self.number] = of_b[self.number], of_key[self.number]
        return {
            peer: crypto.seal(
                self._seal_key(self.number, peer), of_b[peer] + of_key[peer], self._pair(self.number, peer)
            )
            for peer in holders
            if peer != self.number
        }

    def mask(self, sealed: Mapping[int, bytes], words: Array) -> Array:
        """This member's masked input; `sealed` holds the other members' shares for it."""
        self._enter(2)
        session = self.session
        if words.shape != (session.length,) or words.dtype != session.dtype:
            raise DataError(f"expected {session.length} values of {session.bits} bits, got {words.shape} {words.dtype}")
        if not set(sealed) <= set(self._peers) - {self.number}:
            raise DataError("shares came from a member that did not advertise")
        if len(sealed) + 1 < session.threshold:
            raise AbortedError(f"{len(sealed) + 1} members shared, {session.threshold} must")
        for peer, content in sealed.items():
            plain = crypto.unseal(self._seal_key(peer, self.number), content, self._pair(peer, self.number))
            self._held[peer] = plain[: crypto.SHARE], plain[crypto.SHARE :]
        masks = [(self_key(self._b, session), 1)]
        masks += [pair(self._mask_private, self.number, peer, self._peers[peer].mask_key, session) for peer in sealed]
        return crypto.add_masks(words, masks)

    def confirm(self, survivors: tuple[int, ...]) -> bytes:
        """Sign the list of survivors, the members whose masked input arrived."""
        self._enter(3)
        listed = tuple(sorted(survivors))
        if len(set(listed)) != len(listed) or not set(listed) <= set(self._held) or self.number not in listed:
            raise DataError("the list of survivors names a member twice, a stranger, or not this one")
        if len(listed) < self.session.threshold:
            raise AbortedError(f"{len(listed)} members are left, {self.session.threshold} must be")
        self._hidden_among([self._peers[peer] for peer in listed])
        self._survivors = listed
        return crypto.sign(self.identity, confirmed(self.session, listed))

    def reveal(self, signatures: Mapping[int, bytes]) -> Revealed:
        """The shares that unmask the survivors' sum; revealed once a threshold of survivors signed the same list."""
        self._enter(4)
        if not set(signatures) <= set(self._survivors) or len(signatures) < self.session.threshold:
            raise AbortedError(f"{len(signatures)} members confirmed, {self.session.threshold} of the survivors must")
        for peer, signature in signatures.items():
            crypto.check(self.pinned[peer], signature, confirmed(self.session, self._survivors))
        left = set(self._survivors)
        of_survivors = {peer: share[0] for peer, share in self._held.items() if peer in left}
        of_lost = {peer: share[1] for peer, share in self._held.items() if peer not in left}
        self._held.clear()
        return Revealed(self.number, of_survivors, of_lost)

    def _hidden_among(self, adverts: list[Advert]) -> None:
        """Abort if this is a newcomer among too few newcomers: its contribution is far larger than others' changes."""
        newcomers = sum(advert.new for advert in adverts)
        if newcomers < self._min_newcomers:
            raise AbortedError(f"{newcomers} newcomers are too few to hide among: {self._min_newcomers} must be")

    def _seal_key(self, sender: int, receiver: int) -> bytes:
        peer = receiver if sender == self.number else sender
        return crypto.agree(
            self._seal_private, self._peers[peer].seal_key, serialise("seal", self._pair(sender, receiver))
        )

    def _pair(self, sender: int, receiver: int) -> bytes:
        return serialise(self.session.label, sender, receiver)
