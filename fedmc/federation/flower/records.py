"""fedmc's bytes inside Flower's messages."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedmc.federation.container import read_array

PLACE, NAME = "fedmc", "bytes"
SMALL = 8 * 2**20  # bytes that are sent in one piece: each piece is a call, which costs more than a megabyte


def pack(content: bytes) -> RecordDict:
    """Few bytes go as they are, many as an array, which Flower sends in pieces."""
    if len(content) <= SMALL:
        return RecordDict({PLACE: ConfigRecord({NAME: content})})
    return RecordDict({PLACE: ArrayRecord({NAME: Array(np.frombuffer(content, np.uint8))})})


def unpack(record: RecordDict) -> bytes:
    """Inverse of `pack`; KeyError, ValueError or TypeError if the record holds no such bytes."""
    if PLACE in record.config_records:
        content = record.config_records[PLACE][NAME]
        if not isinstance(content, bytes):
            raise ValueError(f"expected bytes, got {type(content).__name__}")
        return content
    found = read_array(record.array_records[PLACE][NAME].data)  # Flower's own reader believes the stated size
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"expected bytes, got {found.dtype} of shape {found.shape}")
    return found.tobytes()
