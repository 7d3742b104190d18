"""Every kernel against its numpy twin, also with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.kernels import moments, reference, solves, steps, threads
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


# --- the Gaussian rows of the Bayesian model

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
LARGEST_RANK = 64 if COMPILED else 12  # of the drawn ones: slow rows are for the readable definition only


def covariances_of(rng, rows, size, dtype):
    """Packed covariances of well-conditioned Gaussians."""
    roots = rng.normal(size=(rows, size, size)) / np.sqrt(size)
    full = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(size)
    return np.ascontiguousarray(full[:, *np.tril_indices(size)], dtype)


def ratings_of(rng, rows, columns, density, dtype):
    """Ratings as the kernels take them; the first row and the last are empty if there is more than one."""
    mask = rng.random((rows, columns)) < density
    mask[[0, -1]] &= rows == 1
    matrix = sparse.csr_array(np.where(mask, rng.integers(1, 6, mask.shape), 0).astype(dtype))
    indptr, indices = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)
    return indptr, indices, matrix.data, dtype(3.5), dtype(0.9)


def unchanged(kernel, *arguments):
    """kernel(*arguments), whose arguments must be the same afterwards."""
    before = [np.array(argument) for argument in arguments]
    found = kernel(*arguments)
    assert all(np.array_equal(one, other) for one, other in zip(before, arguments, strict=True))
    return found


def close(found, expected, dtype, size=1):
    """Equal up to rounding, relative to the largest number; `size` is the length of the sums."""
    assert found.shape == expected.shape
    tolerance = {np.float32: 1e-5, np.float64: 1e-13}[dtype] * (10 + size) * max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, equal_nan=False)


@st.composite
def gaussians(draw, largest=LARGEST_RANK):
    """A generator, the length q = rank + 1 of the rows, their number (perhaps 0), and a type of numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rank = draw(st.integers(1, 12) | st.integers(1, largest) | st.just(largest))
    return rng, rank + 1, draw(st.integers(0, 9)), draw(st.sampled_from([np.float32, np.float64]))


@given(drawn=gaussians())
@examples(60)
def test_moment_lines(drawn):
    rng, size, rows, dtype = drawn
    means, covariances = rng.normal(size=(rows, size)).astype(dtype), covariances_of(rng, rows, size, dtype)
    found = unchanged(moments.moment_lines, means, covariances)
    length = moments.line_length(size)
    assert found.dtype == dtype
    assert found.shape == (rows, moments.padded_line(size, np.dtype(dtype)))
    assert (found[:, length:] == 0).all()  # the padding is added too
    close(found[:, :length], reference.moment_lines(means, covariances), dtype)


@given(drawn=gaussians(), rows=st.integers(1, 8), density=st.sampled_from([0.0, 0.3, 1.0]))
@examples(60)
def test_sum_moments(drawn, rows, density):
    rng, size, columns, dtype = drawn
    columns += 1
    ratings = ratings_of(rng, rows, columns, density, dtype)
    lines = moments.moment_lines(
        rng.normal(size=(columns, size)).astype(dtype), covariances_of(rng, columns, size, dtype)
    )
    found = unchanged(moments.sum_moments, *ratings, lines, size)
    assert found.dtype == dtype
    assert (found[np.diff(ratings[0]) == 0] == 0).all()
    close(found, reference.sum_moments(*ratings, lines, size), dtype, columns)


@given(drawn=gaussians(), seen=st.sampled_from([0, 1, 30]), as_dtype=st.sampled_from([None, np.float64]))
@examples(60)
def test_posteriors(drawn, seen, as_dtype):
    """Rows that nothing is known about too (S = 0): their posterior is the prior."""
    rng, size, rows, dtype = drawn
    W = rng.normal(size=(rows, seen, size))
    S = np.concatenate([(np.swapaxes(W, 1, 2) @ W)[:, *np.tril_indices(size)], W.sum(axis=1)], axis=1).astype(dtype)
    root = rng.normal(size=(size, size)) / np.sqrt(size)
    precision, pull = root @ root.T + np.eye(size), rng.normal(size=size)
    alpha = np.float64(1.3)  # without the compiler, Python's 1.3 times a float32 would be a float32
    means, covariances, log_dets = unchanged(
        lambda *given: moments.posteriors(*given, as_dtype), S, alpha, precision, pull
    )
    kind = dtype if as_dtype is None else as_dtype
    assert means.dtype == covariances.dtype == kind
    assert log_dets.dtype == np.float64
    expected = reference.posteriors(S, alpha, precision, pull)  # both compute in float64, whatever S is
    close(means, expected[0], kind, 10 * size)
    close(covariances, expected[1], kind, 10 * size)
    close(log_dets, expected[2], np.float64, 10 * size)
    if seen == 0 and rows:
        close(means[0], np.linalg.solve(precision, pull), kind, 10 * size)
    means, roots = unchanged(moments.posterior_roots, S, alpha, precision, pull)
    assert means.dtype == roots.dtype == np.float64
    for found, slow in zip((means, roots), reference.posterior_roots(S, alpha, precision, pull), strict=True):
        close(found, slow, np.float64, 100 * size)
    close(moments.covariances_of(roots, size), expected[1], np.float64, 10 * size)
    pulls = rng.normal(size=(rows, size))  # one for each row: the bits of each row alone
    for kernel in (moments.posteriors, moments.posterior_roots):
        whole = unchanged(kernel, S, alpha, precision, pulls)
        for row in range(rows):
            alone = kernel(S[[row]], alpha, precision, pulls[row])
            assert [part[0].tobytes() for part in alone] == [part[row].tobytes() for part in whole]


@given(drawn=gaussians())
@examples(40)
def test_covariances_of_roots(drawn):
    """Of any roots, as a server may send any; those of a diagonal are its squares."""
    rng, size, rows, dtype = drawn
    roots = rng.normal(size=(rows, size * (size + 1) // 2)).astype(dtype)
    found = unchanged(moments.covariances_of, roots, size)
    assert found.dtype == dtype
    close(found, reference.covariances_of(roots, size), dtype, size)
    diagonal = np.diag(np.arange(1.0, size + 1))[np.tril_indices(size)].astype(dtype)[None]
    assert np.array_equal(moments.covariances_of(diagonal, size), diagonal**2)


@given(drawn=gaussians(), columns=st.integers(1, 6), pairs=st.integers(0, 12))
@examples(60)
def test_prediction_variances(drawn, columns, pairs):
    rng, size, rows, dtype = drawn
    rows += 1
    X, Y = (rng.normal(size=(number, size)).astype(dtype) for number in (rows, columns))
    CX, CY = (covariances_of(rng, number, size, dtype) for number in (rows, columns))
    chosen = rng.integers(rows, size=pairs), rng.integers(columns, size=pairs)
    found = unchanged(moments.prediction_variances, *chosen, X, CX, Y, CY)
    assert found.shape == (pairs, 3)
    assert (found > 0).all()  # covariances are positive definite
    close(found, reference.prediction_variances(*chosen, X, CX, Y, CY), dtype, size**2)


def several_threads(monkeypatch):
    """Records how many pieces of work were shared; without the compiler, also small work is."""
    shared, share = [], threads._share
    if not COMPILED:
        monkeypatch.setattr(threads, "WORTH", 1)

    def recorded(function, tasks, count):
        shared.append((len(tasks), count))
        return share(function, tasks, count)

    monkeypatch.setattr(threads, "_share", recorded)
    return shared


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [2, 10, 64] if COMPILED else [2, 5])
def test_moments_do_not_depend_on_the_number_of_threads(rank, dtype, monkeypatch):
    rng, size = np.random.default_rng(rank), rank + 1
    rows = 1 + {2: 160_000, 10: 20_000, 64: 1_000}[rank] if COMPILED else 13  # over 1e6 multiply-adds for each kernel
    ratings = ratings_of(rng, rows, 13, min(1.0, 2e5 / rows), dtype)
    means = rng.normal(size=(rows, size)).astype(dtype)
    covariances = np.tile(covariances_of(rng, 13, size, dtype), (-(-rows // 13), 1))[:rows]
    lines = moments.moment_lines(means[:13], covariances[:13])
    S = many_sums(rng, rows, size, dtype)
    pairs = np.arange(rows), rng.integers(rows, size=rows)
    kernels = {
        "lines": lambda: [moments.moment_lines(means, covariances)],
        "sums": lambda: [moments.sum_moments(*ratings, lines, size)],
        "posteriors": lambda: moments.posteriors(S, 1.2, 5 * np.eye(size), np.ones(size)),
        "roots": lambda: moments.posterior_roots(S, 1.2, 5 * np.eye(size), np.ones(size)),
        "covariances": lambda: [moments.covariances_of(covariances, size)],
        "variances": lambda: [moments.prediction_variances(*pairs, means, covariances, means, covariances)],
    }
    shared = several_threads(monkeypatch)
    for name, kernel in kernels.items():
        with threads.limited(1):
            alone = kernel()
        assert shared == []
        with threads.limited(2):
            together = kernel()
        assert shared
        assert all(pieces > 1 and count == 2 for pieces, count in shared), name
        assert all(one.tobytes() == other.tobytes() for one, other in zip(alone, together, strict=True)), name
        shared.clear()


def many_sums(rng, rows, size, dtype):
    """Packed sums [G, b] of many rows, made quickly: a few positive definite ones, scaled and repeated."""
    few = np.concatenate([covariances_of(rng, 16, size, dtype), rng.normal(size=(16, size)).astype(dtype)], axis=1)
    return np.tile(few, (-(-rows // 16), 1))[:rows] * rng.integers(0, 9, size=(rows, 1)).astype(dtype)
