"""Penalties R and constraints, for users and for items: `value(X)` and `prox(Z, step)`::

    prox(Z, step) = argmin_X  step R(X) + 1/2 ||X - Z||^2

The step is a number or, for separable penalties, an array of Z's shape with a step for each entry. A constraint is a
penalty whose value is infinite outside of its set. Any object with these two methods works as a penalty; one that also
has `coefficients` runs in the compiled kernels. Installed packages add penalties by name (`plugins`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol, runtime_checkable

import numpy as np

from fedmc.errors import InputError, require, unknown
from fedmc.problem import plugins
from fedmc.problem.separable import (
    CoefficientCache,
    Coefficients,
    Separable,
    Step,
    box,
    elastic_net,
    l1,
    l2,
    non_negative,
    none,
)
from fedmc.types import MAX_NUMBER, Array, number

__all__ = [
    "BUILT_IN_NAMES",
    "Coefficients",
    "Coupling",
    "Fixed",
    "GroupL2",
    "Penalty",
    "Scalable",
    "Separable",
    "Step",
    "box",
    "coefficients",
    "elastic_net",
    "l1",
    "l2",
    "names_in",
    "non_negative",
    "none",
    "parse",
    "project",
]


@runtime_checkable
class Penalty(Protocol):
    """The protocol of a penalty."""

    def value(self, X: Array) -> float: ...
    def prox(self, Z: Array, step: Step) -> Array: ...


@runtime_checkable
class Scalable(Penalty, Protocol):
    """A penalty that can be multiplied by a weight."""

    def __mul__(self, weight: float) -> Penalty: ...


@runtime_checkable
class HasCoefficients(Protocol):
    """A penalty that can run in the compiled kernels."""

    def coefficients(self, width: int) -> Coefficients | None: ...


@dataclass(frozen=True)
class GroupL2:
    """weight sum_t ||x_t||_2 over the rows x_t: can set whole users or items to 0."""

    weight: float

    def __post_init__(self) -> None:
        number("the group weight", self.weight, 0, MAX_NUMBER)

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
class Fixed(CoefficientCache):
    """Some columns fixed to one value each, and any penalty on the rest: represents the biases of the model."""

    columns: tuple[int, ...]
    values: tuple[float, ...]
    rest: Penalty = field(default_factory=none)

    def __post_init__(self) -> None:
        counts = len(self.columns), len(self.values)
        require(counts[0] == counts[1], f"each fixed column needs one value, got {counts[0]} and {counts[1]}")
        require(len(set(self.columns)) == counts[0], f"a column can be fixed once only, got {self.columns}")
        for value in self.values:
            number("the value of a fixed column", value)

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
        free_step = step[:, free] if isinstance(step, np.ndarray) and step.ndim == 2 else step
        X[:, free] = self.rest.prox(np.ascontiguousarray(Z[:, free]), free_step)
        X[:, list(self.columns)] = self._block(Z)
        return X

    def _block(self, X: Array) -> Array:
        return np.broadcast_to(np.asarray(self.values, X.dtype), (X.shape[0], len(self.values)))

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
        return Fixed(self.columns, self.values, operator.mul(self.rest, weight))

    def __add__(self, other: Penalty) -> Fixed:
        return Fixed(self.columns, self.values, other if self.rest == none() else operator.add(self.rest, other))

    __radd__ = __add__

    def __str__(self) -> str:
        pairs = ",".join(f"{column}={value!r}" for column, value in zip(self.columns, self.values, strict=True))
        return f"fixed:{pairs}" if self.rest == none() else f"fixed:{pairs}+{self.rest}"


@dataclass(frozen=True)
class Coupling:
    """rho/2 (x - anchor)^2: the coupling of a client's W to V, with anchor V - Y/beta and rho = p beta."""

    rho: Step
    anchor: Array

    def value(self, X: Array) -> float:
        return float(np.sum(self.rho / 2 * np.square(X - self.anchor), dtype=np.float64))

    def prox(self, Z: Array, step: Step) -> Array:
        return np.asarray((Z + step * self.rho * self.anchor) / (1 + step * self.rho))


def coefficients(penalty: object, width: int) -> Coefficients | None:
    """The penalty as numbers for the kernels, or None if it is not separable."""
    if isinstance(penalty, CoefficientCache):
        if width not in penalty.remembered:
            penalty.remembered[width] = penalty.coefficients(width)
        return penalty.remembered[width]
    return penalty.coefficients(width) if isinstance(penalty, HasCoefficients) else None


def project(penalty: Penalty, X: Array) -> Array:
    """X projected onto the constraints of a built-in penalty; other penalties must accept any starting point."""
    return penalty.prox(X, 0.0) if isinstance(penalty, Separable | GroupL2 | Fixed) else X


_BUILT_IN: dict[str, tuple[Callable[..., Penalty], int]] = {
    "none": (none, 0),
    "l2": (l2, 1),
    "l1": (l1, 1),
    "elastic-net": (elastic_net, 2),
    "non-negative": (non_negative, 0),
    "box": (box, 2),
    "group-l2": (GroupL2, 1),
}
BUILT_IN_NAMES = (*_BUILT_IN, "fixed")


def names_in(spec: str) -> list[str]:
    """The names of the penalties that a spec adds up: `non-negative+l1:0.01` has two."""
    return [term.partition(":")[0] for term in _terms(spec)]


def _terms(spec: str) -> list[str]:
    return re.split(r"\+(?=[a-z])", spec.replace(" ", ""))


def parse(spec: str) -> Penalty:
    """A penalty from its spec: `l2:0.1`, `elastic-net:0.1,0.2`, `box:0,5`, `non-negative+l1:0.01`."""
    terms = [_parse_term(term) for term in _terms(spec)]
    try:
        return reduce(operator.add, terms)
    except TypeError:
        raise InputError(
            f"cannot add the penalties in {spec!r}: group-l2 stands alone, and so do penalties without an __add__"
        ) from None


def _parse_fixed(pairs: str) -> Fixed:
    try:
        columns, values = zip(
            *((int(c), float(v)) for c, v in (pair.split("=") for pair in pairs.split(","))), strict=True
        )
    except ValueError:
        raise InputError(f"penalty 'fixed:{pairs}' should be fixed:COLUMN=VALUE with commas between") from None
    return Fixed(columns, values)


def _parse_term(term: str) -> Penalty:
    name, _, numbers = term.partition(":")
    if name == "fixed":
        return _parse_fixed(numbers)
    if name not in _BUILT_IN:
        return _installed(term, name)
    make, arity = _BUILT_IN[name]
    arguments = plugins.numbers(f"penalty {term!r}", numbers)
    require(len(arguments) == arity, f"penalty {name!r} takes {arity} number(s), got {len(arguments)} in {term!r}")
    return make(*arguments)


def _installed(term: str, name: str) -> Penalty:
    """A penalty of an installed package."""
    made = plugins.build(plugins.PENALTIES, term)
    if made is None:
        raise unknown("penalty", name, (*BUILT_IN_NAMES, *plugins.names(plugins.PENALTIES)))
    if not isinstance(made, Penalty):
        raise InputError(f"penalty {term!r} needs the methods value and prox, and {type(made).__name__} lacks one")
    return made
