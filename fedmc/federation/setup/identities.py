"""Identities in secure aggregation: each organisation's own signing key, and the list of all public keys.

identity.key      the organisation's secret key; nobody else ever needs it
identities.json   names and public keys, in the order of the nodes' numbers; the same file everywhere

Secure aggregation is only as strong as the list: whoever could add keys to it could pose as all the other members. So
the list is agreed on out of band, and each organisation can make its own key (`fedmc node identity --renew`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError
from fedmc.federation.setup import keys

KEY, LIST = "identity.key", "identities.json"


class Identity(NamedTuple):
    """A node's number and signing key, all members' public keys by number, and the smallest cohort it accepts."""

    number: int
    key: Ed25519PrivateKey
    pinned: Mapping[int, Ed25519PublicKey]
    min_cohort: int

    def __repr__(self) -> str:
        return f"Identity({self.number} of {len(self.pinned)})"


def make(folder: Path) -> str:
    """Write a new key to this folder, replacing an existing one; returns its public half in hex."""
    return public_hex(keys.make_ed25519(folder / KEY))


def public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def save(path: Path, found: Sequence[tuple[str, str]]) -> None:
    path.write_text(json.dumps([list(one) for one in found], indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> list[tuple[str, str]]:
    """Names and public keys by number."""
    try:
        found = [(str(name), str(public)) for name, public in json.loads(path.read_text(encoding="utf-8"))]
        pinned([public for _, public in found])
    except FileNotFoundError:
        raise DataError(f"there is no {path}: the same list of identities belongs into every folder") from None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a list of identities: {error}") from None
    if len({public for _, public in found}) != len(found) or len({name for name, _ in found}) != len(found):
        raise DataError(f"{path} names an organisation or a key twice")
    return found


def pinned(publics: Sequence[str]) -> dict[int, Ed25519PublicKey]:
    return {number: Ed25519PublicKey.from_public_bytes(bytes.fromhex(one)) for number, one in enumerate(publics)}


def load_key(folder: Path) -> Ed25519PrivateKey:
    return keys.load_ed25519(folder / KEY, f"`fedmc node identity --renew {folder}` makes a new one")


def identity_of(folder: Path, organisation: str, min_cohort: int) -> Identity:
    """This organisation's identity, checked against the list."""
    key, found = load_key(folder), load(folder / LIST)
    names = [name for name, _ in found]
    if organisation not in names:
        raise DataError(f"{folder / LIST} does not name {organisation}")
    number = names.index(organisation)
    if found[number][1] != public_hex(key):
        raise DataError(f"{folder / LIST} has another key for {organisation} than {folder / KEY}: agree on the list")
    return Identity(number, key, pinned([public for _, public in found]), min_cohort)


def pin(path: Path, organisation: str, public: str) -> None:
    """Replace an organisation's public key in the list."""
    found = load(path)
    names = [name for name, _ in found]
    if organisation not in names:
        raise DataError(f"{path} does not name {organisation}: it names {', '.join(names)}")
    try:
        pinned([public])
    except ValueError:
        raise DataError(f"{public!r} is not a public key: 64 hexadecimal digits") from None
    save(path, [(name, public if name == organisation else old) for name, old in found])
