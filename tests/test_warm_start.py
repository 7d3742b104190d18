"""Warm starts: runs that go on from a trained model, with new ratings, users and items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedmc import FedMC, Model, load
from fedmc.algorithms.settings import Settings
from fedmc.data import datasets
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import DataError, InputError
from fedmc.training import warm
from fedmc.training.simulation import Run, train
from fedmc.training.stopping import Stop
from tests.command import fedmc

CLIENTS = 6


def planted(seed: int = 3) -> Ratings:
    return make_ratings(Recipe(240, 60, 7_000, rank=3, noise=0.4, seed=seed))


def federation(ratings: Ratings, settings: Settings, clients: int = CLIENTS) -> Federation:
    shards = make_shards(ratings, assign_users(len(ratings.users), clients, 1), settings.dtype)
    return Federation(shards, ratings.users, ratings.items)


def trained(ratings: Ratings, settings: Settings, rounds: int, start_from: Model | None = None) -> Run:
    return train(federation(ratings, settings), settings, Stop(rounds), measure_every=1, start_from=start_from)


def part(ratings: Ratings, keep: np.ndarray) -> Ratings:
    """The kept entries, without the users and items that have none."""
    rows, entries = ratings.rows()[keep], ratings.matrix
    return Ratings.from_arrays(ratings.users[rows], ratings.items[entries.indices[keep]], entries.data[keep])


def rmse(model: Model, test: Ratings) -> float:
    known = np.isin(test.users[test.rows()], model.users) & np.isin(test.items[test.matrix.indices], model.items)
    users, items = test.users[test.rows()][known], test.items[test.matrix.indices][known]
    return float(np.sqrt(np.mean(np.square(model.predict(users, items) - test.matrix.data[known]))))


@pytest.fixture(scope="module")
def months() -> tuple[Ratings, Ratings, Ratings]:
    """What is known at first, what is known later (with new users and items), and ratings to test on."""
    whole, rng = planted(), np.random.default_rng(5)
    rows, columns = whole.rows(), whole.matrix.indices
    test = rng.random(len(whole)) < 0.2
    late = (rows >= 220) | (columns >= 55) | (rng.random(len(whole)) < 0.1)
    return part(whole, ~test & ~late), part(whole, ~test), part(whole, test)


SETTINGS = {
    "bayes": Settings.preset("bayes", rank=3, active=CLIENTS),
    "bayes, a third at a time": Settings.preset("bayes", rank=3, active=2),
    "bayes, without implicit terms": Settings.preset("bayes", rank=3, active=CLIENTS, implicit=False),
    "bayes, secagg": Settings.preset("bayes", rank=3, active=CLIENTS, privacy="secagg", min_cohort=3),
    "curvature": Settings.preset("fast", rank=3, active=2),
    "exact": Settings.preset("fast", rank=3, active=CLIENTS, update="exact"),
    "paper": Settings.preset("paper", rank=3, active=3),
    "fedavg": Settings.preset("fast", rank=3, active=3, algorithm="fedavg"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_warm_start_begins_where_the_model_ended(name: str, months: tuple[Ratings, Ratings, Ratings]) -> None:
    """On the same ratings, the first objective is near that of the end, far below that of a cold start."""
    first, _, _ = months
    settings = SETTINGS[name]
    cold = trained(first, settings, 30)
    again = trained(first, settings, 1, cold.model)
    start, end, now = (run.history[k].diagnostics.train_rmse for run, k in ((cold, 0), (cold, -1), (again, 0)))
    assert start is not None
    assert end is not None
    assert now is not None
    assert now - end < 0.1 * (start - end)
    assert again.history[1].participants == tuple(range(CLIENTS))
    assert again.history[0].scaling == cold.history[-1].scaling


@pytest.mark.parametrize("name", ["bayes", "bayes, a third at a time", "bayes, secagg", "curvature", "exact"])
def test_few_rounds_reach_what_training_from_scratch_reaches(
    name: str, months: tuple[Ratings, Ratings, Ratings]
) -> None:
    first, later, test = months
    settings = SETTINGS[name]
    before = trained(first, settings, 40).model
    scratch = rmse(trained(later, settings, 40).model, test)
    warmed = rmse(trained(later, settings, warm.ROUNDS, before).model, test)
    cold = rmse(trained(later, settings, warm.ROUNDS).model, test)
    assert warmed < 1.01 * scratch
    assert warmed < cold or cold < 1.01 * scratch


def test_new_users_and_items_are_in_the_model(months: tuple[Ratings, Ratings, Ratings]) -> None:
    first, later, _ = months
    model = trained(later, SETTINGS["bayes"], 3, trained(first, SETTINGS["bayes"], 10).model).model
    assert len(first.items) < len(later.items)
    assert len(first.users) < len(later.users)
    assert model.items.tolist() == later.items.tolist()
    assert model.users.tolist() == later.users.tolist()


def test_a_warm_start_is_reproducible(months: tuple[Ratings, Ratings, Ratings]) -> None:
    first, later, _ = months
    before = trained(first, SETTINGS["bayes"], 5).model
    runs = [trained(later, SETTINGS["bayes"], 3, before).model.V for _ in range(2)]
    assert np.array_equal(*runs)


def test_going_on_from_a_converged_model_keeps_its_bound(months: tuple[Ratings, Ratings, Ratings]) -> None:
    """Without implicit terms all of the server's model is taken over, so that nothing is lost at the optimum."""
    settings = SETTINGS["bayes, without implicit terms"].replace(extrapolation=0.0)
    cold = trained(months[0], settings, 300)
    again = trained(months[0], settings, 5, cold.model)
    before, after = cold.history[-1].diagnostics.bound, again.history[-1].diagnostics.bound
    assert before is not None
    assert after is not None
    assert after > before - 1e-3 * abs(before)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bayes", {"rank": 4}, "rank is 4, but 3"),
        ("curvature", {"normalise": "mean"}, "normalise is 'mean', but 'standard'"),
        ("bayes", {"algorithm": "gibbs", "implicit": False}, "cannot go on"),
        ("exact", {"algorithm": "curvature"}, "algorithm='exact', not 'curvature'"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, change: dict[str, object], words: str, months: tuple[Ratings, Ratings, Ratings]
) -> None:
    before = trained(months[0], SETTINGS[name], 1).model
    with pytest.raises(InputError, match=words):
        warm.check(before.settings, SETTINGS[name].replace(**change))


def test_foreign_items_are_refused(months: tuple[Ratings, Ratings, Ratings]) -> None:
    before = trained(months[0], SETTINGS["bayes"], 1).model
    with pytest.raises(InputError, match="knows none of these items"):
        warm.previous_of(before, before.items + 1_000, before.settings)
    with pytest.raises(InputError, match="whole numbers, those of the ratings text"):
        warm.previous_of(before, before.items.astype(str), before.settings)


# --- the estimator


def test_partial_fit_adds_new_ratings(months: tuple[Ratings, Ratings, Ratings]) -> None:
    first, later, test = months
    new = later.with_entries(~np.isin(_pairs(later), _pairs(first)))
    model = FedMC(rank=3, clients=CLIENTS, rounds=30, seed=1).partial_fit(first)
    assert model.partial_fit(part(new, np.ones(len(new), bool))) is model
    assert model.n_rounds_ == warm.ROUNDS
    assert model.model_.seen.nnz == len(later)
    scratch = FedMC(rank=3, clients=CLIENTS, rounds=30, seed=1).fit(later)
    assert rmse(model.model_, test) < 1.01 * rmse(scratch.model_, test)


def _pairs(ratings: Ratings) -> np.ndarray:
    return ratings.users[ratings.rows()] * 1_000_000 + ratings.items[ratings.matrix.indices]


def test_users_stay_with_their_clients() -> None:
    users, items = np.repeat(np.arange(20), 5), np.tile(np.arange(5), 20)
    values = (users * 3 + items) % 5 + 1.0
    clients = {user: "north" if user < 8 else "south" for user in range(20)}
    model = FedMC(rank=1, rounds=2).fit((users, items, values), clients=clients)
    model.partial_fit(([30, 31], [0, 1], [5.0, 2.0]), clients={30: "south", 31: "east"})
    assert model.client_of_user_.tolist() == [1] * 8 + [2] * 12 + [2, 0]
    with pytest.raises(DataError, match="to both fit and partial_fit"):
        model.partial_fit(([32], [0], [5.0]))


def test_partial_fit_replaces_a_rating_and_adds_amounts_of_events() -> None:
    users, items = np.repeat(np.arange(20), 5), np.tile(np.arange(5), 20)
    values = (users + items) % 5 + 1.0
    model = FedMC(rank=1, clients=2, rounds=2).fit((users, items, values))
    model.partial_fit(([0], [0], [5.0]))
    assert model._trained_on.table.matrix[0, 0] == 5.0
    events = FedMC(rank=1, clients=2, rounds=2, feedback="implicit").fit((users, items, values))
    events.partial_fit(([0], [0], [4.0]))
    assert events._trained_on.table.matrix[0, 0] == values[0] + 4.0


def test_partial_fit_refuses_ids_of_another_kind(months: tuple[Ratings, Ratings, Ratings]) -> None:
    model = FedMC(rank=2, clients=3, rounds=1).fit(months[0])
    before = model.model_
    with pytest.raises(DataError, match="all numbers or all text"):
        model.partial_fit((["anna"], [1], [3.0]))
    assert model.model_ is before


def test_fit_goes_on_only_with_warm_start(months: tuple[Ratings, Ratings, Ratings]) -> None:
    first, later, _ = months
    rmse_at_start = {}
    for warm_start in (False, True):
        model = FedMC(rank=3, clients=CLIENTS, rounds=8, warm_start=warm_start, measure_every=1).fit(first).fit(later)
        rmse_at_start[warm_start] = model.rounds_[0].diagnostics.train_rmse
    assert rmse_at_start[True] < 0.7 * rmse_at_start[False]


def test_warm_starts_of_events() -> None:
    rng = np.random.default_rng(2)
    table = sparse.random_array((200, 40), density=0.15, rng=rng, format="coo")
    users, items = table.coords
    first = items < 35
    model = FedMC(rank=8, clients=4, rounds=20, feedback="implicit", measure_every=1)
    model.partial_fit((users[first], items[first], np.ones(int(first.sum()))))
    model.partial_fit((users[~first], items[~first], np.ones(int((~first).sum()))))
    end = model.rounds_[-1].diagnostics.objective
    cold = FedMC(rank=8, clients=4, rounds=20, feedback="implicit", measure_every=1).fit(
        (users, items, np.ones(len(users)))
    )
    after_as_many = cold.rounds_[model.n_rounds_].diagnostics.objective
    assert end is not None
    assert after_as_many is not None
    assert end < 1.03 * cold.rounds_[-1].diagnostics.objective
    assert end < after_as_many


# --- the command line


def test_train_from_a_run(tmp_path, months: tuple[Ratings, Ratings, Ratings]) -> None:
    first, later, _ = months
    for name, ratings in (("first.csv", first), ("later.csv", later)):
        rows = zip(
            ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices], ratings.matrix.data, strict=False
        )
        lines = "\n".join(f"{user},{item},{value}" for user, item, value in rows)
        (tmp_path / name).write_text("user,item,rating\n" + lines + "\n")
    begin = ["train", str(tmp_path / "first.csv"), "--rank", "3", "--clients", "4", "--rounds", "20"]
    assert fedmc(*begin, "--out", str(tmp_path / "one")).returncode == 0
    goes_on = ["train", str(tmp_path / "later.csv"), "--clients", "4", "--from", str(tmp_path / "one")]
    done = fedmc(*goes_on, "--out", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    model = load(tmp_path / "two" / "model.npz")
    assert model.settings.rank == 3
    assert len(model.items) == len(later.items)
    assert len((tmp_path / "two" / "history.jsonl").read_text().splitlines()) == 1 + warm.ROUNDS
    refused = fedmc(*goes_on, "--rank", "5", "--out", str(tmp_path / "three"))
    assert refused.returncode == 2
    assert "rank is 5, but 3" in refused.stderr
    assert not (tmp_path / "three").exists()


def test_an_item_that_only_new_users_rated_does_not_spoil_the_others():
    """Its direction says nothing about known items: its weights begin at 0, not at whatever rounding makes of them."""
    found = datasets.demo()
    before = replace(found.with_users(np.arange(0, len(found.users), 2)), times=None)
    entries = before.matrix.tocoo()
    rows, columns = entries.coords
    users = np.concatenate([before.users[rows], np.arange(90_000, 90_010)])
    items = np.concatenate([before.items[columns], np.full(10, 10**7)])
    later = Ratings.from_arrays(users, items, np.concatenate([entries.data, np.full(10, 4.0)]))
    settings = Settings.preset("bayes", rank=5, active=CLIENTS)
    first = trained(before, settings, 4)
    begun = train(federation(later, settings), settings, Stop(1), start_from=first.model)
    weights = begun.model.posterior.hyper.users.weights
    assert np.abs(weights).max() < 10
    assert np.abs(begun.model.V[-1]).max() < 3
