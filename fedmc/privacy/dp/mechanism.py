"""The Gaussian mechanism for sums over users: calibration, sampling and composition.

A release is a sum over users, each with a part of norm at most 1, plus Gaussian noise of the same size on every
number. Adding or removing one user with all its ratings changes the sum by at most 1 (user-level neighbours, to which
epsilon refers). Releases with noise s_1, s_2, ... compose exactly to one with noise (sum s_i^-2)^-1/2.

Values and noise are rounded separately to whole steps of 2^-28 and then added as integers, so that the low-order digits
of a release reveal nothing about the values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedmc.errors import InputError, require
from fedmc.privacy.dp import bounds
from fedmc.privacy.secagg.fixed import from_fixed
from fedmc.types import Array

BITS = 28  # a step is 2^-28, as with SUM_BITS in `algorithms.messages`
MOST_STEPS = 2.0**62  # values and noise are below, so that their sum fits an int64
TINIEST = 1e-150  # of a multiplier, so that its square does not vanish
TINY = 1e-9  # parts of a smaller norm are not scaled up to norm 1


def calibrate(epsilon: float, delta: float, releases: int = 1) -> float:
    """The noise multiplier of each of `releases` equal releases that together cost (epsilon, delta)."""
    check_budget(epsilon, delta)
    require(releases >= 1, f"the number of releases must be at least 1, got {releases}")
    if math.isinf(epsilon):
        return 0.0
    with np.errstate(divide="ignore"):  # where its search begins, delta is 0
        return float(_accounting().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def spent(multipliers: Iterable[float], delta: float) -> float:
    """The epsilon of the composition of releases with these noise multipliers."""
    return epsilon_of(cost(multipliers), delta)


def cost(multipliers: Iterable[float]) -> float:
    """What releases cost in all: the sum of 1/multiplier^2, which adds up exactly and does not depend on delta."""
    total = 0.0
    for one in multipliers:
        require(0 <= one < math.inf, f"a noise multiplier must be a finite number of at least 0, got {one}")
        total += max(one, TINIEST) ** -2 if one else math.inf
    return total


def epsilon_of(total: float, delta: float) -> float:
    """The epsilon of releases of this cost."""
    bounds.check_delta(delta)
    if total in (0.0, math.inf):
        return total
    with np.errstate(divide="ignore"):
        return float(_accounting().get_epsilon_gaussian(total**-0.5, delta))


def shares(epsilon: float, delta: float, weights: Sequence[float]) -> list[float]:
    """The noise multipliers of releases that take these shares of the budget and together cost (epsilon, delta)."""
    require(all(weight > 0 for weight in weights), f"shares must be above 0, got {weights}")
    whole, total = calibrate(epsilon, delta), sum(weights)
    return [whole * math.sqrt(total / weight) for weight in weights]


def shrink(norms: Array) -> Array:
    """The factor that scales each user's part to norm 1; 0 if the norm is not finite."""
    good = np.isfinite(norms)
    return np.where(good, 1 / np.maximum(np.where(good, norms, 1.0), TINY), 0.0)


def noised(values: Array, multiplier: float) -> Array:
    """Values plus noise, both in whole steps. The noise is enlarged slightly to cover the rounding of the values."""
    with np.errstate(over="ignore"):
        scaled = np.asarray(values, np.float64) * 2.0**BITS
    steps = _whole(scaled, "the values of a release")
    std = multiplier * (1 + (math.sqrt(values.size) + 1) * 2.0**-BITS)
    return from_fixed(steps + gaussian_steps(values.shape, std), BITS)


def gaussian_steps(shape: tuple[int, ...], std: float) -> Array:
    """Gaussian noise in whole steps, drawn from the operating system's random source only.

    Noise that an integer cannot hold raises InputError: it would turn into a constant.
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    drawn = np.frombuffer(os.urandom(16 * half), np.uint64)
    uniform = ((drawn >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = normal * (std * 2.0**BITS)
    return _whole(scaled, f"noise of multiplier {std:.3g}").reshape(shape)


def _whole(scaled: Array, what: str) -> Array:
    """Whole steps as integers; numbers that are not finite or too large are refused, never wrapped."""
    largest = float(np.abs(scaled).max(initial=0.0))
    fits = largest < MOST_STEPS  # false for NaN
    require(fits, f"{what} must be finite and below 2^62 steps, got {largest:.3g} steps: nothing is released")
    return np.rint(scaled).astype(np.int64)


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or delta out of bounds; epsilon may be inf, for simulations."""
    bounds.check_epsilon_or_inf(epsilon)
    bounds.check_delta(delta)


def _accounting() -> Any:
    try:
        from dp_accounting import gaussian_mechanism
    except ImportError:
        raise InputError("privacy='dp' needs the package dp-accounting: pip install 'fedmc[dp]'") from None
    return gaussian_mechanism
