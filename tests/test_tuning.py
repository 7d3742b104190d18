"""Penalty and rank chosen on the clients' own held-out ratings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc import FedMC
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.splits import at_random
from fedmc.errors import DataError, InputError
from fedmc.training.rounds import rounds
from fedmc.training.tuning import FACTOR, Budget, Trial, best, choose, climb, hold_out
from tests.conftest import examples, local_engine, planted


def shards(clients=4, **options):
    ratings = planted(users=60, **options)
    return make_shards(ratings, assign_users(60, clients, 0), "float64")


def trial(weight, rmse, rank=3):
    return Trial(rank, weight, 10, rmse, 0, 0.0)


def test_held_out_ratings_and_kept_ones_make_up_the_clients_table():
    for shard in shards():
        kept = hold_out(shard, 0.25, 1)
        assert kept.validation.nnz == int(0.25 * shard.by_user.nnz)
        assert (kept.by_user.multiply(kept.validation)).nnz == 0
        assert abs(kept.by_user + kept.validation - shard.by_user).max() == 0
        assert abs(kept.by_item - kept.by_user.T).max() == 0
        again, other = hold_out(shard, 0.25, 1), hold_out(shard, 0.25, 2)
        assert abs(again.validation - kept.validation).max() == 0
        assert abs(other.validation - kept.validation).max() > 0


@given(optimum=st.integers(-6, 6), most=st.integers(1, 20))
@examples(60)
def test_climbing_finds_the_best_weight_within_its_budget(optimum, most):
    tried = []

    def attempt(weight):
        tried.append(trial(weight, abs(np.log(weight / 10) / np.log(FACTOR) - optimum)))
        return tried[-1]

    climb(attempt, 10.0, most)
    assert len(tried) <= most
    assert len({round(t.weight, 9) for t in tried}) == len(tried)
    if most >= abs(optimum) + 3:
        assert best(tried).validation_rmse < 1e-9


def test_of_equal_trials_the_smaller_rank_wins():
    assert best([trial(1, 0.9, rank=8), trial(1, 0.9, rank=4)]).rank == 4


def test_test_ratings_play_no_part():
    ratings = planted(users=60)
    rest, test = at_random(ratings, 0.3, 0)
    garbage, _ = at_random(ratings, 0, 0)
    garbage.matrix.data[:] = 99
    owner = assign_users(60, 4, 0)
    setting = Settings.preset("fast", rank=2, active=2, penalty_users="auto")
    weighed = [
        [t._replace(seconds=0) for t in choose(make_shards(rest, owner, "float64", part), setting, Budget(3, 5))]
        for part in (test, None)
    ]
    assert weighed[0] == weighed[1]


def test_noise_asks_for_more_weight():
    chosen = []
    for noise in (0.01, 2.0):
        setting = Settings.preset("fast", rank=3, active=4, penalty_users="auto")
        chosen.append(best(choose(shards(noise=noise, density=0.8), setting, Budget(12, 15))).weight)
    assert chosen[0] < 5 < chosen[1]


def test_rank_by_the_same_means():
    setting = Settings.preset("fast", rank=1, active=4, penalty_users="auto")
    told = []
    trials = choose(shards(noise=0.05, density=0.9), setting, Budget(8, 20), (1, 3), told.append)
    assert told == trials
    assert {t.rank for t in trials} == {1, 3}
    assert best(trials).rank == 3
    assert all(t.rounds == 20 for t in trials)


def test_auto_trains_on_all_ratings_with_what_was_chosen():
    options = dict(rank=3, clients=4, rounds=6)
    auto = FedMC(**options, penalty_users="auto").fit(planted())
    words = auto.model_.settings.penalty_users
    assert words == f"l2:{best(auto.trials_).weight:.4g}"
    assert np.array_equal(auto.model_.V, FedMC(**options, penalty_users=words).fit(planted()).model_.V)


def test_a_trial_takes_four_passes():
    setting = Settings.preset("fast", rank=3, active=2, penalty_users="auto")
    assert Budget().rounds_of_a_trial(setting, 100) == 200
    assert Budget().rounds_of_a_trial(setting, 2) == 10
    assert Budget(rounds=3).rounds_of_a_trial(setting, 100) == 3


def test_bad_budgets():
    for bad, message in (({"trials": 0}, "at least 1 trial"), ({"rounds": 0}, "1 round"), ({"share": 1.5}, "got 1.5")):
        with pytest.raises(InputError, match=message):
            Budget(**bad)
    lonely = make_shards(planted(users=4, items=4, density=0.0), np.arange(4), "float64")
    with pytest.raises(DataError, match="so few ratings"):
        choose(lonely, Settings.preset("fast", rank=1, penalty_users="auto"))


def test_an_undecided_penalty_does_not_train():
    setting = Settings.preset("fast", rank=3, penalty_users="auto")
    with pytest.raises(InputError, match="still to be chosen"):
        list(itertools.islice(rounds(local_engine(planted(), 4), setting), 1))
