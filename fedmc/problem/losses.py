"""Losses: how far a prediction x is from a rating m. The square loss is the fast path.

A user's own loss is any object with::

    value(x, m), gradient(x, m)    elementwise, the gradient with respect to x
    curvature                      an upper bound on the second derivative, which scales the Lipschitz constants
    link(x)                        maps from the model's scale to the rating's scale (where RMSE is measured)

Installed packages add losses by name (`plugins`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedmc.errors import InputError, quoted, require, unknown
from fedmc.problem import plugins
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number


@runtime_checkable
class Loss(Protocol):
    """The protocol of a loss."""

    @property
    def curvature(self) -> float: ...
    def value(self, x: Array, m: Array) -> Array: ...
    def gradient(self, x: Array, m: Array) -> Array: ...
    def link(self, x: Array) -> Array: ...


@dataclass(frozen=True)
class Square:
    """``1/2 (x - m)^2``"""

    curvature: float = 1.0

    def __str__(self) -> str:
        return "square"

    def value(self, x: Array, m: Array) -> Array:
        return np.asarray(np.square(x - m) / 2)

    def gradient(self, x: Array, m: Array) -> Array:
        return x - m

    def link(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Huber:
    """``1/2 e^2 if |e| <= delta, else delta (|e| - delta/2)``, with e = x - m: outliers have bounded influence."""

    delta: float = 1.0
    curvature: float = 1.0

    def __str__(self) -> str:
        return f"huber:{self.delta!r}"

    def __post_init__(self) -> None:
        number("Huber's delta", self.delta, MIN_POSITIVE, MAX_NUMBER)

    def value(self, x: Array, m: Array) -> Array:
        e = np.abs(x - m)
        return np.asarray(np.where(e <= self.delta, e * e / 2, self.delta * (e - self.delta / 2)))

    def gradient(self, x: Array, m: Array) -> Array:
        return np.asarray(np.clip(x - m, -self.delta, self.delta))

    def link(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Logistic:
    """``log(1 + exp(x)) - m x`` for m in [0, 1]: likes and dislikes; predictions are probabilities."""

    curvature: float = 0.25
    domain = (0.0, 1.0)

    def __str__(self) -> str:
        return "logistic"

    def value(self, x: Array, m: Array) -> Array:
        return np.asarray(np.logaddexp(0, x) - m * x)

    def gradient(self, x: Array, m: Array) -> Array:
        return self.link(x) - m

    def link(self, x: Array) -> Array:
        return np.asarray((1 + np.tanh(x / 2)) / 2)


_BUILT_IN: dict[str, Callable[[], Loss]] = {"square": Square, "huber": Huber, "logistic": Logistic}
BUILT_IN_NAMES = tuple(_BUILT_IN)


def parse(spec: str) -> Loss:
    """A loss from its spec: `square`, `huber`, `huber:0.5`, `logistic`, or the name of one that a package adds."""
    name, _, number = spec.partition(":")
    if name not in _BUILT_IN:
        return _installed(spec, name)
    if not number:
        return _BUILT_IN[name]()
    require(name == "huber", f"loss {name!r} takes no number, got {spec!r}")
    try:
        delta = float(number)
    except ValueError:
        raise InputError(f"loss {spec!r}: {number!r} is not a number") from None
    return Huber(delta)


def check(loss: object) -> None:
    """Refuse a loss of one's own that lacks a part, or whose parts do not fit together."""
    parts = "value, gradient, curvature and link"
    if not isinstance(loss, Loss):
        raise InputError(f"a loss needs {parts}, got {quoted(loss)}")
    number("the curvature of a loss, a bound on its second derivative,", loss.curvature, MIN_POSITIVE, MAX_NUMBER)
    x = np.array([0.25, 0.75])
    shape = np.shape(loss.gradient(x, x[::-1].copy()))
    require(shape == x.shape, f"a loss's gradient(x, m) must have the shape of x, {x.shape}, got {shape}")


def _installed(spec: str, name: str) -> Loss:
    """A loss of an installed package."""
    made = plugins.build(plugins.LOSSES, spec)
    if made is None:
        raise unknown("loss", name, (*_BUILT_IN, *plugins.names(plugins.LOSSES)))
    if not isinstance(made, Loss):
        parts = "value, gradient, curvature and link"
        raise InputError(f"loss {spec!r} needs {parts}, and {type(made).__name__} lacks one of them")
    return made
