"""Numbers as integers in steps of 2^-bits: sums are exact in any order, and masks hide them.

A client keeps what it last sent as integers and sends the difference of two such: the error of the sum stays below
half a step a client for ever.
"""

from __future__ import annotations

import numpy as np

from fedmc.errors import InputError
from fedmc.types import Array


def to_fixed(values: Array, bits: int, limit: float) -> Array:
    """The nearest whole numbers of steps, as int64; a number beyond the limit is refused, never wrapped."""
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= limit:
        raise InputError(f"a number of size {largest:.3g} is beyond what secure sums carry here ({limit:.3g})")
    return np.rint(np.asarray(values, np.float64) * 2.0**bits).astype(np.int64)


def from_fixed(words: Array, bits: int) -> Array:
    """Back again, from a sum of them."""
    return words.astype(np.float64) * 2.0**-bits


def limit_of(clients: int, bits: int, size: int = 64) -> float:
    """How large a number may be, so that the sum of so many clients' differences fits words of this size."""
    return 2.0 ** (size - 2 - bits) / max(clients, 1)
