"""The bounds of everything that enters the noise, each with its reason.

A privacy mode checks them when it is made, so a node checks them whenever it reads a request. A ledger checks the
noise multiplier again before each release. Values of another type, NaN and infinities are refused like values out of
bounds. The exception is epsilon = inf (no noise), for simulations: a node and a ledger refuse it.
"""

from __future__ import annotations

import math

import numpy as np

from fedmc.errors import InputError, require

MIN_EPSILON = 0.01  # the noise of each release weighs about a thousand users at the default delta and rounds
MAX_EPSILON = 1000.0  # above, the noise hides nothing: without noise, say so (epsilon=inf, in a simulation)
MIN_DELTA = 1e-12  # drawn with 53 bits, the noise ends at 8.6 deviations: of 1e5 numbers, one would be beyond so often
MAX_DELTA = 0.1  # delta is the chance that the bound fails: more is no promise
MIN_ROUNDS = 2  # counts, then a gradient
MAX_ROUNDS = 1000  # the budget is divided among them, and a node plans all of them at once
MAX_RATING = 1e6  # of either end of the range; with MIN_WIDTH, the middle of a range keeps its digits
MIN_WIDTH = 1e-6  # from the lowest to the highest rating
MAX_RANK = 200  # a release holds rank^2 pooled numbers: a small request must not ask for a large draw
MIN_MULTIPLIER = 0.01  # all plans within the bounds above lie between these two (`tests/test_attacks_dp.py`)
MAX_MULTIPLIER = 1e5  # noise of this size has at most 2^48 steps: far from where integers end
OVERFLOWED = 2.0**31  # earlier versions took larger multipliers, and their integers overflowed: no noise at all


def number(name: str, value: object) -> float:
    """The value as a plain number; a bool, a string or anything else is refused."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise InputError(f"{name} must be a number, got {_shown(plain)}")
    return plain


def check_epsilon(epsilon: object) -> float:
    """A finite epsilon within its bounds."""
    return _within("epsilon", number("epsilon", epsilon), MIN_EPSILON, MAX_EPSILON, "1 to 3 protect, 10 hardly does")


def check_epsilon_or_inf(epsilon: object) -> float:
    """The same, or inf: a simulation without noise."""
    return math.inf if number("epsilon", epsilon) == math.inf else check_epsilon(epsilon)


def check_delta(delta: object) -> float:
    return _within("delta", number("delta", delta), MIN_DELTA, MAX_DELTA, "choose it below one over the users' number")


def check_rounds(rounds: object) -> int:
    plain = _whole("dp_rounds", rounds)
    _within("dp_rounds", plain, MIN_ROUNDS, MAX_ROUNDS, "round 1 releases counts, the later ones share the budget")
    return plain


def check_range(rating_range: object) -> tuple[float, float]:
    """The lowest and the highest rating."""
    if not isinstance(rating_range, tuple | list) or len(rating_range) != 2:
        raise InputError(f"the range of ratings is two numbers, the lowest and the highest, got {_shown(rating_range)}")
    low, high = number("ratings_from", rating_range[0]), number("ratings_to", rating_range[1])
    for name, end in (("ratings_from", low), ("ratings_to", high)):
        _within(name, end, -MAX_RATING, MAX_RATING, "rescale the ratings")
    wide = high - low >= MIN_WIDTH
    require(wide, f"the range of ratings must not be empty (at least {MIN_WIDTH:g} wide), got {low} to {high}")
    return low, high


def check_multiplier(multiplier: object) -> float:
    """The noise multiplier of a release."""
    plain = number("the noise multiplier", multiplier)
    return float(_within("the noise multiplier", plain, MIN_MULTIPLIER, MAX_MULTIPLIER, "other noise is not released"))


def check_rank(rank: object) -> None:
    """The rank under differential privacy."""
    _within("rank", _whole("rank", rank), 1, MAX_RANK, "under differential privacy, a small rank learns more")


def _whole(name: str, value: object) -> int:
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise InputError(f"{name} must be a whole number, got {_shown(plain)}")
    return plain


def _plain(value: object) -> object:
    """A numpy scalar as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _within(name: str, value: float, low: float, high: float, cure: str) -> float:
    require(low <= value <= high, lambda: f"{name} must lie between {low:g} and {high:g}, got {_shown(value)}: {cure}")
    return value


def _shown(value: object) -> str:
    """The value for a message, at most 40 characters of it."""
    huge = isinstance(value, int) and value.bit_length() > 130
    return "a very large whole number" if huge else f"{value!r:.40}"
