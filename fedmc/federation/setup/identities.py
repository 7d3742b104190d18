"""Identities in secure aggregation: each organisation's own signing key, and the public keys of all members.

identity.key   the organisation's secret key; nobody else ever needs it
members.json   names and public keys of all members (`members.py`)

Secure aggregation is only as strong as the list: whoever could put keys into it could pose as all the other members. So
the list that a node begins with is agreed on out of band, and each organisation can make its own key (`fedmc node
identity --renew`). Later lists are signed, and can only add members (`succession.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError
from fedmc.federation.setup import keys, statements
from fedmc.federation.setup.members import MemberList

KEY = "identity.key"


class Identity(NamedTuple):
    """A node among the members of a run: its number and signing key, and all members' public keys by number."""

    number: int
    key: Ed25519PrivateKey
    pinned: Mapping[int, Ed25519PublicKey]
    min_cohort: int  # the smallest cohort that it accepts
    places: tuple[int, ...] = ()  # of the members in the list, which does not change from run to run; empty: by number
    visible: frozenset[int] = frozenset()  # the places of members that have left and accept that sums show their part
    departed: frozenset[int] = frozenset()  # the places of all members that have left

    def __repr__(self) -> str:
        return f"Identity({self.number} of {len(self.pinned)})"

    def place(self, number: int) -> int:
        """The place of a member in the list."""
        return self.places[number] if self.places else number


def make(folder: Path) -> str:
    """Write a new key to this folder, replacing an existing one; returns its public half in hex."""
    return public_hex(keys.make_ed25519(folder / KEY))


def public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def pinned(publics: Sequence[str]) -> dict[int, Ed25519PublicKey]:
    return {number: statements.public_key(one) for number, one in enumerate(publics)}


def load_key(folder: Path) -> Ed25519PrivateKey:
    return keys.load_ed25519(folder / KEY, f"`fedmc node identity --renew {folder}` makes a new one")


def identity_of(found: MemberList, organisation: str, key: Ed25519PrivateKey, min_cohort: int) -> Identity:
    """This organisation's identity, checked against the list."""
    names, cure = found.names, "agree on the list of members"
    if organisation not in names:
        raise DataError(f"the list of members does not name {organisation}: {cure}, or it has left the federation")
    number = names.index(organisation)
    if found.identities[number] != public_hex(key):
        raise DataError(f"the list of members has another key for {organisation} than its {KEY}: {cure}")
    return Identity(number, key, pinned(found.identities), min_cohort, found.active, found.visible, found.departed)
