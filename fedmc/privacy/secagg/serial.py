"""An unambiguous serialisation for hashes, keys and signatures: every value carries its type and length."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from fedmc.types import Array

Value = None | bool | int | float | str | bytes | Array | Sequence["Value"] | Mapping[str, "Value"]


def serialise(*values: Value) -> bytes:
    """The values in order; two different lists of values never give the same bytes."""
    return b"".join(_one(value) for value in values)


def digest(*values: Value) -> bytes:
    return hashlib.sha256(serialise(*values)).digest()


def _one(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, signed=True))
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return _sized(b"s", value.encode())
    if isinstance(value, bytes):
        return _sized(b"b", value)
    if isinstance(value, np.ndarray):
        return b"a" + serialise(value.dtype.str, list(value.shape), value.tobytes())
    if isinstance(value, Mapping):
        return b"m" + _length(len(value)) + b"".join(serialise(name, value[name]) for name in sorted(value))
    return b"l" + _length(len(value)) + serialise(*value)


def _sized(kind: bytes, content: bytes) -> bytes:
    return kind + _length(len(content)) + content


def _length(number: int) -> bytes:
    return number.to_bytes(8)
