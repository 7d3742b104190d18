"""Every kernel against its numpy twin, also with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.kernels import reference, solves, steps, threads
from tests.conftest import examples

TOLERANCE = {np.float32: 2e-4, np.float64: 1e-10}


@st.composite
def problems(draw):
    """Sparse ratings with empty, short and long rows, factors, and a coupling or none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    width = draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    mask = rng.random((rows, columns)) < density
    matrix = sparse.csr_array(np.where(mask, rng.integers(1, 6, mask.shape), 0).astype(dtype))
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    shift, inv = (3.5, 0.9) if draw(st.booleans()) else (0.0, 1.0)
    ratings = matrix.indptr, matrix.indices, matrix.data, dtype(shift), dtype(inv)
    F, X = (rng.normal(size=(n, width)).astype(dtype) for n in (columns, rows))
    if draw(st.booleans()):
        rho, anchor = (
            (rng.random((rows, width)) + 0.1).astype(dtype),
            rng.normal(size=(rows, width)).astype(dtype),
        )
    else:
        rho = anchor = np.empty((0, width), dtype)
    return ratings, F, X, rho, anchor, dtype, rng


def check(fast, slow, dtype):
    np.testing.assert_allclose(fast, slow, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=False)


PENALTIES = st.sampled_from(
    [
        (0, 0, -np.inf, np.inf),
        (0.5, 0, -np.inf, np.inf),
        (0, 0.7, -np.inf, np.inf),
        (0.2, 0.3, 0, np.inf),
        (0, 0, -0.5, 0.5),
    ]
)


@given(problem=problems(), penalty=PENALTIES, N=st.integers(1, 12), passes=st.booleans())
@examples(150)
def test_prox_steps(problem, penalty, N, passes):
    ratings, F, X, rho, anchor, dtype, _ = problem
    numbers = [np.full(X.shape[1], value, dtype) for value in penalty]
    L = dtype(max(np.linalg.norm(F.T @ F), 1e-3))
    before = X.copy()
    fast = steps.prox_steps(*ratings, F, X, rho, anchor, *numbers, L, N, passes)
    assert np.array_equal(X, before)
    assert fast.dtype == dtype
    check(fast, reference.prox_steps(*ratings, F, X, rho, anchor, *numbers, L, N, passes), dtype)


@given(problem=problems(), fixed=st.integers(0, 3))
@examples(150)
def test_exact_rows(problem, fixed):
    ratings, F, X, rho, anchor, dtype, rng = problem
    width = X.shape[1]
    free = np.sort(rng.permutation(width)[: max(1, width - fixed)])
    numbers = [np.full(len(free), value, dtype) for value in (0, 0.5, -np.inf, np.inf)]
    fast = solves.exact_rows(*ratings, F, X, rho, anchor, *numbers, free, True)
    slow = reference.exact_rows(*ratings, F, X, rho, anchor, *numbers, free, True)
    np.testing.assert_allclose(fast, slow, rtol=50 * TOLERANCE[dtype], atol=50 * TOLERANCE[dtype], equal_nan=False)


COMPOSITE = st.sampled_from([(0.5, 0.4, -np.inf, np.inf), (0.2, 0.4, 0, np.inf), (0, 0.4, -0.5, 0.5), (0, 0.4, 0.1, 9)])


@given(problem=problems(), penalty=COMPOSITE, fixed=st.integers(0, 3))
@examples(40)
def test_coordinate_descent_ends_where_many_proximal_steps_do(problem, penalty, fixed):
    ratings, F, X, rho, anchor, dtype, rng = problem
    width = X.shape[1]
    free = np.sort(rng.permutation(width)[: max(1, width - fixed)])
    numbers = [np.full(len(free), value, dtype) for value in penalty]
    fast = solves.exact_rows(*ratings, F, X, rho, anchor, *numbers, free, False)
    slow = reference.exact_rows(*ratings, F, X, rho, anchor, *numbers, free, False)
    tolerance = {np.float32: 5e-3, np.float64: 1e-7}[dtype]
    np.testing.assert_allclose(fast, slow, rtol=tolerance, atol=tolerance, equal_nan=False)


@given(problem=problems(), fixed=st.integers(0, 3))
@examples(80)
def test_packed_grams(problem, fixed):
    ratings, F, _, _, _, dtype, rng = problem
    width = F.shape[1]
    free = np.sort(rng.permutation(width)[: max(1, width - fixed)])
    values = np.where(np.isin(np.arange(width), free), 0, rng.normal(size=width)).astype(dtype)
    fast = solves.packed_grams(*ratings, F, values, free)
    assert fast.shape[1] == len(free) * (len(free) + 3) // 2
    tolerance = 50 * TOLERANCE[dtype]
    np.testing.assert_allclose(
        fast, reference.packed_grams(*ratings, F, values, free), rtol=tolerance, atol=tolerance, equal_nan=False
    )


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 7), penalty=COMPOSITE, closed=st.booleans())
@examples(40)
def test_solve_packed(seed, size, penalty, closed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(5, size))
    F = rng.normal(size=(5, 4, size))
    G = np.einsum("jka,jkb->jab", F, F)
    lower = np.tril_indices(size)
    S = np.concatenate([G[:, lower[0], lower[1]], rng.normal(size=(5, size))], axis=1)
    numbers = [np.full(size, float(value)) for value in ((0, 0.4, -np.inf, np.inf) if closed else penalty)]
    fast = solves.solve_packed(S, X, *numbers, closed)
    np.testing.assert_allclose(
        fast, reference.solve_packed(S, X, *numbers, closed), rtol=1e-7, atol=1e-7, equal_nan=False
    )


def test_coordinate_descent_without_ratings_or_weight_goes_to_the_nearest_of_zero():
    numbers = [np.full(2, value) for value in (0.0, 0.0, 1.0, 3.0)]
    assert (solves.solve_packed(np.zeros((1, 5)), np.full((1, 2), 2.0), *numbers, False) == 1).all()


def test_exact_rows_leaves_out_directions_that_no_rating_sees():
    """One rating and two factors, no penalty: a least-squares answer without a blow-up."""
    ratings = np.array([0, 1], np.int32), np.array([0], np.int32), np.array([2.0]), 0.0, 1.0
    nothing = np.empty((0, 2))
    F = np.array([[1.0, 1.0]])
    numbers = [np.zeros(2)] * 4
    x = solves.exact_rows(*ratings, F, np.zeros((1, 2)), nothing, nothing, *numbers, np.arange(2), True)[0]
    assert F[0] @ x == pytest.approx(2)
    assert np.abs(x).max() <= 2


@given(problem=problems())
@examples(60)
def test_gradient_rows_and_squared_errors(problem):
    ratings, F, X, _, _, dtype, _ = problem
    tolerance = 20 * TOLERANCE[dtype]
    for name in ("gradient_rows", "squared_errors"):
        fast, slow = getattr(steps, name)(*ratings, F, X), getattr(reference, name)(*ratings, F, X)
        np.testing.assert_allclose(fast, slow, rtol=tolerance, atol=tolerance, equal_nan=False)


def test_gram_and_residual_form_agree():
    """A row with few ratings and high rank takes the residual form, one with many the Gram form."""
    rng = np.random.default_rng(0)
    width, N = 30, 5
    for count in (2, 200):
        F = rng.normal(size=(count, width))
        ratings = (
            np.array([0, count], np.int32),
            np.arange(count, dtype=np.int32),
            rng.normal(size=count),
            0.0,
            1.0,
        )
        nothing, X = np.empty((0, width)), rng.normal(size=(1, width))
        none = np.zeros(width), np.zeros(width), np.full(width, -np.inf), np.full(width, np.inf)
        L = np.linalg.norm(F.T @ F)
        arguments = (*ratings, F, X, nothing, nothing, *none, L, N, False)
        check(steps.prox_steps(*arguments), reference.prox_steps(*arguments), np.float64)


def test_not_a_number_is_not_hidden_by_the_prox():
    ratings = np.array([0, 1], np.int32), np.array([0], np.int32), np.array([np.nan]), 0.0, 1.0
    one, nothing = np.ones((1, 1)), np.empty((0, 1))
    numbers = np.array([0.5]), np.zeros(1), np.array([-1.0]), np.array([1.0])
    assert np.isnan(steps.prox_steps(*ratings, one, one, nothing, nothing, *numbers, 1.0, 2, False)).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200])
def test_not_a_number_is_not_hidden_by_the_solve(wrong):
    ratings = np.array([0, 2], np.int32), np.array([0, 1], np.int32), np.ones(2), 0.0, 1.0
    numbers, nothing = [np.zeros(2), np.ones(2), np.full(2, -np.inf), np.full(2, np.inf)], np.empty((0, 2))
    F = np.array([[1.0, 2.0], [wrong, 1.0]])
    with np.errstate(all="ignore"):
        x = solves.exact_rows(*ratings, F, np.zeros((1, 2)), nothing, nothing, *numbers, np.arange(2), True)
    assert not np.isfinite(x).all()


def test_bounds_cover_all_rows_once():
    for counts in ([], [0], [5], [0, 0, 100, 0], list(range(200))):
        indptr = np.cumsum([0, *counts]).astype(np.int32)
        for chunks in (1, 2, 7, 64):
            bounds = threads.pieces(indptr, chunks)
            assert bounds[0] == 0
            assert bounds[-1] == len(counts)
            assert (np.diff(bounds) >= 0).all()


@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_accelerated_steps_end_where_coordinate_descent_does(seed):
    """A penalty without numbers takes the general path; with the same penalty in numbers the answer is the same."""
    from fedmc.problem import subproblem
    from fedmc.problem.penalties import elastic_net

    class Hidden:
        value, prox = elastic_net(0.3, 0.4).value, elastic_net(0.3, 0.4).prox

    rng = np.random.default_rng(seed)
    matrix = sparse.csr_array(np.where(rng.random((9, 12)) < 0.5, rng.normal(size=(9, 12)), 0))
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    problem = subproblem.Problem(matrix, subproblem.Square(), subproblem.Scaling())
    F, X = rng.normal(size=(12, 4)), rng.normal(size=(9, 4))
    known = subproblem.minimise(problem, F, X, elastic_net(0.3, 0.4))
    np.testing.assert_allclose(subproblem.minimise(problem, F, X, Hidden()), known, atol=1e-5, equal_nan=False)
