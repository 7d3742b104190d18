"""Keys, masks and sealed shares: thin wrappers of the `cryptography` package, and Shamir's secret sharing.

Every key is derived for one use: `info` names the session (run, round, cohort), the pair, and the purpose of the key.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedmc.errors import DataError
from fedmc.types import Array

PRIME = 2**255 - 19  # of the field in which secrets are shared
SHARE = SECRET = 32  # bytes of an element of the field
PIECE = 1 << 15  # integers


def derive(secret: bytes, info: bytes) -> bytes:
    """A key of 32 bytes for one use."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)


def agree(private: bytes, public: bytes, info: bytes) -> bytes:
    """The key that two members derive from their own private and the other's public key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise DataError("a public key is not valid") from None
    return derive(shared, info)


def new_pair() -> tuple[bytes, bytes]:
    """(private, public) for `agree`."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    except ValueError:
        raise DataError("a private key is not valid") from None


def mask(key: bytes, length: int, dtype: Any) -> Array:
    """Pseudo-random integers from AES-256 in counter mode. A key makes one mask."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(length * np.dtype(dtype).itemsize)), dtype)


def add_masks(words: Array, keys: Sequence[tuple[bytes, int]]) -> Array:
    """words + sum of sign * mask(key), in pieces that stay in the processor's cache."""
    total = words.copy()
    streams = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), sign) for key, sign in keys]
    zeros = bytes(PIECE * total.itemsize)
    room = bytearray(len(zeros) + 16)
    for start in range(0, len(total), PIECE):
        piece = total[start : start + PIECE]
        for stream, sign in streams:
            stream.update_into(memoryview(zeros)[: piece.nbytes], room)
            noise = np.frombuffer(room, total.dtype, len(piece))
            np.add(piece, noise, out=piece) if sign > 0 else np.subtract(piece, noise, out=piece)
    return total


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Authenticated encryption; each key is used once, so the nonce may be constant."""
    return AESGCM(key).encrypt(bytes(12), content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        raise DataError("a sealed share was changed, or is not for this member or session") from None


def sign(identity: Ed25519PrivateKey, content: bytes) -> bytes:
    return identity.sign(content)


def check(identity: Ed25519PublicKey, signature: bytes, content: bytes) -> None:
    try:
        identity.verify(signature, content)
    except InvalidSignature:
        raise DataError("a signature does not fit") from None


def new_secret() -> bytes:
    """A random element of the field."""
    return secrets.randbelow(PRIME).to_bytes(SECRET)


def random_word() -> bytes:
    """8 bytes that are not all zero."""
    return (1 + secrets.randbelow(2**64 - 1)).to_bytes(8)


def random_words(length: int) -> Array:
    """Words of 64 bits in which any others disappear if they are added."""
    return mask(secrets.token_bytes(32), length, np.uint64)


def share(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder (numbered from 0): any `threshold` of them give the secret, fewer reveal nothing."""
    line = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _at(line, holder + 1).to_bytes(SHARE) for holder in holders}


def _at(line: list[int], x: int) -> int:
    y = 0
    for coefficient in reversed(line):
        y = (y * x + coefficient) % PRIME
    return y


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from `threshold` shares."""
    weights = _weights(tuple(shares))
    total = sum(weight * int.from_bytes(value) for weight, value in zip(weights, shares.values(), strict=True))
    return (total % PRIME).to_bytes(SECRET)


@lru_cache(maxsize=256)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at zero: the same for all secrets that these holders have shares of."""
    found = []
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
