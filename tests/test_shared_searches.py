"""What a model computes once from its items: the same bits as computing it again, and no work for other users."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmc import FedMC, Ratings
from fedmc.algorithms.posterior import free_part, prior_row
from fedmc.data.builder import to_rows
from fedmc.errors import InputError
from fedmc.kernels import moments
from fedmc.kernels.ranking import arranged, search, top_items
from fedmc.model import recommending
from tests.conftest import planted


@pytest.fixture(scope="module")
def model():
    return FedMC(rank=3, clients=3, rounds=5).fit(planted()).model_


def test_many_searches_share_an_arrangement():
    rng = np.random.default_rng(0)
    V, allowed = rng.normal(size=(300, 5)).astype(np.float32), rng.random(300) < 0.5
    nothing = np.zeros(3, np.int64), np.empty(0, np.int32)
    for mask in (None, allowed):
        once = arranged(V, mask)
        for _ in range(4):
            U = rng.normal(size=(2, 5)).astype(np.float32)
            for found, expected in zip(search(U, once, *nothing, 9), top_items(U, V, *nothing, 9, mask), strict=True):
                assert np.array_equal(found, expected)
    with pytest.raises(InputError, match="one rank"):
        search(U[:, :4], once, *nothing, 9)
    with pytest.raises(InputError, match="float32 or all float64"):
        search(U.astype(np.float64), once, *nothing, 9)


def counted(monkeypatch, module, name):
    calls, function = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: calls.append(name) or function(*given))
    return calls


def test_items_are_arranged_once_for_a_model_and_its_visitors(model, monkeypatch):
    fresh = replace(model)
    expected = [model.recommend(user, 5) for user in (1, 2)], model.similar(3, 4)
    calls = counted(monkeypatch, recommending, "arranged")
    from fedmc.model import of_items

    calls_of_items, lines = counted(monkeypatch, of_items, "arranged"), counted(monkeypatch, of_items, "moment_lines")
    for user, (ids, scores) in zip((1, 2), expected[0], strict=True):
        found = fresh.recommend(user, 5)
        assert np.array_equal(found[0], ids)
        assert np.array_equal(found[1], scores)
    visitor = Ratings.from_arrays(["x", "x"], [1, 2], [4.0, 2.0])
    first = fresh.fold_in(visitor)
    folded = fresh.fold_in(visitor)
    assert np.array_equal(folded.recommend("x", 5)[1], replace(first).recommend("x", 5)[1])
    for _ in range(2):
        for found, right in zip(fresh.similar(3, 4), expected[1], strict=True):
            assert np.array_equal(found, right)
    assert (len(calls_of_items), len(calls), len(lines)) == (2, 1, 1)  # one more for the copy; the directions; lines


def test_another_V_is_not_searched_in_the_old_arrangement(model):
    model.recommend(1, 3)
    other = replace(model, V=model.V[::-1].copy(), posterior=None)
    ids, _ = other.recommend(1, 3, exclude_seen=False)
    scores = other.V @ other.U[other.users == 1][0]
    assert ids.tolist() == other.items[np.argsort(-scores, kind="stable")[:3]].tolist()


def test_variances_of_few_pairs_read_few_users(model):
    known, rng = model.posterior, np.random.default_rng(1)
    rows, columns = rng.integers(40, size=200), rng.integers(15, size=200)
    arguments = free_part(model.U), known.user_covariances, known.item_means, known.item_covariances
    expected = moments.prediction_variances(rows, columns, *arguments)
    assert np.array_equal(known.parts(rows, columns, model.U), expected)
    for some in (slice(0, 5), slice(0, 0), slice(0, 39)):
        assert np.array_equal(known.parts(rows[some], columns[some], model.U), expected[some])


def test_priors_stand_for_the_unknown_without_a_copy_of_the_model(model):
    users, items = [7, 999, 7, 999], [3, 3, "new", "new"]
    found = model.interval(users, items, 0.8, unknown="prior")
    prediction, std = model.predict(users, items, return_std=True, unknown="prior")
    assert np.array_equal(found.prediction, prediction)
    for k, (user, item) in enumerate(zip(users, items, strict=True)):
        alone = model.interval([user], [item], 0.8, unknown="prior")
        assert [part[k] for part in found] == [part[0] for part in alone]
    assert [part[0] for part in found] == [part[0] for part in model.interval([7], [3], 0.8)]
    known = model.posterior
    (u, of_u), (w, of_w) = (prior_row(one, model.V.dtype) for one in (known.for_seen(0).hyper.users, known.hyper.items))
    row, column = np.flatnonzero(model.users == 7)[0], np.flatnonzero(model.items == 3)[0]
    means = np.vstack([free_part(model.U)[row], u]), np.vstack([known.item_means[column], w])
    spreads = np.vstack([known.user_covariances[row], of_u]), np.vstack([known.item_covariances[column], of_w])
    pairs = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    parts = moments.prediction_variances(*pairs, means[0], spreads[0], means[1], spreads[1])
    np.testing.assert_allclose(
        std, np.sqrt(1 / known.hyper.noise + parts.sum(axis=1)) * model.scaling.scale, rtol=1e-12
    )
    with pytest.raises(InputError, match="unknown='prior' needs a Bayesian model"):
        replace(model, posterior=None).predict([7], [3], unknown="prior")


def test_rows_are_sorted_alike_in_threads():
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(500, size=100_000).astype(np.int32), rng.integers(300, size=100_000).astype(np.int32)
    matrix, stamps = to_rows((500, 300), [rows], [columns], [np.arange(100_000.0)], [np.arange(100_000)])
    order = np.lexsort((np.arange(100_000), columns, rows))
    assert np.array_equal(matrix.indices, columns[order])
    assert np.array_equal(matrix.data, order)
    assert np.array_equal(stamps, order)
