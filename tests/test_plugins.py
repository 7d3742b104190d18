"""Penalties and losses that installed packages add by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from fedmc.errors import InputError
from fedmc.problem import losses, penalties, plugins
from fedmc.problem.losses import Loss, Square
from fedmc.problem.penalties import Fixed, Penalty


@dataclass(frozen=True)
class Ridge:
    """A penalty with two numbers, as a package would write it."""

    weight: float
    centre: float = 0.0

    def value(self, X):
        return float(self.weight / 2 * np.square(X - self.centre).sum())

    def prox(self, Z, step):
        return (Z + step * self.weight * self.centre) / (1 + step * self.weight)

    def __str__(self):
        return f"ridge:{self.weight!r},{self.centre!r}"


class Nameless(Ridge):
    __str__ = object.__str__


@dataclass(frozen=True)
class Steep:
    factor: float = 2.0

    @property
    def curvature(self):
        return self.factor

    def value(self, x, m):
        return self.factor * np.square(x - m) / 2

    def gradient(self, x, m):
        return self.factor * (x - m)

    def link(self, x):
        return x

    def __str__(self):
        return f"steep:{self.factor!r}"


not_callable = 3

OFFERED = {
    "fedmc.penalties": {
        "ridge": "Ridge",
        "nameless": "Nameless",
        "steep": "Steep",
        "number": "not_callable",
        "gone": "NoSuchName",
        "l2": "Ridge",
    },
    "fedmc.losses": {"steep": "Steep", "ridge": "Ridge"},
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The entry points above, as if a package with them were installed."""

    def entry_points(*, group):
        offered = OFFERED.get(group, {})
        points = [EntryPoint(name, f"{__name__}:{target}", group) for name, target in offered.items()]
        return [*points, EntryPoint("absent", "no_such_package:thing", group)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    plugins._installed.cache_clear()
    yield
    plugins._installed.cache_clear()


def test_names_and_objects_are_found():
    assert plugins.names("fedmc.losses") == ["absent", "ridge", "steep"]
    assert plugins.find("fedmc.losses", "steep") is Steep
    assert plugins.find("fedmc.losses", "nobody's") is None


def test_a_penalty_by_name_and_numbers():
    penalty = penalties.parse("ridge:0.5,2")
    assert penalty == Ridge(0.5, 2.0)
    assert isinstance(penalty, Penalty)
    assert penalties.parse("ridge:1") == Ridge(1.0)
    assert penalties.parse(str(penalty)) == penalty


def test_a_penalty_beside_fixed_columns():
    penalty = penalties.parse("fixed:0=1+ridge:0.5,2")
    assert penalty == Fixed((0,), (1.0,), Ridge(0.5, 2.0))
    assert penalties.parse(str(penalty)) == penalty


def test_a_loss_by_name_and_numbers():
    assert losses.parse("steep") == Steep()
    assert losses.parse("steep:3") == Steep(3.0)
    assert isinstance(losses.parse("steep"), Loss)
    assert losses.parse("square") == Square()


def test_built_in_names_come_first():
    assert penalties.parse("l2:0.5") == penalties.l2(0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mine", r"unknown penalty 'mine': choose one of none, l2.*fixed.*absent.*nameless.*ridge"),
        ("ridge:x", "'x' should be numbers"),
        ("ridge:1,2,3", r"'ridge:1,2,3' cannot be made of the numbers \[1.0, 2.0, 3.0\]: .*takes from 2 to 3"),
        ("ridge", "missing 1 required"),
        ("nameless:1", "give Nameless a __str__ that returns a spec such as 'nameless:1'"),
        ("steep", "needs the methods value and prox, and Steep lacks one"),
        ("number", "must be a function or a class, got int"),
        ("gone", "'gone' of package .* cannot be loaded .*NoSuchName"),
        ("absent:1", "'absent' of package no_such_package cannot be loaded .*ModuleNotFoundError"),
        ("ridge:1+l1:1", "cannot add the penalties"),
    ],
)
def test_refusals_of_penalties(words, message):
    with pytest.raises(InputError, match=message):
        penalties.parse(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mine", "unknown loss 'mine': choose one of square, huber, logistic, absent, ridge, steep"),
        ("ridge:1", "needs value, gradient, curvature and link, and Ridge lacks one of them"),
        ("steep:x", "'x' should be numbers"),
    ],
)
def test_refusals_of_losses(words, message):
    with pytest.raises(InputError, match=message):
        losses.parse(words)


def test_two_packages_with_one_name(monkeypatch):
    pair = [EntryPoint("ridge", f"{name}:thing", "fedmc.penalties") for name in ("one", "two")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: pair)
    plugins._installed.cache_clear()
    with pytest.raises(InputError, match="is offered by one, two: uninstall all but one"):
        penalties.parse("ridge:1")
