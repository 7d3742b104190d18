"""Types that every layer shares, and checks that turn a value from outside into one of them.

A node takes its settings from a server. So every number has an upper bound, chosen far above what a useful run needs
and low enough that a small message cannot keep a machine busy or fill its memory.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedmc.errors import InputError, quoted, require

Array = NDArray[Any]  # of any element type: kernels and input checks determine which
DType = np.dtype[np.generic]
Scalar = float | np.float32  # np.float64 is a float

MAX_NUMBER = 1e12  # penalty weights, beta, ratings, factors
MIN_POSITIVE = 1e-12  # the smallest number where only positive ones make sense
MAX_CLIENTS = 10_000_000
MAX_ROUND = 1_000_000_000
MAX_SEED = 2**63 - 1
MAX_TEXT = 1_000  # characters of a name, or of the spec of a penalty, loss or algorithm
MAX_ARGUMENTS = 100  # numbers in a spec


def whole(name: str, value: object, low: int, high: int) -> int:
    """The value, if it is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {quoted(value)}")
    found = int(value)
    require(found >= low, lambda: f"{name} must be at least {low}, got {quoted(found)}")
    require(found <= high, lambda: f"{name} must be at most {high}, got {quoted(found)}")
    return found


def number(name: str, value: object, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> float:
    """The value, if it is a number from `low` to `high`; NaN is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {quoted(value)}")
    real = cast(float, value)
    require(bool(low <= real <= high), lambda: f"{name} must be a number from {low:g} to {high:g}, got {quoted(value)}")
    return float(real)


def text(name: str, value: object, most: int = MAX_TEXT) -> str:
    """The value, if it is a text of at most `most` printable characters."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a text, got {quoted(value)}")
    require(len(value) <= most, lambda: f"{name} must have at most {most} characters, got {len(value)}")
    require(value.isprintable(), lambda: f"{name} must be one line of printable characters, got {quoted(value)}")
    return value


def switch(name: str, value: object) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {quoted(value)}")
    return value
