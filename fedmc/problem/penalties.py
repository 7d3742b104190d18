"""Penalties R and constraints, for users and for items: `value(X)` and `prox(Z, step)`.

    prox(Z, step) = argmin_X  step R(X) + 1/2 ||X - Z||^2

The step is a number, or for separable penalties an array of Z's shape: a step for each entry. A constraint is a
penalty whose value is infinite outside of its set. Any object with these two methods works as a penalty; those that
also have `coefficients` run in the compiled kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedmc.errors import InputError, require, unknown
from fedmc.types import Array

Step = Any  # a float, or an array of one step per entry


@runtime_checkable
class Penalty(Protocol):
    def value(self, X: Array) -> float: ...
    def prox(self, Z: Array, step: Step) -> Array: ...


@runtime_checkable
class Scalable(Penalty, Protocol):
    """A penalty that can be multiplied with a weight."""

    def __mul__(self, weight: float) -> Penalty: ...


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A separable penalty as numbers, one of each per coordinate: what the kernels take."""

    l1: Array
    l2: Array
    lo: Array
    hi: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.l1, self.l2, self.lo, self.hi))

    @cached_property
    def fixed(self) -> Array:
        """Which coordinates can only have one value."""
        return np.asarray(self.lo == self.hi)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The numbers of the fixed coordinates."""
        return tuple(int(column) for column in np.flatnonzero(self.fixed))

    @cached_property
    def values(self) -> Array:
        """Of the fixed coordinates; 0 elsewhere."""
        return np.where(self.fixed, self.lo, 0.0)

    @cached_property
    def free(self) -> Array:
        """The numbers of the other coordinates."""
        return np.flatnonzero(~self.fixed)

    @cached_property
    def closed(self) -> bool:
        """Neither l1 nor a bound on the free coordinates: one Cholesky a row."""
        unbounded = np.isneginf(self.lo[self.free]).all() and np.isposinf(self.hi[self.free]).all()
        return bool(unbounded and not self.l1.any())

    @cached_property
    def remembered(self) -> dict[Any, Any]:
        """What was made of them before."""
        return {}

    def of_free(self, dtype: Any) -> tuple[Array, ...]:
        """The four numbers of the free coordinates."""
        if dtype not in self.remembered:
            self.remembered[dtype] = tuple(numbers[self.free].astype(dtype) for numbers in self)
        found: tuple[Array, ...] = self.remembered[dtype]
        return found


@dataclass(frozen=True)
class Separable:
    """l1 |x| + l2/2 x^2 with lo <= x <= hi, for each entry: six named penalties in one closed form."""

    l1: float = 0.0
    l2: float = 0.0
    lo: float = -np.inf
    hi: float = np.inf

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            weight = getattr(self, name)
            require(0 <= weight < np.inf, f"the {name} weight must be a finite number >= 0, got {weight}")
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

    @cached_property
    def remembered(self) -> dict[int, Coefficients | None]:
        """Its coefficients by width, once they were asked for."""
        return {}

    def coefficients(self, width: int) -> Coefficients:
        return Coefficients(*(np.full(width, getattr(self, f.name)) for f in fields(self)))

    def __str__(self) -> str:
        """In words that `parse` understands."""
        words = [f"{name}:{getattr(self, name)!r}" for name in ("l1", "l2") if getattr(self, name)]
        if self.lo > -np.inf or self.hi < np.inf:
            words.append(f"box:{self.lo!r},{self.hi!r}")
        return "+".join(words) or "none"

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


@dataclass(frozen=True)
class GroupL2:
    """weight sum_t ||x_t||_2 over the rows x_t: switches whole users or items off."""

    weight: float

    def __post_init__(self) -> None:
        require(0 <= self.weight < np.inf, f"the group weight must be a finite number >= 0, got {self.weight}")

    def value(self, X: Array) -> float:
        return float(self.weight * np.linalg.norm(X, axis=1).sum(dtype=np.float64))

    def prox(self, Z: Array, step: Step) -> Array:
        threshold = step * self.weight
        norms = np.linalg.norm(Z, axis=1, keepdims=True)
        keep = 1 - threshold / np.maximum(norms, max(threshold, np.finfo(Z.dtype).tiny))
        return np.asarray(keep * Z, Z.dtype)

    def __str__(self) -> str:
        return f"group-l2:{self.weight!r}"

    def __mul__(self, weight: float) -> GroupL2:
        return GroupL2(self.weight * weight)


@dataclass(frozen=True)
class Fixed:
    """Some columns fixed to a value each, any penalty on the rest: how biases live inside the model."""

    columns: tuple[int, ...]
    values: tuple[float, ...]
    rest: Any = field(default_factory=none)

    def __post_init__(self) -> None:
        counts = len(self.columns), len(self.values)
        require(counts[0] == counts[1], f"each fixed column needs one value, got {counts[0]} and {counts[1]}")
        require(len(set(self.columns)) == counts[0], f"a column can be fixed once only, got {self.columns}")

    def _free(self, width: int) -> list[int]:
        outside = [c for c in self.columns if not 0 <= c < width]
        require(not outside, f"fixed columns must lie in 0..{width - 1}, got {outside}")
        return [c for c in range(width) if c not in self.columns]

    def value(self, X: Array) -> float:
        free = self._free(X.shape[1])
        if X.shape[0] and not np.array_equal(X[:, list(self.columns)], self._block(X)):
            return np.inf
        return float(self.rest.value(X[:, free]))

    def prox(self, Z: Array, step: Step) -> Array:
        X = np.empty_like(Z)
        free = self._free(Z.shape[1])
        free_step = step[:, free] if np.ndim(step) == 2 else step
        X[:, free] = self.rest.prox(np.ascontiguousarray(Z[:, free]), free_step)
        X[:, list(self.columns)] = self._block(Z)
        return X

    def _block(self, X: Array) -> Array:
        return np.broadcast_to(np.asarray(self.values, X.dtype), (X.shape[0], len(self.values)))

    @cached_property
    def remembered(self) -> dict[int, Coefficients | None]:
        """Its coefficients by width, once they were asked for."""
        return {}

    def coefficients(self, width: int) -> Coefficients | None:
        rest = coefficients(self.rest, width)
        if rest is None:
            return None
        inner = Coefficients(*(numbers.copy() for numbers in rest))
        self._free(width)
        for column, fixed in zip(self.columns, self.values, strict=True):
            inner.l1[column] = inner.l2[column] = 0
            inner.lo[column] = inner.hi[column] = fixed
        return inner

    def __mul__(self, weight: float) -> Fixed:
        return Fixed(self.columns, self.values, self.rest * weight)

    def __add__(self, other: Any) -> Fixed:
        return Fixed(self.columns, self.values, other if self.rest == none() else self.rest + other)

    __radd__ = __add__

    def __str__(self) -> str:
        pairs = ",".join(f"{column}={value!r}" for column, value in zip(self.columns, self.values, strict=True))
        return f"fixed:{pairs}" if self.rest == none() else f"fixed:{pairs}+{self.rest}"


@dataclass(frozen=True)
class Coupling:
    """rho/2 (x - anchor)^2: what ties a client's W to V, with anchor V - Y/beta and rho = p beta."""

    rho: Any
    anchor: Array

    def value(self, X: Array) -> float:
        return float(np.sum(self.rho / 2 * np.square(X - self.anchor), dtype=np.float64))

    def prox(self, Z: Array, step: Step) -> Array:
        return np.asarray((Z + step * self.rho * self.anchor) / (1 + step * self.rho))


def coefficients(penalty: object, width: int) -> Coefficients | None:
    """The penalty as numbers for the kernels, or None where it has no such form."""
    if isinstance(penalty, Separable | Fixed):
        if width not in penalty.remembered:
            penalty.remembered[width] = penalty.coefficients(width)
        return penalty.remembered[width]
    make = getattr(penalty, "coefficients", None)
    return None if make is None else make(width)


def project(penalty: Penalty, X: Array) -> Array:
    """X inside the constraints of a penalty of ours; one of the user's own is trusted to take any start."""
    return penalty.prox(X, 0.0) if isinstance(penalty, Separable | GroupL2 | Fixed) else X


_NAMED: dict[str, tuple[Callable[..., Any], int]] = {
    "none": (none, 0),
    "l2": (l2, 1),
    "l1": (l1, 1),
    "elastic-net": (elastic_net, 2),
    "non-negative": (non_negative, 0),
    "box": (box, 2),
    "group-l2": (GroupL2, 1),
}


def parse(text: str) -> Penalty:
    """A penalty from words: `l2:0.1`, `elastic-net:0.1,0.2`, `box:0,5`, `non-negative+l1:0.01`."""
    first, *others = (_parse_term(term) for term in re.split(r"\+(?=[a-z])", text.replace(" ", "")))
    try:
        return sum(others, start=first)  # type: ignore[no-any-return]
    except TypeError:
        raise InputError(f"cannot add the penalties in {text!r}: group-l2 stands alone") from None


def _parse_fixed(pairs: str) -> Fixed:
    try:
        columns, values = zip(
            *((int(c), float(v)) for c, v in (pair.split("=") for pair in pairs.split(","))), strict=True
        )
    except ValueError:
        raise InputError(f"penalty 'fixed:{pairs}' should be fixed:COLUMN=VALUE with commas between") from None
    return Fixed(columns, values)


def _parse_term(term: str) -> Any:
    name, _, numbers = term.partition(":")
    if name == "fixed":
        return _parse_fixed(numbers)
    if name not in _NAMED:
        raise unknown("penalty", name, (*_NAMED, "fixed"))
    make, arity = _NAMED[name]
    try:
        arguments = [float(number) for number in numbers.split(",")] if numbers else []
    except ValueError:
        raise InputError(f"penalty {term!r}: {numbers!r} should be numbers with a comma between") from None
    require(len(arguments) == arity, f"penalty {name!r} takes {arity} number(s), got {len(arguments)} in {term!r}")
    return make(*arguments)
