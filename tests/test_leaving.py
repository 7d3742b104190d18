"""Users who leave: shards and models without them, compared with ones that never had them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedmc import FedMC, Ratings
from fedmc.data.leaving import shard_without
from fedmc.data.partition import make_shards
from fedmc.data.splits import parse
from fedmc.model import load
from fedmc.model.leaving import model_without
from tests.conftest import planted

GONE = np.isin(np.arange(40), (0, 7, 8, 39))
DAY = 86_400


def timed() -> Ratings:
    ratings = planted()
    return replace(ratings, times=DAY * np.random.default_rng(3).integers(0, 6, len(ratings)))


def one_shard(ratings, test, features, seen, events):
    return make_shards(ratings, np.zeros(len(ratings.users), int), "float32", test, None, features, seen, events)[0]


@pytest.mark.parametrize("events", [False, True])
def test_a_shard_without_users_is_that_of_a_table_without_them(events):
    train, test = parse("random:0.2", timed(), 0)
    rng = np.random.default_rng(1)
    features, seen = rng.normal(size=(40, 3)), sparse.csr_array((rng.random((40, 15)) < 0.2).astype(np.int8))
    whole = one_shard(train, test, features, seen, events)
    stay = np.flatnonzero(~GONE)
    parts = train.with_users(stay), test.with_users(stay), features[stay], sparse.csr_array(seen[stay])
    expected, found = one_shard(*parts, events), shard_without(whole, GONE)
    assert (found.later is None, found.days is None) == (not events, events)
    for name in ("by_user", "by_rated", "test", "also_seen"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.shape == theirs.shape
        assert all(np.array_equal(getattr(ours, part), getattr(theirs, part)) for part in ("data", "indices", "indptr"))
    for name in ("users", "rated", "features", "later"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    if not events:
        assert found.days.of_test is not None
        assert all(np.array_equal(*pair) for pair in zip(found.days[:4], expected.days[:4], strict=True))


@pytest.mark.parametrize("arguments", [{"preset": "fast"}, {}, {"feedback": "implicit"}])
def test_a_model_without_users_says_the_same_of_all_others(arguments, tmp_path):
    ratings = timed()
    if "feedback" in arguments:
        ratings = replace(ratings, matrix=sparse.csr_array(abs(ratings.matrix)))
    model = FedMC(rank=2, clients=3, rounds=3, **arguments).fit(ratings).model_
    found = model_without(model, GONE)
    found.save(tmp_path / "model.npz")
    read = load(tmp_path / "model.npz")  # which checks every shape
    stay = np.flatnonzero(~GONE)
    assert read.users.tolist() == stay.tolist()
    pairs = np.repeat(stay, 15), np.tile(np.arange(15), len(stay))
    when = {} if model.posterior is None else {"times": np.tile(DAY * np.arange(15) % 6, len(stay))}
    assert np.array_equal(read.predict(*pairs, **when), model.predict(*pairs, **when))
    assert np.array_equal(read.has_seen(*pairs), model.has_seen(*pairs))
    if model.posterior is not None:
        assert model.posterior.days is not None
        assert np.array_equal(read.interval(*pairs).low, model.interval(*pairs).low)
