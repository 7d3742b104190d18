"""Secure aggregation after Bonawitz et al. (2017): the aggregator learns only the sum of the members' inputs.

A round has five stages. In each the aggregator waits for the members' messages. It continues if at least `threshold`
of them arrived; otherwise it aborts, and nothing is unmasked.

    advertise   fresh public keys, signed by a pinned identity
    share       shares of a fresh secret b and of the private mask key, one for every member, sealed for it
    mask        input + PRG(b) + sum over peers of +-PRG(key of the pair), modulo 2^32 or 2^64
    confirm     a signature on the list of survivors, the members whose masked input arrived
    reveal      for a survivor: shares of b; for a drop-out: shares of its mask key; never both for one member

A member reveals only after it has seen that a threshold of members signed the same list of survivors, so that an
aggregator cannot show different lists to different members. Members hold keys for one round only, and refuse a stage
that is repeated or out of order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.errors import FedmcError
from fedmc.privacy.secagg.serial import digest, serialise


class AbortedError(FedmcError):
    """Too few members are left; nothing was unmasked."""


class Session(NamedTuple):
    """The parameters of a round of secure aggregation; every signature, key and seal depends on them."""

    run: str
    round: int
    cohort: tuple[int, ...]
    threshold: int
    length: int  # integers of an input
    bits: int = 64  # of an integer

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint32 if self.bits == 32 else np.uint64

    @property
    def label(self) -> bytes:
        return digest(*self)


def threshold_of(members: int) -> int:
    """More than two thirds: two lists of survivors can reach this number only if over a third of members sign both."""
    return 2 * members // 3 + 1


class Advert(NamedTuple):
    member: int
    seal_key: bytes
    mask_key: bytes
    signature: bytes
    new: bool = False  # a newcomer: it adds its whole contribution, not a change
    commitment: bytes = b""  # the hash of b, to check the revealed b against

    def content(self, session: Session) -> bytes:
        keys = self.seal_key, self.mask_key, self.commitment
        return serialise("advert", session.label, self.member, self.new, *keys)


class Revealed(NamedTuple):
    member: int
    of_survivors: dict[int, bytes]  # shares of b
    of_lost: dict[int, bytes]  # shares of mask keys
