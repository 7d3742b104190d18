"""What a run is compared with: each figure against one that is computed another way."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import Settings
from fedmc.data import counts
from fedmc.data.counts import Counts
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.prepare import Plan, federation_of
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.errors import InputError
from fedmc.evaluation import baselines, biases, single
from fedmc.evaluation.baselines import Baselines
from fedmc.evaluation.pooled import bias_rmse
from fedmc.training import simulation
from fedmc.training.stopping import Stop
from tests.conftest import planted

ROUNDS = 8


class World:
    """Ratings over four clients, and a model of them."""

    def __init__(self, preset="fast", clients=4, ratings=None, **settings):
        self.train, self.test = at_random(planted(users=60) if ratings is None else ratings, 0.2, 0)
        self.owner = assign_users(len(self.train.users), clients, 0)
        shards = make_shards(self.train, self.owner, "float64", self.test)
        self.federation = Federation(shards, self.train.users, self.train.items)
        self.settings = Settings.preset(preset, **{"rank": 2, "active": clients, **settings})
        self.run = simulation.train(self.federation, self.settings, Stop(ROUNDS))

    @property
    def rmse(self):
        return self.run.history[-1].diagnostics.test_rmse

    def trained(self, shards):
        """The test RMSE of the same algorithm on other clients, measured in training."""
        federation = self.federation._replace(shards=shards)
        settings = self.settings.replace(active=1, privacy="plain", sampler="uniform")
        return simulation.train(federation, settings, Stop(ROUNDS)).history[-1].diagnostics.test_rmse


@pytest.fixture(scope="module", params=["fast", "bayes"])
def world(request):
    return World(request.param)


@pytest.fixture(scope="module")
def found(world):
    return baselines.compute(world.run.model, world.federation, ROUNDS)


def test_biases_are_those_of_alternating_least_squares(world, found):
    assert found.biases == pytest.approx(bias_rmse(world.train, world.test), rel=1e-4)
    assert baselines.biases_only(world.run.model, world.federation).biases == found.biases


def test_each_client_alone_is_a_run_of_one_client(world, found):
    shards = world.federation.shards
    assert all(len(shard.rated) == len(world.train.items) for shard in shards), "no item is left out"
    own = [world.trained([shard.renumbered(0)]) for shard in shards]
    assert [one.alone for one in found.clients] == pytest.approx(own, rel=1e-9)
    sizes = [shard.test.nnz for shard in shards]
    assert [one.held_out for one in found.clients] == sizes
    assert found.alone == pytest.approx(np.sqrt(np.average(np.square(own), weights=sizes)))
    assert found.trained_alone == 4


def test_together_is_what_was_measured_in_training(world, found):
    assert found.together == pytest.approx(world.rmse, rel=1e-9)


def test_a_client_alone_keeps_its_own_objective():
    world, own = World(), Objective(penalty_users="l2:500")
    plain = baselines.compute(world.run.model, world.federation, ROUNDS)
    found = baselines.compute(world.run.model, world.federation, ROUNDS, objectives={1: own})
    changed = [a.alone != b.alone for a, b in zip(plain.clients, found.clients, strict=True)]
    assert changed == [False, True, False, False]


def test_pooled_is_a_run_of_one_client_with_all_ratings(world, found):
    whole = make_shards(world.train, np.zeros(len(world.train.users), int), "float64", world.test)
    assert found.pooled == pytest.approx(world.trained(whole), rel=1e-9)


def test_an_item_that_a_client_never_rated_is_predicted_without_it():
    """A held-out rating of such an item counts: it is predicted by the mean and the user's bias."""
    world = World(clients=12, ratings=planted(users=30, items=40, density=0.15))
    client = next(k for k, one in enumerate(world.federation.shards) if not np.isin(one.test.indices, one.rated).all())
    shard = world.federation.shards[client]
    model = single.alone(world.federation, client, single.settings_of_one(world.settings), ROUNDS)
    assert len(model.items) == len(shard.rated) < len(world.federation.items)
    held_out, total = shard.test.tocoo(), 0.0
    for row, column, rating in zip(held_out.row, held_out.col, held_out.data, strict=True):
        place = np.flatnonzero(shard.rated == column)
        V = model.V[place[0]] if len(place) else np.array([0, 0, 0, 1.0])  # [v, b_item, 1]
        total += (model.scaling.mean + model.scaling.scale * (model.U[row] @ V) - rating) ** 2
    assert single.score(model, world.federation, client) == pytest.approx((total, len(held_out.data)))


def test_biases_of_days_count_where_times_are_known(tmp_path):
    entries = planted(users=30).matrix.tocoo()
    lines = [
        f"u{u},{i},{x:.2f},{86_400 * (7 * (u + i) % 40)}"
        for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)
    ]
    (tmp_path / "timed.csv").write_text("user,item,rating,time\n" + "\n".join(lines) + "\n")
    plan = Plan(str(tmp_path / "timed.csv"), split="0.2", clients=3, times=True)
    federation = federation_of(plan, "float64")
    settings = Settings.preset("bayes", rank=2, active=3)
    run = simulation.train(federation, settings, Stop(ROUNDS))
    assert run.model.posterior.days is not None
    found = baselines.compute(run.model, federation, ROUNDS)
    assert found.together == pytest.approx(run.history[-1].diagnostics.test_rmse, rel=1e-6)
    assert found.pooled is not None
    assert federation.period == (0, 86_400 * 39)


def test_events_are_compared_by_their_ranking():
    ratings = planted(users=60, items=30, density=0.3)
    events = replace(ratings, matrix=abs(ratings.matrix))
    world = World("implicit", ratings=events, clients=3)
    found = baselines.compute(world.run.model, world.federation, ROUNDS)
    assert (found.measure, found.biases) == ("ndcg_20", None)
    assert found.together == pytest.approx(world.run.history[-1].diagnostics.ranking["test_ndcg_20"])
    assert 0 < found.alone <= 1
    assert 0 < found.pooled <= 1
    assert baselines.biases_only(world.run.model, world.federation) is None


@pytest.mark.parametrize("mode", [{"privacy": "secagg", "min_cohort": 3}, {"privacy": "dp", "dp_rounds": ROUNDS}])
def test_nobody_hides_from_itself(mode):
    world = World(**mode)
    settings = single.settings_of_one(world.settings)
    assert (settings.privacy.mode, settings.active) == ("plain", 1)
    found = baselines.compute(world.run.model, world.federation, ROUNDS)
    assert found.alone == pytest.approx(baselines.compute(World().run.model, world.federation, ROUNDS).alone)


def test_small_clients_are_not_listed():
    """The figures of a client with a single user would be about this user."""
    world = World(clients=20)
    found = baselines.compute(world.run.model, world.federation, ROUNDS)
    assert {len(shard.users) for shard in world.federation.shards} == {3}
    assert (found.trained_alone, found.clients) == (20, ())


def test_of_many_clients_some_are_trained_alone(monkeypatch):
    monkeypatch.setattr(baselines, "MOST", 2)
    world = World(clients=6)
    assert baselines.chosen(world.federation) == [0, 3]
    assert baselines.compute(world.run.model, world.federation, ROUNDS).trained_alone == 2


def test_what_takes_long_can_be_interrupted(world):
    found = baselines.compute(world.run.model, world.federation, ROUNDS, interrupted=lambda: True)
    assert found == baselines.biases_only(world.run.model, world.federation)


def test_nothing_held_out_is_nothing_to_compare():
    world = World()
    bare = [replace(shard, test=None) for shard in world.federation.shards]
    federation = world.federation._replace(shards=bare)
    assert baselines.compute(world.run.model, federation, ROUNDS) is None
    assert baselines.biases_only(world.run.model, federation) is None


def test_users_and_items_without_ratings_have_no_bias():
    ratings = Ratings.from_arrays(["a", "a", "b", "c"], [1, 2, 1, 1], [5, 1, 4, 2])
    (shard,) = make_shards(ratings.with_entries(np.array([True, False, True, False])), np.zeros(3, int), "float64")
    fitted = biases.fit([shard], weight=1.0)
    assert fitted.mean == 4.5
    assert (fitted.items[1], fitted.users[2]) == (0, 0)
    assert fitted.users[0] == pytest.approx(-fitted.users[1]) == pytest.approx(0.25)


@pytest.mark.parametrize("block", [1, 50, biases.BLOCK])
def test_biases_minimise_the_penalised_error(monkeypatch, block):
    """Against the normal equations of all offsets at once; however many users are taken at a time."""
    monkeypatch.setattr(biases, "BLOCK", block)
    ratings = planted(users=30, items=12)
    shards = make_shards(ratings, assign_users(30, 3, 0), "float64")
    fitted, entries = biases.fit(shards, weight=2.0), ratings.matrix.tocoo()
    A = np.zeros((len(entries.data), 42))
    A[np.arange(len(A)), entries.row] = A[np.arange(len(A)), 30 + entries.col] = 1
    found = np.linalg.solve(A.T @ A + 2 * np.eye(42), A.T @ (entries.data - entries.data.mean()))
    assert np.concatenate([fitted.users, fitted.items]) == pytest.approx(found, abs=2e-3)
    assert np.abs(A @ np.concatenate([fitted.users, fitted.items]) - A @ found).max() < 2e-3


def test_files_are_whole_and_checked(found, tmp_path):
    assert baselines.load(tmp_path) is None
    baselines.save(found, tmp_path)
    assert baselines.load(tmp_path) == found
    assert [path.name for path in tmp_path.iterdir()] == [baselines.FILE]
    record = json.loads((tmp_path / baselines.FILE).read_text())
    for wrong in ({"alone": "<b>"}, {"measure": "x"}, {"more": 1}, {"clients": [{"client": 1}]}, {"clients": 5}):
        (tmp_path / baselines.FILE).write_text(json.dumps(record | wrong))
        with pytest.raises(InputError, match=r"baselines\.json is damaged: .*; remove it"):
            baselines.load(tmp_path)
    (tmp_path / baselines.FILE).write_text("[")
    with pytest.raises(InputError, match="damaged"):
        baselines.load(tmp_path)


def test_counts_of_the_data(world, tmp_path):
    made = counts.of(world.federation, events=False)
    total = len(world.train) + len(world.test)
    assert made[:6] == (60, 15, len(world.train), len(world.test), 0, 4)
    assert made.held_out == pytest.approx(len(world.test) / total)
    assert made.lowest == world.train.matrix.data.min()
    counts.save(made, tmp_path)
    assert counts.load(tmp_path) == made
    for wrong in ('{"users": "<b>"}', "[]", json.dumps(made._asdict() | {"users": "<b>"})):
        (tmp_path / counts.FILE).write_text(wrong)
        with pytest.raises(InputError, match=r"data\.json is damaged"):
            counts.load(tmp_path)


def test_values_that_are_known():
    assert Baselines("rmse", 0.9).values() == {"biases": 0.9}
    assert Counts(1, 1, 0, 0, 0, 1).held_out == 0
