"""Losses other than square: the majoriser, its steps and where they end, and the work they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse

from fedmc.kernels import majorise as kernel
from fedmc.kernels import passes, reference
from fedmc.problem import majorise, penalties, subproblem
from fedmc.problem.losses import Huber, Logistic, Square
from fedmc.problem.penalties import Coupling
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from tests.conftest import examples


@dataclass(frozen=True)
class PseudoHuber:
    """A smooth loss of one's own."""

    curvature: float = 1.0

    def value(self, x, m):
        return np.sqrt(1 + np.square(x - m)) - 1

    def gradient(self, x, m):
        return (x - m) / np.sqrt(1 + np.square(x - m))

    def link(self, x):
        return x


LOSSES = [Huber(1.0), Huber(0.3), Huber(0.02), Logistic(), PseudoHuber()]
SPECS = [
    "l2:0.7", "none", "l1:0.3+l2:0.2", "non-negative", "box:-0.5,0.4+l2:0.1", "fixed:0=1+l2:1", "fixed:1=1+l1:0.2",
]  # fmt: skip
any_loss = st.sampled_from(LOSSES)


def drawn(seed, loss, rows=9, columns=14, width=4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, columns)) < rng.choice([0.1, 0.5, 1.0])
    ratings = rng.integers(0, 2, mask.shape) if isinstance(loss, Logistic) else rng.normal(0, 1.5, mask.shape)
    coo = sparse.coo_array(mask)
    matrix = sparse.csr_array((ratings[coo.row, coo.col].astype(dtype), (coo.row, coo.col)), shape=mask.shape)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    F, X = rng.normal(size=(columns, width)).astype(dtype), rng.normal(size=(rows, width)).astype(dtype)
    return Problem(matrix, loss, Scaling()), F, X, rng


def coupled(rng, X, kind):
    """No coupling, one weight, or a weight for each row and coordinate."""
    rho = [None, 0.8, rng.random(X.shape) + 0.1][kind]
    return None if rho is None else Coupling(rho, rng.normal(size=X.shape))


def objective(problem, F, X, penalty, coupling=None):
    return subproblem.loss_value(problem, F, X) + penalty.value(X) + (coupling.value(X) if coupling else 0)


@given(loss=any_loss, x=st.floats(-8, 8), z=st.floats(-8, 8), m=st.sampled_from([0.0, 0.4, 1.0]))
@examples(150)
def test_the_quadratic_lies_above_the_loss_and_touches_it(loss, x, z, m):
    x, z, m = np.array([x]), np.array([z]), np.array([m])
    slope, c = loss.gradient(x, m), loss.curvature

    def quadratic(at):
        return loss.value(x, m) + slope * (at - x) + c / 2 * np.square(at - x)

    assert (loss.value(z, m) <= quadratic(z) + 1e-9 * (1 + quadratic(z))).all()
    np.testing.assert_allclose(quadratic(x), loss.value(x, m))
    h = 1e-6
    np.testing.assert_allclose((quadratic(x + h) - quadratic(x - h)) / (2 * h), slope, atol=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1), loss=any_loss, spec=st.sampled_from(SPECS), coupling=st.integers(0, 2),
    width=st.integers(2, 19), dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
@examples(25)
def test_a_step_is_that_of_its_numpy_twin(seed, loss, spec, coupling, width, dtype):
    problem, F, X, rng = drawn(seed, loss, width=width, dtype=dtype)
    numbers = penalties.coefficients(penalties.parse(spec), width)
    coupling = coupled(rng, X, coupling) or (None if "l2" in spec else Coupling(0.5, X))  # G alone may be singular
    indptr, indices, m = problem.matrix.indptr, problem.matrix.indices, problem.matrix.data
    tables = majorise._quadratics(F, numbers, coupling, loss.curvature, len(X))
    tables = kernel.factorised(indptr, indices, tables)
    size, free = tables.size, numbers.free
    X[:, numbers.fixed] = numbers.values[numbers.fixed]
    at = passes.predictions(indptr, indices, F, X)
    pulls = np.asarray(loss.gradient(at, m) / loss.curvature, dtype)
    start = passes.lines(X, free)
    moves = kernel.Iterates(start.copy(), start.copy(), np.ones(len(X)), np.ones(len(X), np.bool_))
    plain = [part[:, :size] for part in (tables.D, tables.q)]
    bounds = tables.l1, tables.lo, tables.hi
    twin = reference.majorised_rows(indptr, indices, pulls, F[:, free], X[:, free], *plain, *bounds, numbers.closed)
    at_Y = at.copy()
    kernel.step(np.arange(len(X)), indptr, indices, pulls, at, at_Y, tables, moves, 1e-6)
    close = {"rtol": 5e-3, "atol": 5e-3} if dtype == np.float32 else {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(moves.X[:, :size], twin, **close)
    np.testing.assert_array_equal(moves.X, moves.Y)  # the first step has no momentum
    X[:, free] = moves.X[:, :size]
    np.testing.assert_allclose(at_Y, reference.predictions(indptr, indices, F, X), **close)


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 19), dtype=st.sampled_from([np.float32, np.float64]))
@examples(40)
def test_passes_are_those_of_their_numpy_twins(seed, width, dtype):
    problem, F, X, _ = drawn(seed, Square(), width=width, dtype=dtype)
    indptr, indices, pulls = problem.matrix.indptr, problem.matrix.indices, problem.matrix.data
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for name, given_ in (("predictions", (F, X)), ("pulled", (pulls, F))):
        fast = getattr(passes, name)(indptr, indices, *given_)
        np.testing.assert_allclose(fast, getattr(reference, name)(indptr, indices, *given_), **close)


@given(seed=st.integers(0, 2**32 - 1), loss=any_loss, l2=st.floats(0.01, 3), bounded=st.booleans())
@examples(60)
def test_a_row_ends_where_scipy_does(seed, loss, l2, bounded):
    problem, F, X, _ = drawn(seed, loss, rows=1)
    penalty = penalties.parse(f"box:-0.4,0.5+l2:{l2!r}" if bounded else f"l2:{l2!r}")
    found = subproblem.minimise(problem, F, X, penalty, 1e-12)

    def value_and_slope(x):
        row = x[None]
        return objective(problem, F, row, penalty), (subproblem.gradient(problem, F, row) + l2 * row)[0]

    start, bounds = np.clip(X[0], -0.4, 0.5), [(-0.4, 0.5) if bounded else (None, None)] * X.shape[1]
    options = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000}
    theirs = optimize.minimize(value_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    assert objective(problem, F, found, penalty) <= theirs.fun + 1e-9 * (1 + abs(theirs.fun))
    np.testing.assert_allclose(found[0], theirs.x, atol=2e-4)


@given(seed=st.integers(0, 2**32 - 1), loss=any_loss, coupling=st.integers(0, 2))
@examples(25)
def test_l1_ends_where_no_coordinate_can_gain(seed, loss, coupling):
    problem, F, X, rng = drawn(seed, loss)
    penalty, coupling = penalties.parse("l1:0.4+l2:0.1"), coupled(rng, X, coupling)
    found = subproblem.minimise(problem, F, X, penalty, 1e-12, coupling)
    slope = subproblem.gradient(problem, F, found) + 0.1 * found
    if coupling is not None:
        slope = slope + coupling.rho * (found - coupling.anchor)
    at_zero = found == 0
    assert (np.abs(slope[at_zero]) <= 0.4 + 1e-6).all()
    np.testing.assert_allclose(slope[~at_zero], -0.4 * np.sign(found[~at_zero]), atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), loss=any_loss, spec=st.sampled_from(SPECS))
@examples(25)
def test_steps_without_momentum_never_raise_the_objective_and_momentum_ends_as_low(seed, loss, spec):
    problem, F, X, _ = drawn(seed, loss)
    penalty = penalties.parse(spec)
    X = np.asarray(penalty.prox(X, 0.0))
    end = objective(problem, F, subproblem.minimise(problem, F, X, penalty, 1e-10), penalty)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(majorise, "MAX_STEPS", 1)
        before = objective(problem, F, X, penalty)
        for _ in range(30):
            X = subproblem.minimise(problem, F, X, penalty, 1e-10)
            now = objective(problem, F, X, penalty)
            assert now <= before + 1e-9 * (1 + abs(before))
            before = now
    assert end <= before + 1e-8 * (1 + abs(before))


@given(seed=st.integers(0, 2**32 - 1), loss=any_loss, spec=st.sampled_from(SPECS), together=st.sampled_from([1, 3, 99]))
@examples(25)
def test_rows_end_on_their_own(seed, loss, spec, together):
    """A row's result depends neither on the other rows nor on how many are solved in one block."""
    problem, F, X, rng = drawn(seed, loss)
    penalty, coupling = penalties.parse(spec), coupled(rng, X, 2)
    whole = subproblem.minimise(problem, F, X, penalty, 1e-3, coupling)
    for row in range(len(X)):
        one = problem._replace(matrix=problem.matrix[[row]])
        mine = Coupling(coupling.rho[[row]], coupling.anchor[[row]])
        np.testing.assert_array_equal(subproblem.minimise(one, F, X[[row]], penalty, 1e-3, mine)[0], whole[row])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(majorise, "BYTES", together * 4 * 4 * 8)
        np.testing.assert_array_equal(subproblem.minimise(problem, F, X, penalty, 1e-3, coupling), whole)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_penalty_without_numbers_ends_where_the_same_with_numbers_does(loss):
    class Hidden:
        value, prox = penalties.parse("elastic-net:0.3,0.4").value, penalties.parse("elastic-net:0.3,0.4").prox

    problem, F, X, _ = drawn(3, loss)
    known = subproblem.minimise(problem, F, X, penalties.parse("elastic-net:0.3,0.4"), 1e-10)
    np.testing.assert_allclose(subproblem.minimise(problem, F, X, Hidden(), 1e-8), known, atol=1e-5)


def test_factors_that_are_not_finite_end_at_once():
    problem, F, X, _ = drawn(1, Huber(0.5))
    F[:] = np.nan
    assert np.isnan(subproblem.minimise(problem, F, X, penalties.parse("l2:1"))).any()
