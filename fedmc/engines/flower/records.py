"""Our bytes inside of Flower's messages."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

PLACE, NAME = "fedmc", "bytes"


def pack(content: bytes) -> RecordDict:
    """One array of bytes, which Flower sends in pieces where it is large."""
    return RecordDict({PLACE: ArrayRecord({NAME: Array(np.frombuffer(content, np.uint8))})})


def unpack(record: RecordDict) -> bytes:
    """The bytes again; KeyError or ValueError where there are none."""
    found = record.array_records[PLACE][NAME].numpy()
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"expected bytes, got {found.dtype} of shape {found.shape}")
    return found.tobytes()
