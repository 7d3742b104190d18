"""Biases by user and day: honest splits, the bound, the same bits, and nothing of them in any message."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc import FedMC
from fedmc.algorithms import days as biases
from fedmc.algorithms.bayes import Bayes
from fedmc.algorithms.settings import Settings
from fedmc.data.days import SECONDS, days_of, find
from fedmc.data.partition import make_shards
from fedmc.data.prepare import Parts, opened_federation, write_prepared
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random, last
from fedmc.errors import InputError, ModelFileError
from fedmc.model import load
from fedmc.training import members
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.tuning import hold_out
from tests.command import fedmc
from tests.conftest import examples

CLIENTS, ROUNDS = 3, 12


def moody(seed: int = 0, users: int = 60, items: int = 20, mood: float = 1.0) -> Ratings:
    """Ratings over several days, with a bias for each user and day."""
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(rng.random((users, items)) < 0.6)
    days = rng.integers(0, 4, len(rows)) + 15_000
    moods = mood * rng.normal(size=(users, 4))
    values = 3 + rng.normal(size=items)[columns] + moods[rows, days - 15_000] + 0.3 * rng.normal(size=len(rows))
    return Ratings.from_arrays(rows, columns, values, days * SECONDS + rng.integers(0, SECONDS, len(rows)))


def shards_of(ratings: Ratings, test: Ratings | None = None):
    return make_shards(ratings, np.arange(len(ratings.users)) % CLIENTS, "float64", test)


def history(shards, active=CLIENTS, extrapolation=0.0, number=ROUNDS, **changes):
    settings = Settings.preset("bayes", rank=2, active=active, extrapolation=extrapolation, **changes)
    engine = LocalEngine(shards)
    return list(islice(rounds(engine, settings), number + 1)), engine


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 40_000)), min_size=1, max_size=30, unique=True),
    st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 40_000)), max_size=30),
)
@examples(50)
def test_groups_are_found(known, wanted):
    known = sorted(known)
    users, numbers = (np.array(part, np.int64) for part in zip(*known, strict=True))
    asked = [*known, *wanted]
    rows, days = (np.array(part, np.int64) for part in zip(*asked, strict=True))
    expected = [known.index(pair) if pair in known else -1 for pair in asked]
    assert find(users, numbers, rows, days).tolist() == expected


def test_held_out_ratings_get_only_days_with_training_ratings():
    train, test = at_random(moody(), 0.3, 1)
    for shard in shards_of(train, test):
        days = shard.days
        assert days is not None
        assert days.of_test is not None
        assert days.counts.min() >= 1
        assert days.counts.sum() == shard.by_user.nnz
        known = set(zip(days.users.tolist(), days.numbers.tolist(), strict=True))
        assert len(known) == len(days.users)
        rows = np.repeat(np.arange(len(shard.users)), np.diff(shard.test.indptr))
        assert (days.users[days.of_test[days.of_test >= 0]] == rows[days.of_test >= 0]).all()
    for shard in shards_of(*last(moody(), 3)):  # after the split there may be days that nothing is known of
        assert (shard.days.of_test < len(shard.days.users)).all()


@pytest.mark.parametrize("active", [CLIENTS, 1])
def test_the_bound_never_falls(active):
    found, _ = history(shards_of(moody()), active, number=25, sampler="passes")
    bounds = np.array([round.diagnostics.bound for round in found[1 + CLIENTS :]])
    assert (np.diff(bounds) >= -1e-10 * np.abs(bounds[1:])).all()


def test_a_wrong_update_lowers_the_bound(monkeypatch):
    honest = biases.fitted

    def beyond(shard, known, errors, noise):
        found = honest(shard, known, errors, noise)
        return found._replace(means=1.5 * found.means)

    monkeypatch.setattr(biases, "fitted", beyond)
    bounds = np.array([round.diagnostics.bound for round in history(shards_of(moody()), number=25)[0][1:]])
    assert (np.diff(bounds) < -1e-10 * np.abs(bounds[1:])).any()


def test_biases_are_those_of_ridge_regression():
    (shard,) = make_shards(moody(), np.zeros(60, np.int64), "float64")
    errors, noise = np.random.default_rng(1).normal(size=shard.by_user.nnz), 1.7
    found = biases.fitted(shard, biases.DayBiases.empty(shard), errors, noise)
    X = np.zeros((len(errors), len(found.means)))
    X[np.arange(len(errors)), shard.days.of_ratings] = 1
    precision = biases.RIDGE * np.eye(X.shape[1]) + noise * X.T @ X
    np.testing.assert_allclose(found.means, np.linalg.solve(precision, noise * X.T @ errors), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.variances, np.diag(np.linalg.inv(precision)), rtol=1e-10)


def test_adjusted_tables_agree():
    train, test = at_random(moody(), 0.2, 1)
    shard = shards_of(train, test)[0]
    known = biases.DayBiases.empty(shard)._replace(means=np.random.default_rng(2).normal(size=len(shard.days.users)))
    found = biases.adjusted(shard, known, 2.0)
    np.testing.assert_array_equal(found.by_rated.toarray(), found.by_user.toarray()[:, shard.rated].T)
    expected = shard.by_user.data - 2 * known.means[shard.days.of_ratings]
    np.testing.assert_array_equal(found.by_user.data, expected)


def test_days_pay_where_there_are_moods():
    train, test = at_random(moody(users=150), 0.2, 3)
    users, items = test.users[test.rows()], test.items[test.matrix.indices]
    with_days = FedMC(2, clients=CLIENTS, rounds=20).fit(train)
    without = FedMC(2, clients=CLIENTS, rounds=20).fit(replace(train, times=None))
    errors = [
        np.sqrt(np.mean((model.model_.predict(users, items, times=times) - test.matrix.data) ** 2))
        for model, times in ((with_days, test.times), (with_days, None), (without, None))
    ]
    assert errors[0] < 0.85 * errors[2]
    assert errors[1] < 1.05 * errors[2]
    far = with_days.model_.predict(users, items, times=np.zeros(len(users)))  # a day that nobody rated on
    np.testing.assert_array_equal(far, with_days.model_.predict(users, items))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_batches_of_clients_change_no_bit(dtype, monkeypatch):
    found = []
    for batch in (1, 10**6):
        monkeypatch.setattr(members, "BATCH", batch)
        found.append(history(shards_of(moody()), active=2, extrapolation=0.5, dtype=dtype)[0][-1])
    np.testing.assert_array_equal(found[0].V, found[1].V)
    assert found[0].diagnostics.bound == found[1].diagnostics.bound


@pytest.mark.parametrize("privacy", ["plain", "secagg"])
def test_no_message_holds_a_bias(privacy, monkeypatch):
    sent = []
    honest = Bayes.client_update

    def spied(self, shard, state, broadcast):
        found = honest(self, shard, state, broadcast)
        sent.extend(np.asarray(getattr(part, "values", part)).ravel() for part in found[1].parts.values())
        return found

    monkeypatch.setattr(Bayes, "client_update", spied)
    monkeypatch.setattr(members, "BATCH", 1)
    changes = {} if privacy == "plain" else {"privacy": "secagg", "min_cohort": 3}
    _, engine = history(shards_of(moody()), **changes)
    numbers = np.unique(np.concatenate(sent))
    for state in engine.states:
        own = getattr(state, "inner", state)
        assert own.days.size
        assert np.abs(own.days).max() > 0.1
        for secret in (own.days, own.day_variances, own.day_ridge):
            assert not np.isin(secret[secret != 0], numbers).any()


def test_a_model_keeps_its_days(tmp_path):
    ratings = moody()
    model = FedMC(2, clients=CLIENTS, rounds=8).fit(ratings).model_
    model.save(tmp_path / "model.npz")
    users, items = ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]
    again = load(tmp_path / "model.npz")
    expected = model.predict(users, items, times=ratings.times)
    np.testing.assert_array_equal(again.predict(users, items, times=ratings.times), expected)
    assert np.abs(expected - model.predict(users, items)).max() > 0.05
    content = dict(np.load(tmp_path / "model.npz"))
    content["day_users"] = content["day_users"] + 10_000
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(ModelFileError, match="biases by user and day"):
        load(tmp_path / "bad.npz")


def test_prepared_shards_keep_days(tmp_path):
    train, test = at_random(moody(), 0.2, 1)
    owner = np.arange(len(train.users)) % CLIENTS
    write_prepared(tmp_path / "shards", Parts(train, test, None, owner, None))
    for stored, made in zip(
        opened_federation(open_prepared(tmp_path / "shards")).shards, shards_of(train, test), strict=True
    ):
        for one, other in zip(stored.days[:4], made.days[:4], strict=True):
            np.testing.assert_array_equal(one, other)


def test_times_need_a_bayesian_model():
    model = FedMC(2, preset="fast", clients=CLIENTS, rounds=2).fit(moody()).model_
    with pytest.raises(InputError, match="a time needs a Bayesian model"):
        model.predict(0, 0, times=[0])


def test_without_times_there_are_no_days():
    assert all(shard.days is None for shard in shards_of(replace(moody(), times=None)))
    empty = days_of(moody().matrix[:0].astype(np.int64), None, None)
    assert len(empty.users) == 0


def test_the_command_line_reads_times(tmp_path):
    ratings = moody()
    lines = ["user,item,rating,timestamp"]
    stored = zip(ratings.rows(), ratings.matrix.indices, ratings.matrix.data, ratings.times, strict=True)
    lines += [f"{ratings.users[row]},{ratings.items[column]},{value:.3f},{time}" for row, column, value, time in stored]
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    common = ["train", str(tmp_path / "ratings.csv"), "--rank", "2", "--rounds", "8", "--clients", "3", "--out"]
    assert fedmc(*common, tmp_path / "run", "--times").returncode == 0
    assert load(tmp_path / "run" / "model.npz").posterior.days is not None
    assert fedmc(*common, tmp_path / "plain").returncode == 0
    assert load(tmp_path / "plain" / "model.npz").posterior.days is None


def test_a_tuning_split_keeps_days_honest():
    shard = shards_of(moody())[0]
    kept = hold_out(shard, 0.2, 0)
    assert kept.days.counts.sum() == kept.by_user.nnz
    assert len(kept.days.of_validation) == kept.validation.nnz
    rows = np.repeat(np.arange(len(kept.users)), np.diff(kept.by_user.indptr))
    np.testing.assert_array_equal(kept.days.users[kept.days.of_ratings], rows)
