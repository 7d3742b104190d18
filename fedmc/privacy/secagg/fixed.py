"""Fixed-point encoding: numbers as integers in steps of 2^-bits, whose sums are exact in any order and can be masked.

A client keeps its last contribution as integers and sends the difference of two of them. So the error of the sum stays
within half a step per client, over any number of rounds.
"""

from __future__ import annotations

import numpy as np

from fedmc.errors import InputError
from fedmc.types import Array


def to_fixed(values: Array, bits: int, limit: float) -> Array:
    """Round to whole steps, as int64; a number beyond the limit is refused, never wrapped."""
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= limit:
        raise InputError(f"a number of size {largest:.3g} is beyond what secure sums carry here ({limit:.3g})")
    return np.rint(np.asarray(values, np.float64) * 2.0**bits).astype(np.int64)


def cut(values: Array, limit: float) -> Array:
    """The values within the limit; a larger one, or one that is not a number, becomes the limit."""
    finite: Array = np.nan_to_num(np.asarray(values, np.float64), nan=limit, posinf=limit, neginf=-limit)
    return finite.clip(-limit, limit)


def from_fixed(words: Array, bits: int) -> Array:
    """Inverse of `to_fixed`; also decodes sums."""
    return words.astype(np.float64) * 2.0**-bits


def limit_of(clients: int, bits: int, size: int = 64) -> float:
    """The largest absolute value for which the sum of all clients' differences fits integers of `size` bits."""
    return 2.0 ** (size - 2 - bits) / max(clients, 1)
