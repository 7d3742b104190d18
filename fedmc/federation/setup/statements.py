"""What a member signs with its identity: that its key is replaced by the next one, and that it leaves.

Keys and signatures are in hexadecimal digits.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.privacy.secagg.serial import serialise

NEXT_KEY = "fedmc: a member's next identity"
LEAVES = "fedmc: a member leaves its federation"
OWNED = "fedmc: a member's own keys"


class Replaced(NamedTuple):
    """An earlier key of a member, and its signature on the next one."""

    identity: str
    proof: str


class Departure(NamedTuple):
    """That a member has left: in its own words, if `proof` is its signature on them."""

    take_out: bool  # its part is taken out of the last run's sum
    visible: bool  # it accepts that sums show its part
    proof: str = ""


def replaced(name: str, key: Ed25519PrivateKey, following: str) -> Replaced:
    """The statement of a member, with its key of now, that another public key follows."""
    public = key.public_key().public_bytes_raw().hex()
    return Replaced(public, key.sign(_next_key(name, following)).hex())


def follows(name: str, before: Replaced, following: str) -> bool:
    return _verified(before.identity, before.proof, _next_key(name, following))


def leaves(name: str, key: Ed25519PrivateKey, take_out: bool, visible: bool) -> Departure:
    """The statement of a member that it leaves."""
    said = Departure(take_out, visible)
    public = key.public_key().public_bytes_raw().hex()
    return said._replace(proof=key.sign(_leaves(name, public, said)).hex())


def is_own(name: str, identity: str, left: Departure) -> bool:
    """Whether the member itself signed that it leaves, in these words."""
    return _verified(identity, left.proof, _leaves(name, identity, left))


def owned(name: str, key: Ed25519PrivateKey, node: str) -> str:
    """The signature with which a member hands its public keys over: both are its own."""
    return key.sign(_owned(name, key.public_key().public_bytes_raw().hex(), node)).hex()


def is_owned(name: str, public: str, node: str, proof: str) -> bool:
    return _verified(public, proof, _owned(name, public, node))


def public_key(public: str) -> Ed25519PublicKey:
    """ValueError: it is none, or written in another way, by which one key could be two."""
    raw = bytes.fromhex(public)
    if raw.hex() != public:
        raise ValueError("a key has 64 hexadecimal digits, in small letters")
    return Ed25519PublicKey.from_public_bytes(raw)


def _next_key(name: str, public: str) -> bytes:
    return serialise(NEXT_KEY, name, public)


def _leaves(name: str, public: str, left: Departure) -> bytes:
    return serialise(LEAVES, name, public, left.take_out, left.visible)


def _owned(name: str, public: str, node: str) -> bytes:
    return serialise(OWNED, name, public, node)


def _verified(public: str, proof: str, content: bytes) -> bool:
    try:
        public_key(public).verify(bytes.fromhex(proof), content)
    except (InvalidSignature, ValueError):
        return False
    return True
