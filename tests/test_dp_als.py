"""DPALS: its rounds against a dense transcription, its sensitivity, and the budget that it spends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data.splits import parse
from fedmc.errors import InputError
from fedmc.evaluation import dp_als, methods, pooled
from fedmc.privacy.dp import mechanism
from fedmc.problem.rng import server_rng
from tests.conftest import planted

RANK, WEIGHT, DELTA, USERS, ITEMS = 3, 0.7, 1e-6, 40, 18


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(dp_als, "KEPT", 4)
    monkeypatch.setattr(dp_als, "ROUNDS", 3)


def table():
    """Ratings beyond the clip; user 0 and the last two items have none, other users 1 to all of the rest."""
    rng = np.random.default_rng(2)
    mask = rng.random((USERS, ITEMS)) < np.linspace(0.05, 1, USERS)[:, None]
    mask[0], mask[:, -2:] = False, False
    return np.where(mask, rng.normal(0, 1.5, mask.shape), 0)


def dense(X, sigma):
    """As the paper writes it, user by user and item by item, with the same draws."""
    rng = server_rng(0)
    order, kept, start = rng.random(np.count_nonzero(X)), [], 0
    for x in X:
        rated = np.flatnonzero(x)
        own = order[start : start + len(rated)]
        kept.append(rated[np.argsort(own)[: dp_als.KEPT]])
        start += len(rated)
    clipped = np.clip(X, -dp_als.MOST, dp_als.MOST)
    V = rng.normal(size=(ITEMS, RANK)) / math.sqrt(RANK)
    for _ in range(dp_als.ROUNDS):
        U = np.zeros((USERS, RANK))
        for i, own in enumerate(kept):
            U[i] = np.linalg.solve(V[own].T @ V[own] + WEIGHT * np.eye(RANK), V[own].T @ clipped[i, own])
            U[i] /= max(1, np.linalg.norm(U[i]))
        noise_A, noise_b = rng.normal(size=(ITEMS, RANK, RANK)), rng.normal(size=(ITEMS, RANK))
        for j in range(ITEMS):
            raters = [i for i, own in enumerate(kept) if j in own]
            G = np.array([[noise_A[j, min(a, b), max(a, b)] for b in range(RANK)] for a in range(RANK)])
            A = sum((np.outer(U[i], U[i]) for i in raters), np.zeros((RANK, RANK)))
            A = A + sigma * math.sqrt(dp_als.KEPT) * G
            b = sum((clipped[i, j] * U[i] for i in raters), np.zeros(RANK))
            b = b + sigma * math.sqrt(dp_als.KEPT) * dp_als.MOST * noise_b[j]
            values, Q = np.linalg.eigh(A)
            V[j] = np.linalg.solve(Q @ np.diag(np.maximum(values, 0)) @ Q.T + WEIGHT * np.eye(RANK), b)
    return V


@pytest.mark.parametrize("epsilon", [1.0, 10.0, math.inf])
def test_rounds_are_those_of_the_formulas(epsilon, few):
    X, sigma = table(), mechanism.calibrate(epsilon, DELTA, 2 * dp_als.ROUNDS)
    assert (sigma == 0) == math.isinf(epsilon)
    found = dp_als.factors(sparse.csr_array(X), RANK, WEIGHT, epsilon, DELTA, 0)
    np.testing.assert_allclose(found, dense(X, sigma), rtol=1e-9, atol=1e-12)


def test_a_user_changes_a_release_by_no_more_than_the_noise_was_calibrated_for(few):
    """At any V, without any one user: all A by at most sqrt(KEPT), all b by sqrt(KEPT) MOST; some user comes near."""
    kept = dp_als.sampled(sparse.csr_array(table()), np.random.default_rng(0))
    assert np.diff(kept.indptr).max() == dp_als.KEPT
    U = np.random.default_rng(1).normal(0, 100, (USERS, RANK))
    U /= np.maximum(np.linalg.norm(U, axis=1), 1)[:, None]
    whole, changes = dp_als.item_sums(kept, U), []
    for user in range(USERS):
        rest = dp_als.item_sums(sparse.csr_array(kept[np.arange(USERS) != user]), np.delete(U, user, axis=0))
        changes.append([np.linalg.norm(one - other) for one, other in zip(whole, rest, strict=True)])
    largest = np.max(changes, axis=0) / math.sqrt(dp_als.KEPT)
    assert largest[0] == pytest.approx(1, rel=1e-12)
    assert 0.5 < largest[1] / dp_als.MOST <= 1 + 1e-12


def test_the_budget_is_that_of_all_releases():
    sigma = mechanism.calibrate(3.0, DELTA, 2 * dp_als.ROUNDS)
    assert mechanism.spent([sigma] * 2 * dp_als.ROUNDS, DELTA) == pytest.approx(3.0, rel=1e-6)


def test_the_noise_has_the_calibrated_size():
    zero = dp_als.Sums(np.zeros((20_000, 2, 2)), np.zeros((20_000, 2)))
    A, b = dp_als.noised(zero, 0.5, np.random.default_rng(0))
    assert np.array_equal(A, A.transpose(0, 2, 1))
    for values, size in ((A[:, 0, 0], 1.0), (A[:, 0, 1], 1.0), (b, dp_als.MOST)):
        assert values.std() == pytest.approx(0.5 * math.sqrt(dp_als.KEPT) * size, rel=0.03)


def test_as_a_method_of_a_comparison():
    kind = methods.find("dp-als")
    train, test = parse("random:0.2", planted(users=80, items=40, noise=0.3), 1)
    found = [
        pooled.rmse_of(pooled.dp_als_fits(train, test, Settings.preset("fast", rank=2, **kind.settings, epsilon=one)))
        for one in (math.inf, 0.1)
    ]
    assert found[0] < found[1]
    with pytest.raises(InputError, match="dp-als needs l2 penalties"):
        pooled.dp_als_fits(train, test, Settings.preset("fast", rank=2, privacy="dp", penalty_users="l1:1"))
