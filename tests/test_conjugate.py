"""Conjugate gradients for rows of events, against dense numpy; and sweeps that use them."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.algorithms.ials import IALS
from fedmc.data.matrices import narrow
from fedmc.evaluation.pooled_events import TOLERANCES, first_items, fitted, pooled_ials, quick_sweeps, sweeps_of
from fedmc.kernels import conjugate, threads
from tests.conftest import examples
from tests.test_kernels import unchanged
from tests.test_weighted import DTYPES, SEEDS, SIZES, bits, dense_rows, near, systems


def residuals(events, F, shift, ridge, found):
    """Of (1 + P'P) y = P'm in each row, relative to its right hand side."""
    out = []
    for row, (a, b) in enumerate(pairwise(events.indptr)):
        root = np.sqrt(shift + ridge[row]).astype(float)
        P = F[events.indices[a:b]] * events.roots[a:b, None].astype(float) / root
        y, right = found[row] * root, P.T @ events.roots[a:b]
        out.append(np.linalg.norm(right - y - P.T @ (P @ y)) / max(np.linalg.norm(right), 1e-300))
    return np.array(out)


def tame(seed, size, dtype, rows=9):
    """Systems whose events all weigh one: few steps solve them."""
    events, F, shift, ridge = systems(seed, size, dtype, rows)
    return events._replace(roots=np.ones_like(events.roots)), F, shift + dtype(2), ridge


@given(SEEDS, SIZES, DTYPES, st.sampled_from([0.3, 0.1, 0.03]))
@examples(60)
def test_residuals_are_within_the_tolerance(seed, size, dtype, tolerance):
    events, F, shift, ridge = tame(seed, size, dtype)
    found = unchanged(conjugate.descend_events, *events, F, shift, ridge, tolerance)
    assert found.dtype == dtype
    assert not found[events.counts == 0].any()
    assert (residuals(events, F, shift, ridge, found) <= tolerance + 1e-4).all()
    few = events.counts < min(conjugate.EXACT, size)
    near(found[few], dense_rows(events, F, shift, ridge)[few], 1e-3 if dtype == np.float32 else 1e-9)


@given(SEEDS, st.integers(1, 40))
@examples(20)
def test_a_small_tolerance_gives_the_solution(seed, size):
    events, F, shift, ridge = tame(seed, size, np.float64)
    shift = shift + 10 * size  # so that twelve steps are enough
    found = conjugate.descend_events(*events, F, shift, ridge, 1e-9)
    near(found, dense_rows(events, F, shift, ridge), 1e-6)


def test_rows_of_very_many_events_are_solved_exactly(monkeypatch):
    events, F, shift, ridge = systems(2, 8, np.float64)
    monkeypatch.setattr(conjugate, "MAX_LINES", 30)
    found = conjugate.descend_events(*events, F, shift, ridge, 0.3)
    exact = (events.counts > 30) | (events.counts < 8)
    near(found[exact], dense_rows(events, F, shift, ridge)[exact], 1e-9)


@pytest.mark.parametrize("size", [1, 5, 8, 17, 40])
def test_threads_change_no_bit(size, monkeypatch):
    events, F, shift, ridge = tame(size, size, np.float32, rows=30)
    one = conjugate.descend_events(*events, F, shift, ridge, 0.1)
    monkeypatch.setattr(threads, "WORTH", 1)
    monkeypatch.setattr(threads, "available", lambda: 2)
    assert bits(conjugate.descend_events(*events, F, shift, ridge, 0.1)) == bits(one)


# --- sweeps


@pytest.fixture(scope="module")
def events():
    taken = np.random.default_rng(4).random((120, 70)) < np.linspace(0.05, 0.6, 70)
    return narrow(sparse.csr_array(np.where(taken, 1.0, 0.0)))


def objective(events, U, V, algorithm):
    C, scores = events.toarray(), U @ V.T
    penalty = algorithm.ridges((C > 0).sum(axis=1), len(V)) @ (U**2).sum(axis=1)
    penalty += algorithm.ridges((C > 0).sum(axis=0), len(U)) @ (V**2).sum(axis=1)
    return float((C * (1 - scores) ** 2).sum() + algorithm.alpha0 * (scores**2).sum() + penalty)


def test_quick_sweeps_end_where_exact_sweeps_end(events):
    algorithm, V = IALS(0.2, 0.05, 1), first_items(70, 12, 1, np.float64)
    exact, quick = (
        [objective(events, *factors, algorithm) for factors in islice(sweeps(algorithm, events, V), 60)]
        for sweeps in (sweeps_of, quick_sweeps)
    )
    assert quick[-1] == pytest.approx(exact[-1], rel=1e-3)
    assert abs(quick[0] / exact[0] - 1) > 1e-5  # the first sweeps are approximate
    assert (np.diff(quick[len(TOLERANCES) :]) <= 1e-9 * quick[0]).all()  # and later ones are not


def test_pooled_users_fit_the_last_items(events):
    algorithm = IALS(0.2, 0.05, 1)
    U, V = pooled_ials(events, 12, 0.2, 0.05, sweeps=6, seed=6, dtype=np.float64)
    _, last = next(islice(quick_sweeps(algorithm, events, first_items(70, 12, 6, np.float64)), 5, None))
    np.testing.assert_array_equal(V, last)
    np.testing.assert_array_equal(U, fitted(algorithm, events, V))
