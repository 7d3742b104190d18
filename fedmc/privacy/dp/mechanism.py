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
from fedmc.privacy.secagg.fixed import from_fixed
from fedmc.types import Array

BITS = 28  # a step is 2^-28, as with SUM_BITS in `algorithms.messages`
TINY = 1e-9  # parts of a smaller norm are not scaled up to norm 1


def calibrate(epsilon: float, delta: float, releases: int = 1) -> float:
    """The noise multiplier of each of `releases` equal releases that together cost (epsilon, delta)."""
    check_budget(epsilon, delta)
    require(releases >= 1, f"the number of releases must be at least 1, got {releases}")
    if math.isinf(epsilon):
        return 0.0
    return float(_accounting().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def spent(multipliers: Iterable[float], delta: float) -> float:
    """The epsilon of the composition of releases with these noise multipliers."""
    check_budget(1.0, delta)
    used = list(multipliers)
    require(all(one >= 0 for one in used), lambda: f"a noise multiplier must be at least 0, got {min(used)}")
    if 0.0 in used:
        return math.inf
    total = sum(one**-2 for one in used)
    return float(_accounting().get_epsilon_gaussian(total**-0.5, delta)) if total else 0.0


def shares(epsilon: float, delta: float, weights: Sequence[float]) -> list[float]:
    """The noise multipliers of releases that take these shares of the budget and together cost (epsilon, delta)."""
    require(all(weight > 0 for weight in weights), f"shares must be above 0, got {weights}")
    whole = calibrate(epsilon, delta)
    return [whole * math.sqrt(sum(weights) / weight) for weight in weights]


def shrink(norms: Array) -> Array:
    """The factor that scales each user's part to norm 1; 0 if the norm is not finite."""
    good = np.isfinite(norms)
    return np.where(good, 1 / np.maximum(np.where(good, norms, 1.0), TINY), 0.0)


def noised(values: Array, multiplier: float) -> Array:
    """Values plus noise, both in whole steps. The noise is enlarged slightly to cover the rounding of the values."""
    steps = np.rint(np.asarray(values, np.float64) * 2.0**BITS).astype(np.int64)
    std = multiplier * (1 + (math.sqrt(values.size) + 1) * 2.0**-BITS)
    return from_fixed(steps + gaussian_steps(values.shape, std), BITS)


def gaussian_steps(shape: tuple[int, ...], std: float) -> Array:
    """Gaussian noise in whole steps, drawn from the operating system's random source only."""
    count = math.prod(shape)
    half = (count + 1) // 2
    drawn = np.frombuffer(os.urandom(16 * half), np.uint64)
    uniform = ((drawn >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return np.rint(normal * (std * 2.0**BITS)).astype(np.int64).reshape(shape)


def check_budget(epsilon: float, delta: float) -> None:
    require(epsilon > 0, f"epsilon must be above 0, got {epsilon}")
    require(0 < delta < 1, f"delta must lie between 0 and 1, got {delta}: below one over the number of users")


def _accounting() -> Any:
    try:
        from dp_accounting import gaussian_mechanism
    except ImportError:
        raise InputError("privacy='dp' needs the package dp-accounting: pip install 'fedmc[dp]'") from None
    return gaussian_mechanism
