"""Every penalty: right prox, right value, words and numbers that agree."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize, minimize_scalar

from fedmc.errors import InputError
from fedmc.problem import penalties
from fedmc.problem.penalties import (
    Coupling,
    Fixed,
    GroupL2,
    Penalty,
    box,
    coefficients,
    elastic_net,
    l1,
    l2,
    non_negative,
    none,
    parse,
)
from tests.conftest import examples

ANCHOR = np.linspace(-1, 1, 12).reshape(4, 3)
ALL = {
    "none": none(),
    "l2": l2(0.7),
    "l1": l1(0.6),
    "elastic net": elastic_net(0.4, 0.9),
    "non-negative": non_negative(),
    "box": box(-0.5, 0.8),
    "box without 0": box(0.5, 0.8),
    "l1 and box": l1(0.3) + box(-1, 0.4),
    "group": GroupL2(0.8),
    "fixed": Fixed((1,), (1.0,), l1(0.5)),
    "fixed group": Fixed((0,), (-2.0,), GroupL2(0.5)),
    "coupling": Coupling(0.7, ANCHOR),
}
SEPARABLE = [name for name in ALL if "group" not in name and name not in ("fixed", "coupling")]
matrices = arrays(np.float64, (4, 3), elements=st.floats(-5, 5, allow_subnormal=False))
steps = st.floats(0.01, 10)
anyone = pytest.mark.parametrize("penalty", ALL.values(), ids=ALL.keys())


@anyone
@given(Z=matrices, step=steps)
@examples(50)
def test_prox_is_no_worse_than_any_other_point(penalty, Z, step):
    """The definition: X = prox(Z) minimises step R(X) + 1/2 ||X - Z||^2, here against random rivals."""
    X = penalty.prox(Z, step)
    value = step * penalty.value(X) + np.sum((X - Z) ** 2) / 2
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1):
        rival = X + scale * rng.normal(size=Z.shape)
        if isinstance(penalty, Fixed):
            rival[:, list(penalty.columns)] = penalty.values
        if isinstance(penalty, penalties.Separable):
            rival = np.clip(rival, penalty.lo, penalty.hi)
        assert value <= step * penalty.value(rival) + np.sum((rival - Z) ** 2) / 2 + 1e-9


@pytest.mark.parametrize("name", SEPARABLE)
@given(z=st.floats(-5, 5), step=steps)
@examples(30)
def test_separable_prox_against_a_numeric_minimiser(name, z, step):
    penalty = ALL[name]
    low, high = max(penalty.lo, -20), min(penalty.hi, 20)
    goal = lambda x: step * (penalty.l1 * abs(x) + penalty.l2 / 2 * x * x) + (x - z) ** 2 / 2  # noqa: E731
    found = minimize_scalar(goal, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x
    assert penalty.prox(np.array([[z]]), step)[0, 0] == pytest.approx(found, abs=1e-5)


@given(z=arrays(np.float64, 3, elements=st.floats(-5, 5, allow_subnormal=False)), step=steps)
@examples(30)
def test_group_prox_against_a_numeric_minimiser(z, step):
    goal = lambda x: step * 0.8 * np.sqrt(x @ x + 1e-18) + np.sum((x - z) ** 2) / 2  # noqa: E731
    found = min((minimize(goal, start).x for start in (z, z / 2, np.full(3, 1e-3))), key=goal)
    X = GroupL2(0.8).prox(z[None], step)[0]
    assert goal(X) <= goal(found) + 1e-8
    np.testing.assert_allclose(X, found, atol=2e-3)


@anyone
@given(Z=matrices, other=matrices, step=steps)
@examples(50)
def test_prox_is_firmly_non_expansive(penalty, Z, other, step):
    P, Q = penalty.prox(Z, step), penalty.prox(other, step)
    assert np.sum((P - Q) ** 2) <= np.sum((P - Q) * (Z - other)) + 1e-9


def row_ball(radius):
    """Projection of each row on the ball: the prox of the group penalty's conjugate."""
    return lambda Z: Z / np.maximum(1, np.linalg.norm(Z, axis=1, keepdims=True) / radius)


CONJUGATE_PROX = {  # prox_{R*/s}(z), each derived by hand from the conjugate
    "none": lambda Z, s: np.zeros_like(Z),
    "l2": lambda Z, s: Z / (1 + 1 / (s * 0.7)),
    "l1": lambda Z, s: np.clip(Z, -0.6, 0.6),
    "elastic net": lambda Z, s: Z - np.sign(Z) * np.maximum(np.abs(Z) - 0.4, 0) / (1 + s * 0.9),
    "non-negative": lambda Z, s: np.minimum(Z, 0),
    "box": lambda Z, s: Z - np.clip(Z, -0.5 / s, 0.8 / s),
    "group": lambda Z, s: row_ball(0.8)(Z),
}


@pytest.mark.parametrize("name", CONJUGATE_PROX)
@given(Z=matrices, step=steps)
@examples(50)
def test_moreau(name, Z, step):
    """z = prox_{sR}(z) + s prox_{R*/s}(z/s)"""
    whole = ALL[name].prox(Z, step) + step * CONJUGATE_PROX[name](Z / step, step)
    np.testing.assert_allclose(whole, Z, atol=1e-9)


@anyone
def test_inputs_stay_and_types_stay(penalty):
    for dtype in (np.float32, np.float64):
        Z = np.random.default_rng(0).normal(size=(4, 3)).astype(dtype)
        copy = Z.copy()
        X = penalty.prox(Z, 0.5)
        assert np.array_equal(Z, copy)
        assert X.shape == Z.shape
        if not isinstance(penalty, Coupling):
            assert X.dtype == dtype


@anyone
def test_all_are_penalties_and_finite_where_prox_leads(penalty):
    assert isinstance(penalty, Penalty)
    Z = np.random.default_rng(1).normal(size=(4, 3))
    assert np.isfinite(penalty.value(penalty.prox(Z, 0.3)))


def test_values():
    X = np.array([[3.0, -4.0]])
    assert l2(2).value(X) == 25
    assert l1(2).value(X) == 14
    assert elastic_net(2, 2).value(X) == 39
    assert GroupL2(2).value(X) == 10
    assert non_negative().value(X) == np.inf
    assert box(-4, 3).value(X) == 0
    assert Fixed((0,), (3.0,), l1(1)).value(X) == 4
    assert Fixed((0,), (2.0,), l1(1)).value(X) == np.inf
    assert Coupling(2.0, np.zeros((1, 2))).value(X) == 25


def test_a_step_for_each_entry():
    Z = np.array([[1.0, 2.0], [3.0, -1.0]])
    step = np.array([[0.1, 1.0], [0.5, 2.0]])
    for penalty in (l1(0.7), l2(0.5), Fixed((0,), (1.0,), l1(0.7))):
        whole = penalty.prox(Z, step)
        for i, j in np.ndindex(2, 2):
            assert whole[i, j] == penalty.prox(Z, float(step[i, j]))[i, j]


@pytest.mark.parametrize(
    ("words", "penalty"),
    [
        ("none", none()),
        ("l2:0.1", l2(0.1)),
        ("l1:1e-6", l1(1e-6)),
        ("l2:1e+2", l2(100)),
        ("elastic-net:0.1,0.2", elastic_net(0.1, 0.2)),
        ("non-negative", non_negative()),
        ("box:-1,5", box(-1, 5)),
        ("group-l2:0.3", GroupL2(0.3)),
        ("non-negative + l1:0.01", non_negative() + l1(0.01)),
        ("fixed:0=1,2=-3.5", Fixed((0, 2), (1.0, -3.5))),
        ("fixed:0=1+l2:0.5", Fixed((0,), (1.0,), l2(0.5))),
        ("l2:0.5+fixed:0=1", Fixed((0,), (1.0,), l2(0.5))),
        ("fixed:1=2+group-l2:0.5", Fixed((1,), (2.0,), GroupL2(0.5))),
    ],
)
def test_words(words, penalty):
    assert parse(words) == penalty
    assert parse(str(penalty)) == penalty


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("l3:1", "unknown penalty 'l3'"),
        ("l2", "takes 1 number"),
        ("l2:1,2", "takes 1 number"),
        ("l2:a", "should be numbers"),
        ("l2:-1", "must be a number from 0 to 1e+12"),
        ("l1:inf", "must be a number from 0 to 1e+12"),
        ("box:2,1", "lo <= hi"),
        ("l1:1+group-l2:1", "stands alone"),
        ("", "unknown penalty ''"),
        ("fixed:1", "fixed:COLUMN=VALUE"),
    ],
)
def test_wrong_words(words, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse(words)


def test_fixed_refuses_what_makes_no_sense():
    with pytest.raises(InputError, match="one value"):
        Fixed((0, 1), (1.0,))
    with pytest.raises(InputError, match="once only"):
        Fixed((0, 0), (1.0, 2.0))
    with pytest.raises(InputError, match=r"0\.\.2"):
        Fixed((3,), (1.0,)).prox(np.zeros((2, 3)), 1.0)


def test_coefficients():
    numbers = coefficients(Fixed((1,), (2.0,), elastic_net(0.1, 0.2)), 3)
    assert numbers.l1.tolist() == [0.1, 0, 0.1]
    assert numbers.l2.tolist() == [0.2, 0, 0.2]
    assert numbers.lo.tolist() == [-np.inf, 2, -np.inf]
    assert numbers.hi.tolist() == [np.inf, 2, np.inf]
    assert coefficients(GroupL2(1), 3) is None
    assert coefficients(Fixed((0,), (1.0,), GroupL2(1)), 3) is None
