"""softImpute: its sweeps against dense transcriptions of both papers, and its place in a comparison."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data.splits import parse
from fedmc.errors import InputError
from fedmc.evaluation import pooled, softimpute
from tests.conftest import planted

WEIGHT, RANK = 3.0, 4


def table(users=30, items=17, density=0.4):
    """Ratings around 0; the last two items and the first user have none."""
    rng = np.random.default_rng(3)
    full = rng.normal(size=(users, 3)) @ rng.normal(size=(3, items)) + 0.1 * rng.normal(size=(users, items))
    mask = rng.random(full.shape) < density
    mask[:, -2:], mask[0] = False, False
    return full * mask, mask


def dense_half(X, mask, A_side, d, B_side):
    """Step 2 of Algorithm 3.1 with A = U D, D^2 = diag(d): ridge on the filled table, then the decomposition of B D."""
    D = np.sqrt(d)
    A, B = A_side * D, B_side * D
    filled = np.where(mask, X, A @ B.T)
    new = np.linalg.solve(A.T @ A + WEIGHT * np.eye(len(d)), A.T @ filled).T
    left, values, right = np.linalg.svd(new * D, full_matrices=False)
    return A_side @ right.T, values, left


def test_sweeps_are_those_of_algorithm_3_1():
    X, mask = table()
    Z = softimpute.first(X.shape, RANK, seed=5)
    U, d, V = Z.U, Z.d, Z.V
    for found in islice(softimpute.iterates(sparse.csr_array(X), Z, WEIGHT), 12):
        U, d, V = dense_half(X, mask, U, d, V)
        V, d, U = dense_half(X.T, mask.T, V, d, U)
        np.testing.assert_allclose(found.U * found.d @ found.V.T, U * d @ V.T, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.d, d, rtol=1e-9, atol=1e-12)
    last = softimpute.last_step(sparse.csr_array(X), found, WEIGHT)
    filled = np.where(mask, X, U * d @ V.T)
    P, s, Q = np.linalg.svd(filled @ V, full_matrices=False)
    expected = P * np.maximum(s - WEIGHT, 0) @ Q @ V.T
    np.testing.assert_allclose(last.U * last.d @ last.V.T, expected, rtol=1e-9, atol=1e-12)


def soft_thresholded(X, mask, steps=4000):
    """Soft-Impute of 2010: fill the missing entries, threshold the singular values, repeat."""
    Z = np.zeros_like(X)
    for _ in range(steps):
        U, d, V = np.linalg.svd(np.where(mask, X, Z), full_matrices=False)
        Z = U * np.maximum(d - WEIGHT, 0) @ V
    return Z


def nuclear(Z):
    return np.linalg.svd(Z, compute_uv=False).sum()


def test_the_limit_is_that_of_soft_impute():
    """If the rank suffices, the nuclear norm's minimiser, which is unique in its values; its rank is found, too."""
    X, mask = table()
    Z = soft_thresholded(X, mask)
    found = softimpute.soft_impute(sparse.csr_array(X), 12, WEIGHT, sweeps=4000, tolerance=0.0)
    end = found.U * found.d @ found.V.T
    values = [np.square(np.where(mask, X - one, 0)).sum() / 2 + WEIGHT * nuclear(one) for one in (end, Z)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    np.testing.assert_allclose(end, Z, rtol=0, atol=1e-4 * np.linalg.norm(Z))
    assert (found.d > 0).sum() == np.linalg.matrix_rank(Z, tol=1e-6) < 12
    assert np.abs(Z[:, -2:]).max() < 1e-6
    assert np.abs(Z[0]).max() < 1e-6


def test_it_ends_when_it_changes_little():
    X, mask = table()
    found = [softimpute.soft_impute(sparse.csr_array(X), RANK, WEIGHT, tolerance=t) for t in (1e-3, 1e-6, 1e-12)]
    values = [np.square(np.where(mask, X - Z.U * Z.d @ Z.V.T, 0)).sum() / 2 + WEIGHT * Z.d.sum() for Z in found]
    assert values[0] > values[1] > values[2]
    assert values[1] == pytest.approx(values[2], rel=1e-3)


def test_a_small_rank_minimises_the_objective_of_pooled_least_squares():
    """No step of alternating least squares from its end lowers the objective by more than rounding."""
    X, mask = table()
    A, B = softimpute.soft_impute(sparse.csr_array(X), 2, WEIGHT, sweeps=4000, tolerance=0.0).factors()
    for x, seen, a in zip(X, mask, A, strict=True):
        F = B[seen]
        np.testing.assert_allclose(np.linalg.solve(F.T @ F + WEIGHT * np.eye(2), F.T @ x[seen]), a, atol=1e-6)


def fits(**given):
    train, test = parse("random:0.2", planted(users=80, items=40, noise=0.3), 1)
    settings = Settings.preset("fast", rank=3, **given)
    return [find(train, test, settings) for find in (pooled.soft_impute_fits, pooled.pooled_fits)] + [
        pooled.bias_fits(train, test)
    ]


def test_as_a_pooled_method_it_beats_biases():
    soft, als, biases = map(pooled.rmse_of, fits(penalty_users="l2:2"))
    assert soft < 0.8 * biases
    assert soft < 1.2 * als


def test_much_of_the_penalty_leaves_the_biases():
    soft, _, biases = map(pooled.rmse_of, fits(penalty_users="l2:1e6"))
    assert soft == pytest.approx(biases, rel=1e-12)


@pytest.mark.parametrize("penalty", ["l1:0.1", "non-negative", "none"])
def test_other_penalties_are_refused(penalty):
    with pytest.raises(InputError, match="softImpute needs l2 penalties"):
        fits(penalty_users=penalty)
