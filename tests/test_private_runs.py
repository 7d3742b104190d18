"""Differential privacy in a federation: nothing leaves that is not noised, and nothing over the budget, ever."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")
pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.algorithms.messages import SUM_BITS, Shared
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.errors import InputError, TooFewError
from fedmc.federation.server import checkpoint
from fedmc.federation.wire import decode, decode_reply, from_bytes
from fedmc.privacy.dp.mechanism import spent
from fedmc.problem.scaling import Scaling
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted
from tests.world import KINDS, NODES, Between, World, engine_on, invitation, read, refused

PRIVATE = ["dp", "dp+secagg"]


@pytest.mark.parametrize("kind", PRIVATE)
def test_epsilon_is_said_after_each_round_and_is_what_the_ledgers_hold(kind, tmp_path):
    world = World(tmp_path)
    wire = Between(world)
    history = list(itertools.islice(rounds(engine_on(wire), KINDS[kind]), 4))
    epsilons = [round.diagnostics.epsilon for round in history[1:]]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(5.0, abs=1e-3)
    for node in world.nodes.values():
        assert node.ledger.spent() == pytest.approx(epsilons[-1], abs=1e-3)
        assert spent(node.ledger.multipliers(), 1e-6) == pytest.approx(5.0, abs=1e-3)
    tasks = {stage for stage, *_ in wire.seen}
    assert tasks - {"open"} == {"round"}  # no moments, no measurements
    assert ("open" in tasks) == (kind == "dp+secagg")
    assert all(round.diagnostics.objective is None for round in history)


def test_what_leaves_is_whole_steps_and_nothing_else(tmp_path):
    wire = Between(World(tmp_path))
    list(itertools.islice(rounds(engine_on(wire), KINDS["dp"]), 4))
    for _, _, _, reply in wire.seen:
        sums = decode_reply(*from_bytes(reply)).sums
        assert set(sums.parts) == {"release"}
        steps = sums["release"] * 2.0**SUM_BITS
        assert (steps == np.rint(steps)).all()
        assert (sums["release"] != 0).mean() > 0.99  # noise on every number


@pytest.mark.parametrize("kind", PRIVATE)
def test_over_budget_is_refused_by_every_node_in_any_run(kind, tmp_path, caplog):
    """The budget is of the ratings, not of a run; restarts and new runs do not renew it."""
    world = World(tmp_path)
    list(itertools.islice(rounds(engine_on(world), KINDS[kind]), 4))
    for client in range(NODES):
        world.revive(client)
    again = engine_on(world, run="another-run")
    with pytest.raises(TooFewError, match="over-budget"):
        list(itertools.islice(rounds(again, KINDS[kind]), 4))
    assert "would bring epsilon to" in caplog.text
    assert all(node.ledger.spent() == pytest.approx(5.0, abs=1e-3) for node in world.nodes.values())


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_server_that_asks_for_less_noise_gets_nothing(kind, tmp_path):
    world = World(tmp_path)
    with pytest.raises(TooFewError, match="over-budget"):
        list(itertools.islice(rounds(engine_on(world), KINDS[kind].replace(epsilon=500.0)), 2))
    assert all(node.ledger.multipliers() == [] for node in world.nodes.values())


def test_a_node_without_a_budget_releases_nothing(tmp_path):
    world = World(tmp_path)
    world.nodes[1].ledger = None
    with pytest.raises(TooFewError, match=r"node 1: .*over-budget"):
        list(itertools.islice(rounds(engine_on(world), KINDS["dp"]), 2))


def test_asked_again_the_noise_is_the_same(tmp_path):
    """Also after a crash between the ledger and the store, and after one of the whole node."""
    world = World(tmp_path)
    wire = Between(world)
    list(itertools.islice(rounds(engine_on(wire), KINDS["dp"]), 2))
    client, asked, reply = wire.seen[0][1:]
    assert world.nodes[client].answer_bytes(asked) == reply
    world.revive(client)
    world.stores[client].drop("a-run")  # as if it had been killed before the state was written
    assert world.nodes[client].answer_bytes(asked) == reply
    assert len(world.nodes[client].ledger.multipliers()) == 1


def test_shared_noise_needs_everybody(tmp_path, caplog):
    """Each client adds a share of the noise only: in a smaller cohort there would be too little of it."""
    world = World(tmp_path)
    few = invitation((0, 1, 2))
    assert refused(world, asked_in(world, "dp+secagg")._replace(round=3), invitation=few).status == "not-hidden"
    assert "each client adds its share of the noise, so all of them must take part" in caplog.text


def test_metrics_are_not_asked_for_and_not_given(tmp_path):
    world = World(tmp_path)
    wire = Between(world)
    list(itertools.islice(rounds(engine_on(wire), KINDS["dp"]), 2))
    asked = decode(*read(wire.seen[0][2])).broadcast
    for task in ("measure", "moments", "scale", "start"):
        assert refused(world, asked._replace(task=task), invitation=None).status == "wrong-privacy"


def test_the_simulation_trains_and_measures():
    shards = shards_of(NODES)
    for kind in PRIVATE:
        history = list(itertools.islice(rounds(LocalEngine(shards), KINDS[kind]), 4))
        assert history[-1].diagnostics.train_rmse is not None
        assert history[-1].diagnostics.epsilon == pytest.approx(5.0, abs=1e-3)
        with pytest.raises(InputError, match="divided among 3 rounds"):
            list(itertools.islice(rounds(LocalEngine(shards), KINDS[kind]), 5))


def test_what_goes_with_it():
    settings = KINDS["dp"]
    with pytest.raises(InputError, match="all 5 clients take part"):
        next(rounds(LocalEngine(shards_of(5)), settings))
    for given, said in (
        ({"method": "fedavg"}, "needs algorithm='dp', which it chooses by itself; got fedavg"),
        ({"normalise": "standard"}, "public range"),
        ({"epsilon": 0.0}, "epsilon must lie between 0.01 and 1000"),
        ({"delta": 1.5}, "delta must lie between 1e-12 and 0.1"),
        ({"clip": 1.0}, "clip goes with privacy='plain'"),
        ({"ratings_from": 5.0}, "range of ratings must not be empty"),
        ({"biases": False}, "needs biases=True"),
    ):
        with pytest.raises(InputError, match=said):
            settings.replace(**given)
    assert Settings.preset("fast", privacy="dp", epsilon=3).normalise == "none"


def shards_of(number):
    return make_shards(planted(), np.arange(40) % number, "float64")


def test_a_dp_run_that_never_counted_a_round_can_be_gone_on_with(tmp_path):
    world = World(tmp_path, kill_at=1)
    settings = KINDS["dp"]
    found = world.finish(settings, 3)
    assert found.number == 3
    start = found._replace(number=0, server=found.server._replace(S=None), start_objective=None)
    checkpoint.save(tmp_path / "one.npz", checkpoint.SavedRun("r", start, {}, "c"))
    assert checkpoint.load(tmp_path / "one.npz").checkpoint.server.S is None


def asked_in(world, kind="dp"):
    wire = Between(world)
    list(itertools.islice(rounds(engine_on(wire), KINDS[kind]), 3))
    return [decode(*read(content)).broadcast for stage, _, content, _ in wire.seen if stage == "round"][-1]


def test_what_the_server_remembers_is_looked_at_before_any_rating(tmp_path):
    """Memory, scaling and rounds that an honest server never sends: refused, with nothing on the ledger."""
    world = World(tmp_path)
    broadcast = asked_in(world)
    spent = [node.ledger.multipliers() for node in world.nodes.values()]
    posterior = broadcast.shared.arrays["posterior"]
    wild = posterior.copy()
    wild[3, 0] = -5
    for changes in (
        {"shared": Shared({"posterior": posterior[:-4]})},
        {"shared": Shared()},
        {"shared": Shared({"posterior": wild})},
        {"scaling": Scaling(3.0, 1e-11)},
        {"round": 9},
    ):
        asked = broadcast._replace(**{"round": 3} | changes)
        answers = {refused(world, asked, client=k, invitation=None, counted=2).status for k in range(NODES)}
        assert answers == {"wrong-settings"}
    assert spent == [node.ledger.multipliers() for node in world.nodes.values()]


def test_held_out_ratings_do_not_go_with_dp(tmp_path, caplog):
    """Which ratings are held out depends on who else is there, so that one user would move everybody's part."""
    world = World(tmp_path)
    shard = world.shards[0]
    node = world.nodes[0]
    node.terms = node.terms._replace(shard=replace(shard, test=shard.by_user))
    with pytest.raises(TooFewError, match="wrong-privacy"):
        list(itertools.islice(rounds(engine_on(world), KINDS["dp"]), 2))
    assert "leave `test` out" in caplog.text
