"""Secure aggregation after Bonawitz et al. (2017): the aggregator learns the sum of the members' words, and no more.

A round has four stages. In each the aggregator waits for messages, goes on with those that came if they are at least
`threshold` many, and else gives up with nothing unmasked.

    advertise   fresh public keys, signed by a pinned identity
    share       of a fresh secret b and of the private key of the masks, a share for every member, sealed for it
    mask        words + PRG(b) + sum over peers of +-PRG(key of the pair), modulo 2^32 or 2^64
    reveal      for who sent words: shares of b; for who did not: shares of its mask key; never both for one member

Before it reveals, a member wants to see that a threshold of members signed the same list of survivors, so that no
aggregator can tell different members different lists. Members hold keys for one round only; asked a second time for a
stage, or out of order, they refuse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.errors import FedmcError
from fedmc.privacy.secagg.serial import digest, serialise


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
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint32 if self.bits == 32 else np.uint64

    @property
    def label(self) -> bytes:
        return digest(*self)


def threshold_of(members: int) -> int:
    """More than two thirds: no two lists of survivors can each have so many signatures unless a third signed both."""
    return 2 * members // 3 + 1


class Advert(NamedTuple):
    member: int
    seal_key: bytes
    mask_key: bytes
    signature: bytes
    new: bool = False  # it adds all of its contribution, not a change
    commitment: bytes = b""  # the hash of b, by which what is revealed of it is checked

    def content(self, session: Session) -> bytes:
        keys = self.seal_key, self.mask_key, self.commitment
        return serialise("advert", session.label, self.member, self.new, *keys)


class Revealed(NamedTuple):
    member: int
    of_survivors: dict[int, bytes]  # shares of b
    of_lost: dict[int, bytes]  # shares of mask keys
