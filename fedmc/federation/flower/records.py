"""Our bytes inside of Flower's messages."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

PLACE, NAME = "fedmc", "bytes"
SMALL = 8 * 2**20  # bytes that go in one piece; every piece is a call of its own, and a call costs more than a megabyte


def pack(content: bytes) -> RecordDict:
    """The bytes as they are, or where they are many as an array, which Flower sends in pieces."""
    if len(content) <= SMALL:
        return RecordDict({PLACE: ConfigRecord({NAME: content})})
    return RecordDict({PLACE: ArrayRecord({NAME: Array(np.frombuffer(content, np.uint8))})})


def unpack(record: RecordDict) -> bytes:
    """The bytes again; KeyError or ValueError where there are none."""
    if PLACE in record.config_records:
        content = record.config_records[PLACE][NAME]
        if not isinstance(content, bytes):
            raise ValueError(f"expected bytes, got {type(content).__name__}")
        return content
    found = record.array_records[PLACE][NAME].numpy()
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"expected bytes, got {found.dtype} of shape {found.shape}")
    return found.tobytes()
