"""The server's part in one round of secure aggregation (`session` describes the protocol)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.derived import commitment_to, confirmed, pair, self_key
from fedmc.privacy.secagg.session import AbortedError, Advert, Revealed, Session
from fedmc.types import Array

T = TypeVar("T")


class Aggregator:
    """The server's part in one round. It trusts the transport on who sent a message, and checks everything else."""

    def __init__(self, session: Session, pinned: Mapping[int, Ed25519PublicKey]) -> None:
        self.session, self.pinned = session, pinned
        self.adverts: dict[int, Advert] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}
        self.hidden: dict[int, Array] = {}

    def take_adverts(self, adverts: Mapping[int, Advert]) -> list[Advert]:
        """Accept the adverts; returns the list that every member gets."""
        for member, advert in adverts.items():
            self.check_advert(member, advert)
        self.adverts = dict(sorted(self._enough(adverts, "advertised").items()))
        return list(self.adverts.values())

    def check_advert(self, member: int, advert: Advert) -> None:
        if advert.member != member or member not in self.session.cohort:
            raise DataError(f"an advert of {advert.member} came from {member}")
        crypto.check(self.pinned[member], advert.signature, advert.content(self.session))
        if advert.seal_key == advert.mask_key:
            raise DataError(f"member {member} advertises one key for two uses")
        for key in (advert.seal_key, advert.mask_key):
            crypto.agree(crypto.new_pair()[0], key, b"")  # an invalid key would make all peers fail

    def take_sealed(self, sealed: Mapping[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Accept the sealed shares; returns them by receiver and sender."""
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
        """Accept the masked inputs; returns the survivors."""
        for member, words in hidden.items():
            self.check_hidden(member, words)
        self.hidden = dict(self._enough(hidden, "sent a masked input"))
        return tuple(sorted(self.hidden))

    def check_hidden(self, member: int, words: Array) -> None:
        if member not in self.sealed:
            raise DataError(f"a masked input of {member}, who did not share")
        if words.shape != (self.session.length,) or words.dtype != self.session.dtype:
            raise DataError(f"the masked input of {member} has shape {words.shape} and type {words.dtype}")

    def take_signatures(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        for member, signature in signatures.items():
            self.check_signature(member, signature)
        return dict(self._enough(signatures, "confirmed"))

    def check_signature(self, member: int, signature: bytes) -> None:
        if member not in self.hidden:
            raise DataError(f"a confirmation of {member}, who sent no masked input")
        crypto.check(self.pinned[member], signature, confirmed(self.session, tuple(sorted(self.hidden))))

    def check_revealed(self, member: int, revealed: Revealed) -> None:
        survivors = set(self.hidden)
        lost = set(self.sealed) - survivors
        if member not in survivors or revealed.of_survivors.keys() != survivors or revealed.of_lost.keys() != lost:
            raise DataError(f"member {member} did not reveal what it should, and no more")

    def unmask(self, revealed: Mapping[int, Revealed]) -> Array:
        """The sum of the survivors' inputs."""
        self._enough(revealed, "revealed")
        session, survivors = self.session, sorted(self.hidden)
        lost = sorted(set(self.sealed) - set(survivors))
        total = np.zeros(session.length, session.dtype)
        for member in survivors:
            total += self.hidden[member]
        secrets_of = {member: self._secret(revealed, member, True) for member in survivors}
        for member, b in secrets_of.items():
            if commitment_to(b) != self.adverts[member].commitment:
                raise DataError(f"the shares of {member}'s secret do not give its secret")
        masks = [(self_key(b, session), -1) for b in secrets_of.values()]
        for member in lost:
            private = self._secret(revealed, member, False)
            if crypto.public_of(private) != self.adverts[member].mask_key:
                raise DataError(f"the shares of {member}'s key do not give its key")
            # The lost member's pairwise masks cancel those that the survivors added.
            masks += [pair(private, member, peer, self.adverts[peer].mask_key, session) for peer in survivors]
        return crypto.add_masks(total, masks)

    def _secret(self, revealed: Mapping[int, Revealed], member: int, survived: bool) -> bytes:
        shares = {}
        for holder, one in revealed.items():
            found = (one.of_survivors if survived else one.of_lost).get(member)
            if found is None or one.member != holder:
                raise DataError(f"member {holder} did not reveal its share of {member}")
            shares[holder] = found
        return crypto.combine(dict(list(shares.items())[: self.session.threshold]))

    def _enough(self, messages: Mapping[int, T], what: str) -> Mapping[int, T]:
        if len(messages) < self.session.threshold:
            cohort = len(self.session.cohort)
            raise AbortedError(f"{len(messages)} of {cohort} members {what}, {self.session.threshold} must")
        return messages
