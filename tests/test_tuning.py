"""Penalty and rank chosen on the clients' own held-out ratings."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc import FedMC
from fedmc.algorithms.settings import Settings
from fedmc.cli import main
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.splits import at_random
from fedmc.errors import DataError, InputError
from fedmc.training import memory, ranks
from fedmc.training.rounds import rounds
from fedmc.training.tuning import FACTOR, Budget, Trial, best, choose, climb, hold_out
from tests.conftest import examples, local_engine, planted

BAYES = Settings.preset("bayes", rank=3, active=4)


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


# --- rank="auto"


@pytest.fixture
def table(tmp_path):
    entries = planted(users=100, items=40, rank=2, noise=0.3).matrix.tocoo()
    lines = (f"{u},{i},{r}" for u, i, r in zip(entries.row, entries.col, entries.data, strict=True))
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\n" + "\n".join(lines))
    return str(path)


@pytest.fixture
def command(capsys):
    """Runs `fedmc` with these words: (exit code, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        return ended.value.code or 0, *capsys.readouterr()

    return run


def many(rank, seed=0):
    ratings = planted(users=150, items=60, rank=rank, noise=0.3, seed=seed)
    return make_shards(ratings, assign_users(150, 4, 0), "float64")


@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (2, 1), (5, 0), (8, 1)])
def test_auto_finds_about_the_planted_rank(rank, seed):
    told = []
    settings, trials = ranks.chosen(many(rank, seed), BAYES, "auto", told.append)
    assert abs(settings.rank - rank) <= 1 + rank // 8
    assert list(trials) == told
    assert [(t.rank, t.rounds, t.validation_rmse) for t in trials] == [(ranks.FIRST, 12, None)]
    assert settings.replace(rank=3) == BAYES


def test_ratings_without_factors_get_the_smallest_rank():
    noise = make_shards(planted(rank=1, noise=30.0), assign_users(40, 4, 0), "float64")
    assert ranks.chosen(noise, BAYES, "auto")[0].rank == 1


def test_the_rank_grows_while_nearly_all_factors_are_used_and_memory_lasts(monkeypatch):
    def used(count):
        return lambda shards, settings, number: ranks.RankTrial(settings.rank, count, number, None, 0, 0.0)

    for count, tried in ((15, [20]), (16, [20, 40]), (31, [20, 40, 80]), (80, [20, 40, 80])):
        monkeypatch.setattr(ranks, "attempt", used(count))
        assert [t.rank for t in ranks.grow(shards(), BAYES)] == tried
        assert ranks.chosen(shards(), BAYES, "auto")[0].rank == count
    monkeypatch.setattr(memory, "available", lambda: 1)
    assert [t.rank for t in ranks.grow(shards(), BAYES)] == [20]


def test_shares_do_not_depend_on_how_factors_are_rotated_or_scaled(monkeypatch):
    rng = np.random.default_rng(0)
    size = 4
    means, roots = rng.normal(size=(30, size)), rng.normal(size=(30, size, size))
    turn = np.eye(size)
    turn[:3, :3] = rng.normal(size=(3, 3))
    items = rng.uniform(1, 5, size=(30, size * (size + 1) // 2 + size))
    found = []
    for change in (np.eye(size), turn):
        covariances = change @ roots @ np.swapaxes(roots, 1, 2) @ change.T
        posteriors = means @ change.T, ranks.gaussians.packed(covariances), None
        monkeypatch.setattr(ranks, "item_posteriors", lambda sums, given=posteriors: given)
        found.append(ranks.shares(ranks.ServerSums(items, items, None, None)))
    assert np.allclose(*found)
    assert len(found[0]) == 3
    assert 0 <= found[0][-1] <= found[0][0] <= 1


def test_auto_rank_trains_as_if_the_rank_was_given():
    options = dict(clients=4, rounds=6)
    auto = FedMC(rank="auto", **options).fit(planted(users=100, items=40))
    rank = auto.model_.settings.rank
    assert rank == auto.trials_[-1].used == 3
    assert auto.rank == "auto"
    assert np.array_equal(auto.model_.V, FedMC(rank, **options).fit(planted(users=100, items=40)).model_.V)
    assert FedMC(rank, **options).fit(planted()).trials_ == ()


def test_auto_rank_is_for_the_bayesian_model():
    for options in ({"preset": "fast"}, {"loss": "huber"}, {"penalty_users": "auto"}, {"method": "fedavg"}):
        with pytest.raises(InputError, match=r"needs preset 'bayes'.*give a number, or let `fedmc tune`"):
            FedMC(rank="auto", **options, clients=4).fit(planted())
    with pytest.raises(InputError, match="rank"):
        FedMC(rank="many", clients=4).fit(planted())


def test_train_says_what_choosing_the_rank_costs_and_what_it_chose(command, table, tmp_path):
    out = str(tmp_path / "run")
    code, stdout, stderr = command(
        "train", table, "--rank", "auto", "--clients", "4", "--rounds", "3", "--out", out, "--json"
    )
    assert code == 0, stderr
    assert "choosing the rank by runs of 12 rounds: rank 20, doubled up to 80 while over 75% of the factors" in stderr
    assert "rank 20: 2 factors used" in stderr
    assert "chosen: rank 2\n" in stderr
    assert json.loads(stdout.splitlines()[-1])["rank"] == 2
    assert "rank = 2\n" in (tmp_path / "run" / "settings.toml").read_text()
    for words, message in (
        (("--rank", "auto", "--preset", "fast"), "rank 'auto' needs"),
        (("--rank", "few"), "--rank takes a whole number or auto, got 'few'"),
        (("--rank", "0"), "rank must"),
    ):
        code, _, stderr = command("train", table, *words, "--out", str(tmp_path / "other"))
        assert code != 0
        assert message in stderr
        assert not (tmp_path / "other").exists()


def test_tune_compares_ranks_of_the_bayesian_model(command, table):
    code, stdout, stderr = command("tune", table, "--preset", "bayes", "--ranks", "1,2,6", "--clients", "4", "--json")
    assert code == 0, stderr
    assert "the default preset, bayes, needs no tuning" in stderr
    assert "1 trial of 12 rounds for each of 3 rank(s)" in stderr
    result = json.loads(stdout.splitlines()[-1])
    assert [t["rank"] for t in result["trials"]] == [1, 2, 6]
    assert result["rank"] in (2, 6)
    assert result["validation_rmse"] == min(t["validation_rmse"] for t in result["trials"])
    assert "factors used" in stdout
    assert f"chosen: --rank {result['rank']}" in stdout


def test_tune_says_that_only_the_preset_fast_needs_it(command, table):
    code, stdout, stderr = command("tune", table, "--ranks", "2", "--trials", "1", "--rounds", "3", "--clients", "4")
    assert code == 0, stderr
    assert "bayes, needs no tuning; tuning rank and penalty of the preset fast: at most 1 trials of 3 rounds" in stderr
    assert "--preset fast" in stdout


def test_a_model_of_events_is_tuned_by_ndcg(command, tmp_path):
    path = tmp_path / "pairs.csv"
    rng = np.random.default_rng(0)
    pairs = {(user, item) for user in range(60) for item in range(24) if item % 3 == user % 3 and rng.random() < 0.7}
    path.write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in sorted(pairs)))
    options = ("--feedback", "implicit", "--ranks", "2,4", "--trials", "4", "--clients", "3", "--json")
    code, out, error = command("tune", str(path), *options)
    assert code == 0, error
    found = json.loads(out.splitlines()[-1])
    assert found["rank"] in (2, 4)
    assert found["algorithm"].startswith("ials:")
    assert len(found["trials"]) <= 4
    assert found["validation_ndcg"] == max(trial["validation_ndcg"] for trial in found["trials"])
    code, _, error = command("tune", str(path), "--clients", "3")
    assert code == 2
    assert "--feedback implicit" in error
