"""Baselines of implicit feedback: pooled iALS against its objective and a federation, neighbours by definition."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.ials import IALS
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.evaluation import pooled_events
from fedmc.evaluation.pooled_events import (
    defaults_for,
    first_items,
    fitted,
    model_top,
    nearest_top,
    pooled_ials,
    popular_top,
    sweeps_of,
    top_of_clients,
)
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

USERS, ITEMS, RANK = 40, 25, 4


@pytest.fixture
def events() -> sparse.csr_array:
    rng = np.random.default_rng(3)
    values = np.where(rng.random((USERS, ITEMS)) < 0.2, rng.integers(1, 4, (USERS, ITEMS)), 0)
    values[5] = values[:, 7] = 0
    return sparse.csr_array(values.astype(np.float64))


def objective(events: sparse.csr_array, U: np.ndarray, V: np.ndarray, algorithm: IALS) -> float:
    C, scores = events.toarray(), U @ V.T
    penalty = algorithm.ridges((C > 0).sum(axis=1), len(V)) @ (U**2).sum(axis=1)
    penalty += algorithm.ridges((C > 0).sum(axis=0), len(U)) @ (V**2).sum(axis=1)
    return float((C * (1 - scores) ** 2).sum() + algorithm.alpha0 * (scores**2).sum() + penalty)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_each_half_of_a_sweep_minimises_the_objective(events, exponent):
    algorithm = IALS(0.2, 0.05, exponent)
    V = np.random.default_rng(1).normal(size=(ITEMS, RANK))
    U = fitted(algorithm, events, V)
    least = objective(events, U, V, algorithm)
    assert not U[5].any()
    for step in np.random.default_rng(2).normal(0, 1e-3, (20, *U.shape)):
        assert objective(events, U + step, V, algorithm) > least
    values = [objective(events, U, V, algorithm) for U, V in islice(sweeps_of(algorithm, events, V), 6)]
    assert (np.diff(values) <= 1e-9 * values[0]).all()


def test_a_federation_of_all_clients_has_the_same_iterates(events):
    ratings = Ratings(np.arange(USERS), np.arange(ITEMS), events)
    settings = Settings.preset("implicit", algorithm="ials:0.2,0.05,1", rank=RANK, active=4, seed=6, dtype="float64")
    history = list(islice(rounds(LocalEngine(make_shards(ratings, np.arange(USERS) % 4, "float64")), settings), 5))
    start = first_items(ITEMS, RANK, 6, np.float64)
    np.testing.assert_array_equal(history[0].V, start)
    for round, (_, V) in zip(history[1:], sweeps_of(IALS(0.2, 0.05, 1), events, start), strict=False):
        np.testing.assert_allclose(round.V, V, rtol=1e-9, atol=1e-12)


def test_pooled_factors_have_the_type_that_was_asked_for(events):
    assert pooled_ials(events, RANK, 0.2, 0.05)[0].dtype == np.float32
    assert pooled_ials(events, RANK, 0.2, 0.05, dtype=np.float64)[1].dtype == np.float64
    with pytest.raises(InputError, match="sweeps"):
        pooled_ials(events, RANK, 0.2, 0.05, sweeps=0)


def test_defaults_depend_on_the_size_of_the_data():
    users, items, events = 400, 900, 36_000
    found = defaults_for(users, items, events, negatives=4, noise=0.5)
    assert found.alpha0 * users * items == pytest.approx(4 * events)
    user, item = (found.ridges(np.array([events / rows]), others)[0] for rows, others in ((400, items), (900, users)))
    assert np.sqrt(user * item) == pytest.approx(0.5 * (np.sqrt(90) + np.sqrt(40)))


@pytest.mark.parametrize(("items", "negatives"), [(90, 10), (900, 10), (3600, 20), (14_400, 25)])
def test_rare_items_have_more_weight_of_all_pairs(items, negatives):
    """36,000 events: 400, 40, 10 and 2.5 an item."""
    found = defaults_for(400, items, 36_000)
    assert found.alpha0 * 400 * items == pytest.approx(negatives * 36_000)


def test_clients_alone_know_only_their_users(events):
    owner = np.arange(USERS) % 2
    top = top_of_clients(events, owner, 5, lambda mine, own: pooled_ials(mine, RANK, 0.2, 0.05, sweeps=3))
    mine = sparse.csr_array(events[owner == 1])
    np.testing.assert_array_equal(top[owner == 1], model_top(pooled_ials(mine, RANK, 0.2, 0.05, sweeps=3), mine, 5))
    assert not any(np.isin(top[user], events[[user]].indices).any() for user in range(USERS))


def test_popular_items_that_a_user_has_not_seen(events):
    counts, top = (events.toarray() > 0).sum(axis=0), popular_top(events, 5)
    for user in range(USERS):
        unseen = np.setdiff1d(np.arange(ITEMS), events[[user]].indices)
        np.testing.assert_array_equal(top[user], unseen[np.argsort(-counts[unseen], kind="stable")][:5])


@pytest.mark.parametrize(("neighbours", "shrinkage", "block"), [(3, 2.0, 400), (40, 0.0, 1 << 20)])
def test_nearest_items_by_definition(events, neighbours, shrinkage, block, monkeypatch):
    monkeypatch.setattr(pooled_events, "BLOCK", block)  # bytes: four rows of scores at a time, or all
    X = events.toarray() > 0
    both, counts = X.T.astype(float) @ X, X.sum(axis=0)
    similar = both / np.maximum(np.sqrt(np.outer(counts, counts)) + shrinkage, 1e-9)
    np.fill_diagonal(similar, 0)
    nearest = pooled_events._similarities(sparse.csr_array(X.astype(np.float32)), neighbours, shrinkage).toarray()
    kept = np.arange(ITEMS) < neighbours
    np.testing.assert_allclose(-np.sort(-nearest), np.where(kept, -np.sort(-similar), 0), rtol=1e-5)
    np.testing.assert_allclose(nearest, np.where(nearest, similar, 0), rtol=1e-5)
    scores, top = np.where(X, -1, X @ nearest), nearest_top(events, 5, neighbours, shrinkage)
    for user in range(USERS):
        found = top[user][top[user] >= 0]
        wanted = np.sort(scores[user][scores[user] > 0])[::-1][:5]
        np.testing.assert_allclose(scores[user, found], wanted, rtol=1e-5)
