"""Separable penalties: each entry of the factors is penalised and bounded on its own.

The compiled kernels take them as `Coefficients`, one of each kind per coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmc.errors import require
from fedmc.types import MAX_NUMBER, Array, DType, number

if TYPE_CHECKING:
    from fedmc.kernels.steps import Lines  # numba is not needed before training

Step = float | Array  # one step size, or one for each entry


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A separable penalty as numbers for the kernels, one of each kind per coordinate."""

    l1: Array
    l2: Array
    lo: Array
    hi: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.l1, self.l2, self.lo, self.hi))

    @cached_property
    def fixed(self) -> Array:
        """Which coordinates are fixed to one value."""
        return np.asarray(self.lo == self.hi)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The numbers of the fixed coordinates."""
        return tuple(int(column) for column in np.flatnonzero(self.fixed))

    @cached_property
    def values(self) -> Array:
        """The values of the fixed coordinates; 0 elsewhere."""
        return np.where(self.fixed, self.lo, 0.0)

    @cached_property
    def free(self) -> Array:
        """The numbers of the other coordinates."""
        return np.flatnonzero(~self.fixed)

    @cached_property
    def closed(self) -> bool:
        """Whether the free coordinates have neither l1 nor bounds, so that one Cholesky factorisation solves a row."""
        unbounded = np.isneginf(self.lo[self.free]).all() and np.isposinf(self.hi[self.free]).all()
        return bool(unbounded and not self.l1.any())

    @cached_property
    def lines(self) -> dict[DType, Lines]:
        """The same numbers as padded lines for the kernels, by element type; filled by `subproblem`."""
        return {}

    @cached_property
    def _of_free(self) -> dict[DType | type[np.generic], tuple[Array, ...]]:
        return {}

    def of_free(self, dtype: DType | type[np.generic]) -> tuple[Array, ...]:
        """l1, l2, lo and hi of the free coordinates."""
        if dtype not in self._of_free:
            self._of_free[dtype] = tuple(numbers[self.free].astype(dtype) for numbers in self)
        return self._of_free[dtype]


class CoefficientCache:
    """Caches a penalty's coefficients, which every update of every client needs."""

    @cached_property
    def remembered(self) -> dict[int, Coefficients | None]:
        """The coefficients by width."""
        return {}

    def coefficients(self, width: int) -> Coefficients | None:
        """The penalty as numbers, or None if it has no such form."""
        raise NotImplementedError


@dataclass(frozen=True)
class Separable(CoefficientCache):
    """l1 |x| + l2/2 x^2 with lo <= x <= hi, for each entry: six named penalties in one closed form."""

    l1: float = 0.0
    l2: float = 0.0
    lo: float = -np.inf
    hi: float = np.inf

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            number(f"the {name} weight", getattr(self, name), 0, MAX_NUMBER)
        for name in ("lo", "hi"):
            bound = getattr(self, name)
            if bound not in (-np.inf, np.inf):
                number(f"the box's {name}", bound)
        require(self.lo <= self.hi, f"the box must have lo <= hi, got lo={self.lo}, hi={self.hi}")

    def value(self, X: Array) -> float:
        if X.size and (X.min() < self.lo or X.max() > self.hi):
            return np.inf
        return float(self.l1 * np.abs(X).sum(dtype=np.float64) + self.l2 / 2 * np.square(X).sum(dtype=np.float64))

    def prox(self, Z: Array, step: Step) -> Array:
        if self.l1 == 0 and self.lo == -np.inf and self.hi == np.inf:
            return np.asarray(Z / (1 + step * self.l2), Z.dtype)
        shrunk = np.sign(Z) * np.maximum(np.abs(Z) - step * self.l1, 0) / (1 + step * self.l2)
        return np.asarray(np.clip(shrunk, self.lo, self.hi), Z.dtype)

    def coefficients(self, width: int) -> Coefficients:
        return Coefficients(*(np.full(width, getattr(self, f.name)) for f in fields(self)))

    def __str__(self) -> str:
        """The spec that `penalties.parse` reads."""
        terms = [f"{name}:{getattr(self, name)!r}" for name in ("l1", "l2") if getattr(self, name)]
        if self.lo > -np.inf or self.hi < np.inf:
            terms.append(f"box:{self.lo!r},{self.hi!r}")
        return "+".join(terms) or "none"

    def __add__(self, other: object) -> Separable:
        if not isinstance(other, Separable):
            return NotImplemented
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return Separable(self.l1 + other.l1, self.l2 + other.l2, lo, hi)

    def __mul__(self, weight: float) -> Separable:
        return Separable(self.l1 * weight, self.l2 * weight, self.lo, self.hi)


def none() -> Separable:
    """No penalty."""
    return Separable()


def l2(weight: float) -> Separable:
    """weight/2 ||X||_F^2"""
    return Separable(l2=weight)


def l1(weight: float) -> Separable:
    """weight ||X||_1"""
    return Separable(l1=weight)


def elastic_net(l1: float, l2: float) -> Separable:
    """l1 ||X||_1 + l2/2 ||X||_F^2"""
    return Separable(l1=l1, l2=l2)


def non_negative() -> Separable:
    """X >= 0"""
    return Separable(lo=0.0)


def box(lo: float, hi: float) -> Separable:
    """lo <= X <= hi"""
    return Separable(lo=lo, hi=hi)
