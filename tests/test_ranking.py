"""Top items against their numpy twin, and ranking metrics against scikit-learn's and plain definitions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn import metrics as sk

from fedmc.errors import InputError
from fedmc.kernels import threads
from fedmc.kernels.ranking import NONE, reference_top, top_items
from fedmc.problem import ranking
from fedmc.problem.ranking import Popularity, means_of, popularity_top, random_top, sampled_top, sums_of
from tests.conftest import examples

SEEDS = st.integers(0, 2**32 - 1)


def pattern(rng, users, items, density):
    """A CSR pattern whose rows are not sorted."""
    matrix = sparse.csr_array(rng.random((users, items)) < density)
    for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        rng.shuffle(matrix.indices[a:b])
    return matrix.indptr, matrix.indices


def rows_of(found, rows):
    """The same pattern with these rows only."""
    indptr, indices = found
    parts = [indices[indptr[row] : indptr[row + 1]] for row in rows]
    return np.cumsum([0, *map(len, parts)]), np.concatenate([*parts, np.empty(0, indices.dtype)])


def same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@given(SEEDS, st.integers(0, 15), st.integers(1, 700), st.integers(1, 6), st.integers(1, 30), st.data())
@examples(150)
def test_top_items_equal_the_twin_with_ties(seed, users, items, rank, k, data):
    """Factors are small whole numbers: scores are exact, and many are equal."""
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    largest = data.draw(st.sampled_from([0, 1, 3]))
    U, V = (rng.integers(-largest, largest + 1, (n, rank)).astype(dtype) for n in (users, items))
    V *= rng.choice([0, 1, 1, 8], (items, 1)).astype(dtype)  # norms differ: the search ends early
    seen = pattern(rng, users, items, data.draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])))
    allowed = rng.random(items) < 0.5 if data.draw(st.booleans()) else None
    same(top_items(U, V, *seen, k, allowed), reference_top(U, V, *seen, k, allowed))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_top_items_of_a_catalogue_beyond_the_cache(dtype):
    rng = np.random.default_rng(1)
    U, V = rng.integers(-3, 4, (110, 64)).astype(dtype), rng.integers(-3, 4, (4_000, 64)).astype(dtype)
    seen = pattern(rng, 110, 4_000, 0.02)
    same(top_items(U, V, *seen, 20), reference_top(U, V, *seen, 20))


@given(SEEDS, st.sampled_from([np.float32, np.float64]))
@examples(10)
def test_bits_do_not_depend_on_other_users_or_threads(seed, dtype):
    rng = np.random.default_rng(seed)
    users, items, rank = 150, 900, int(rng.integers(1, 40))
    U, V = rng.normal(size=(users, rank)).astype(dtype), rng.normal(size=(items, rank)).astype(dtype)
    V *= rng.exponential(size=(items, 1)).astype(dtype)
    seen = pattern(rng, users, items, 0.03)
    found = top_items(U, V, *seen, 20)
    with threads.limited(1):
        same(top_items(U, V, *seen, 20), found)
    some = rng.permutation(users)[: rng.integers(0, users)]
    same(top_items(U[some], V, *rows_of(seen, some), 20), [part[some] for part in found])
    np.testing.assert_allclose(found[1], reference_top(U, V, *seen, 20)[1], rtol=1e-4, atol=1e-4)


@given(SEEDS)
@examples(10)
def test_bits_do_not_depend_on_other_items(seed):
    rng = np.random.default_rng(seed)
    U, V = (rng.normal(size=(n, 17)).astype(np.float32) for n in (20, 300))
    allowed = rng.random(300) < 0.3
    kept, seen = np.flatnonzero(allowed), (np.zeros(21, int), np.empty(0, int))
    items, scores = top_items(U, V[allowed], *seen, 10)
    same((kept[items].astype(np.int32), scores), top_items(U, V, *seen, 10, allowed))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e200])
def test_scores_that_are_no_numbers_are_no_candidates(odd):
    rng = np.random.default_rng(2)
    U, V = rng.integers(1, 3, (8, 3)).astype(float), rng.integers(1, 3, (300, 3)).astype(float)
    V[[3, 290], 1] = odd
    U[2, 0] = odd
    seen = pattern(rng, 8, 300, 0.01)
    with np.errstate(invalid="ignore"):
        same(top_items(U, V, *seen, 295), reference_top(U, V, *seen, 295))


def test_too_few_candidates_and_odd_layouts():
    V = np.asfortranarray([[1.0], [3.0], [2.0]])
    items, scores = top_items(np.ones((2, 1)), V, np.array([0, 3, 4]), np.array([2, 0, 1, 1]), 3)
    assert items.tolist() == [[NONE] * 3, [2, 0, NONE]]
    assert scores.tolist() == [[-np.inf] * 3, [2, 1, -np.inf]]
    nothing = np.zeros(3, int), np.empty(0, int)
    assert (top_items(np.ones((2, 1)), np.empty((0, 1)), *nothing, 2)[0] == NONE).all()
    assert (top_items(np.ones((2, 1)), V, *nothing, 2, np.zeros(3, bool))[0] == NONE).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"V": np.ones((3, 1), np.float32)}, "float32 or all float64"),
        ({"V": np.ones((3, 2))}, "one rank"),
        ({"k": 0}, "at least 1"),
        ({"seen_indptr": np.array([0, 1])}, "row pointers"),
        ({"seen_indptr": np.array([0, 2, 1])}, "rise"),
        ({"seen_indices": np.array([3])}, "0 to 2"),
        ({"allowed": np.ones(2, bool)}, "mask"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    right = {"U": np.ones((2, 1)), "V": np.ones((3, 1)), "seen_indptr": np.array([0, 1, 1]), "k": 1}
    with pytest.raises(InputError, match=message):
        top_items(**({**right, "seen_indices": np.array([0])} | change))


def rankings(seed, users=12, items=30, k=20):
    """Random factors with ties, some rankings with missing places, held-out items (some users have none), counts."""
    rng = np.random.default_rng(seed)
    U, V = (rng.integers(0, 3, (n, 2)).astype(np.float32) for n in (users, items))
    top, _ = top_items(U, V, *pattern(rng, users, items, rng.choice([0.0, 0.2])), k)
    top[rng.random(users) < 0.1] = NONE
    counts = rng.integers(0, 50, items)
    return top, pattern(rng, users, items, rng.choice([0.03, 0.2, 0.8])), Popularity(counts, 60)


def plain_user(top, held_out, popularity, K):
    """The metrics of one user by their definitions, place by place."""
    gains = [1 if item in held_out else 0 for item in top[:K]]
    precisions = [sum(gains[: p + 1]) / (p + 1) for p in range(K) if gains[p]]
    ideal = sum(1 / np.log2(p + 2) for p in range(min(K, len(held_out))))
    shown = [item for item in top[:K] if item != NONE]
    bits = [-np.log2(max(popularity.counts[item], 1) / popularity.users) for item in shown]
    return {
        "recall": sum(gains) / len(held_out),
        "precision": sum(gains) / K,
        "ndcg": sum(g / np.log2(p + 2) for p, g in enumerate(gains)) / ideal,
        "hit_rate": float(any(gains)),
        "map": sum(precisions) / min(K, len(held_out)),
        "mrr": 1 / (gains.index(1) + 1) if any(gains) else 0.0,
        "novelty": float(np.mean(bits)) if bits else 0.0,
    }


@given(SEEDS)
@examples(100)
def test_metrics_equal_their_definitions(seed):
    top, held_out, popularity = rankings(seed)
    sums = sums_of(top, held_out, popularity, (1, 5, 20))
    sets = [set(rows_of(held_out, [user])[1].tolist()) for user in range(len(top))]
    counted = [user for user in range(len(top)) if sets[user]]
    assert sums["users"] == len(counted)
    for K in (1, 5, 20):
        plain = [plain_user(top[user].tolist(), sets[user], popularity, K) for user in counted]
        for name in ranking.METRICS:
            np.testing.assert_allclose(sums[f"{name}_{K}"], sum(user[name] for user in plain), rtol=1e-12, atol=1e-12)
        recommended = [sum(item in top[user, :K] for user in counted) for item in range(30)]
        np.testing.assert_array_equal(sums[f"recommended_{K}"], recommended)


@given(SEEDS, st.integers(1, 30))
@examples(100)
def test_metrics_equal_those_of_scikit_learn(seed, K):
    """On full rankings of all items, so that scikit-learn, which takes scores, sees the same order."""
    rng = np.random.default_rng(seed)
    users, items = 10, 30
    top = np.array([rng.permutation(items) for _ in range(users)])
    held_out = pattern(rng, users, items, rng.choice([0.05, 0.3, 0.8]))
    truth = sparse.csr_array((np.ones(len(held_out[1]), int), held_out[1], held_out[0]), (users, items)).toarray()
    counted = truth.any(axis=1)
    found = means_of(sums_of(top, held_out, Popularity(np.ones(items), 10), (K, items)))
    if not counted.any():
        assert all(np.isnan(value) for value in found[K])
        return
    truth, scores = truth[counted], -np.argsort(top[counted], axis=1).astype(float)
    shown = (scores > -K).astype(int)
    close = {
        "ndcg": sk.ndcg_score(truth, scores, k=K),
        "recall": sk.recall_score(truth, shown, average="samples"),
        "precision": sk.precision_score(truth, shown, average="samples"),
    }
    for name, expected in close.items():
        assert getattr(found[K], name) == pytest.approx(expected, abs=1e-12)
    every = [sk.average_precision_score(t, s) for t, s in zip(truth, scores, strict=True)]
    assert found[items].map == pytest.approx(np.mean(every))
    assert found[K].coverage == shown.any(axis=0).mean()


@given(SEEDS, st.integers(1, 20))
@examples(50)
def test_one_held_out_item_against_scikit_learn(seed, K):
    rng = np.random.default_rng(seed)
    top, labels = np.array([rng.permutation(20) for _ in range(9)]), rng.integers(0, 20, 9)
    found = means_of(sums_of(top, (np.arange(10), labels), Popularity(np.ones(20), 9), (K, 20)))
    scores = -np.argsort(top, axis=1).astype(float)
    if K < 20:
        expected = sk.top_k_accuracy_score(labels, scores, k=K, labels=np.arange(20))
        assert found[K].hit_rate == found[K].recall == pytest.approx(expected)
    one_hot = np.eye(20)[labels]
    assert found[20].mrr == pytest.approx(sk.label_ranking_average_precision_score(one_hot, scores))


@given(SEEDS, st.integers(0, 12))
@examples(50)
def test_sums_of_two_clients_add_up_to_the_pooled_ones(seed, cut):
    top, held_out, popularity = rankings(seed)
    parts = [sums_of(top[rows], rows_of(held_out, rows), popularity) for rows in (np.arange(cut), np.arange(cut, 12))]
    pooled = sums_of(top, held_out, popularity)
    added = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    assert list(added) == list(pooled)
    for name in pooled:
        np.testing.assert_allclose(added[name], pooled[name], rtol=1e-12)
    for K, expected in means_of(pooled).items():
        np.testing.assert_allclose(means_of(added)[K], expected, rtol=1e-12)


def test_rankings_that_do_not_fit_are_refused():
    top, held_out, popularity = rankings(3)
    for given_top, given_held_out, cutoffs, message in (
        (top, held_out, (21,), "21 places"),
        (top, held_out, (0,), "from 1 on"),
        (top[1:], held_out, (5,), "as many rows"),
        (top + 30, held_out, (5,), "recommended items"),
        (top, (held_out[0], held_out[1] + 30), (5,), "held-out items"),
    ):
        with pytest.raises(InputError, match=message):
            sums_of(given_top, given_held_out, popularity, cutoffs)


def test_popularity_ranks_by_counts_then_by_number():
    seen = np.array([0, 1, 1]), np.array([3])
    assert popularity_top(np.array([5, 9, 5, 9, 0]), seen, 3).tolist() == [[1, 0, 2], [1, 3, 0]]


@given(SEEDS)
@examples(20)
def test_random_and_sampled_candidates_depend_on_user_ids_alone(seed):
    rng = np.random.default_rng(seed)
    users, items, ids = 8, 40, rng.permutation(1000)[:8]
    U, V = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
    seen, held_out = pattern(rng, users, items, 0.3), pattern(rng, users, items, 0.1)
    top, drawn = sampled_top((U, V), seen, held_out, ids, 5, 10, seed), random_top(ids, items, seen, 35, seed)
    some = rng.permutation(users)[:4]
    parts = rows_of(seen, some), rows_of(held_out, some)
    same([sampled_top((U[some], V), *parts, ids[some], 5, 10, seed)], [top[some]])
    same([random_top(ids[some], items, parts[0], 35, seed)], [drawn[some]])
    for user in range(users):
        known, wanted = (set(rows_of(found, [user])[1].tolist()) for found in (seen, held_out))
        mine = [item for item in drawn[user].tolist() if item != NONE]
        assert len(set(mine)) == len(mine) == min(35, items - len(known))
        assert not known.intersection(mine)
        assert not (known - wanted).intersection(top[user].tolist())
        scores = V[top[user]] @ U[user]
        assert (np.diff(scores) <= 0).all()


def test_sampled_candidates_hold_every_held_out_item():
    """With more places than candidates, all of them are ranked: the held-out items and the negatives."""
    factors, ends = (np.ones((1, 1)), np.arange(30.0)[:, None]), np.array([0, 2])
    top = sampled_top(factors, (ends, np.array([1, 2])), (ends, np.array([7, 29])), np.array([4]), 20, 10)
    found = top[0][top[0] != NONE].tolist()
    assert len(found) == 12
    assert {7, 29} <= set(found)
    assert found == sorted(found, reverse=True)


@pytest.mark.realdata
def test_popularity_on_gowalla():
    """Recall@20 and NDCG@20 of popularity on LightGCN's split, measured independently: 0.0416 and 0.0317."""
    folder = Path(os.environ.get("FEDMC_DATA", "/nonexistent")) / "gowalla"
    if not (folder / "train.csv").is_file():
        pytest.skip("set FEDMC_DATA to a folder that holds gowalla/train.csv and test.csv")
    files = [folder / f"{name}.csv" for name in ("train", "test")]
    train, test = (np.loadtxt(file, np.int64, delimiter=",", skiprows=1) for file in files)
    users, items = np.concatenate([train, test]).max(axis=0) + 1
    seen, held_out = (sparse.csr_array((np.ones(len(x)), x.T), shape=(users, items)) for x in (train, test))
    counts = np.bincount(train[:, 1], minlength=items)
    top = popularity_top(counts, (seen.indptr, seen.indices), 20)
    found = means_of(sums_of(top, (held_out.indptr, held_out.indices), Popularity(counts, users)))[20]
    assert found.recall == pytest.approx(0.0416, abs=5e-5)
    assert found.ndcg == pytest.approx(0.0317, abs=5e-5)
