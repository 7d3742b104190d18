"""The contract that every algorithm keeps: what it says about its messages and states is what it sends and keeps."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest

from fedmc.algorithms import registry
from fedmc.algorithms.client import respond
from fedmc.algorithms.fedavg import FedProx
from fedmc.algorithms.messages import NUMBER_BITS, STATEFUL_TASKS, Broadcast, Shared, Sparse, Sums, add_up, dense
from fedmc.algorithms.protocol import Sizes
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.audit import attacks
from fedmc.audit.observer import watch
from fedmc.data.partition import Shard, make_shards
from fedmc.errors import InputError
from fedmc.training import tree
from fedmc.training.aggregation import aggregation_of
from fedmc.training.fixed_point import WHOLE, FixedPointState, put_together, taken_apart
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted

CLIENTS, RANK, ROUNDS = 4, 2, 4
PLAIN = {"active": 3}
SECAGG = {"active": CLIENTS, "privacy": "secagg", "min_cohort": 3}
BAYESIAN = ("bayes", "gibbs")  # one preset has what they need
NOISED = {"active": CLIENTS, "privacy": "dp", "dp_rounds": 5, "epsilon": math.inf}  # what "dp" needs, without noise


class Asked(NamedTuple):
    """One client's part of a question: what it was sent, and the state that it had then."""

    shard: Shard
    state: State | None
    broadcast: Broadcast


class Recorder(LocalEngine):
    """The simulation, which remembers every question."""

    def __init__(self, shards):
        super().__init__(shards)
        self.asked: list[list[Asked]] = []

    def ask(self, broadcast: Broadcast, clients) -> Sums:
        self.asked.append([Asked(self.shards[k], self.states[k], broadcast) for k in sorted(clients)])
        return super().ask(broadcast, clients)


def settings_of(name: str, preset: str, given: dict) -> Settings:
    if name == "dp":
        given = NOISED | ({"privacy": "dp+secagg", "min_cohort": 3} if given.get("privacy") == "secagg" else {})
    if name in BAYESIAN:
        active = given["active"] if name == "bayes" else max(given["active"], CLIENTS)  # gibbs needs everybody
        return Settings.preset("bayes", **{"rank": RANK, "algorithm": name} | given | {"active": active})
    if registry.of_events(name):
        preset = "implicit"
    if name == "ials-blocks":
        given = given | {"active": max(given["active"], CLIENTS)}  # it needs everybody
    steps = {} if "inner_steps" in registry.find(name).unused_settings else {"inner_steps": 3}
    return Settings.preset(preset, **{"rank": RANK, "algorithm": name} | steps | given)


def user_columns(broadcast: Broadcast) -> int:
    return broadcast.settings.make_algorithm().columns(broadcast.settings, len(broadcast.V))[0]


def run(settings: Settings) -> tuple[Recorder, Broadcast]:
    """A short run: everything that was asked, and the last broadcast."""
    engine = Recorder(make_shards(planted(), np.arange(40) % CLIENTS, "float64"))
    *_, last = islice(rounds(engine, settings), ROUNDS + 1)
    return engine, last.broadcast


@pytest.mark.parametrize("preset", ["paper", "fast"])
@pytest.mark.parametrize("name", registry.names())
class TestContract:
    """What every algorithm keeps."""

    def test_it_is_found_by_its_name(self, name, preset):
        settings = settings_of(name, preset, PLAIN)
        algorithm = settings.make_algorithm()
        assert algorithm.name == name
        assert registry.find(name) is algorithm
        again = Settings.from_dict(settings.to_dict()).make_algorithm()  # events: its spec tells the defaults too
        assert (type(again), str(again)) == (type(algorithm), str(algorithm))
        assert set(algorithm.unused_settings) <= {field.name for field in fields(Settings)}

    @pytest.mark.parametrize("given", [PLAIN, SECAGG])
    def test_a_reply_holds_the_parts_of_the_schema(self, name, preset, given):
        engine, _ = run(settings_of(name, preset, given))
        tasks = {one.broadcast.task for asked in engine.asked for one in asked}
        assert {"round", "measure"} <= tasks
        for shard, state, broadcast in (one for asked in engine.asked for one in asked):
            inner = None if state is None else taken_apart(state)[0]
            reply, schema = respond(shard, inner, broadcast)[1], schema_of(broadcast, engine.items)
            assert reply.parts.keys() == schema.keys()
            for part, value in reply.parts.items():
                assert value.shape == schema[part].shape
                assert schema[part].sparse or not isinstance(value, Sparse)
                numbers = dense(value, value.shape)
                assert np.isfinite(numbers).all()
                assert not schema[part].nonnegative or (numbers >= 0).all()

    def test_cumulative_parts_are_the_contribution(self, name, preset):
        engine, last = run(settings_of(name, preset, PLAIN))
        algorithm = last.settings.make_algorithm()
        schema = algorithm.schema(last._replace(task="round"), engine.items)
        expected = {part: entry.shape for part, entry in schema.items() if entry.cumulative}
        assert algorithm.cumulative == bool(expected)
        for shard, state in zip(engine.shards, engine.states, strict=True):
            found = {} if state is None else algorithm.contribution(shard, state, last)
            assert state is None or {part: value.shape for part, value in found.items()} == expected

    def test_a_fixed_point_sum_is_the_plain_sum(self, name, preset):
        """To within half a step a client: of a running sum the sum so far, of everything else what was sent."""
        engine, _ = run(settings_of(name, preset, SECAGG))
        for asked in engine.asked:
            broadcast = asked[0].broadcast
            schema, aggregation = schema_of(broadcast, engine.items), aggregation_of(broadcast.settings.privacy)
            before = [None if one.state is None else taken_apart(one.state)[0] for one in asked]
            plain = add_up(respond(one.shard, inner, broadcast)[1] for one, inner in zip(asked, before, strict=True))
            replies = [aggregation.reply(*one) for one in asked]
            numbered = [(one.shard.client, reply) for one, (_, reply) in zip(asked, replies, strict=True)]
            pieces = tree.pieces(numbered, [client for client, _ in numbered])
            total = aggregation.combine(pieces, broadcast, engine.items).total
            for part, entry in schema.items():
                if not entry.cumulative or all(inner is None for inner in before):
                    step = len(asked) * 2.0 ** -(entry.bits + 1)
                    np.testing.assert_allclose(total[part], plain[part], rtol=1e-12, atol=step * (1 + 1e-6))
            if broadcast.task in STATEFUL_TASKS:
                self.check_running_sum(asked, [state for state, _ in replies])

    def check_running_sum(self, asked: list[Asked], states: list[State]) -> None:
        """What a client remembers to have in the sum is its contribution, rounded once."""
        broadcast = asked[0].broadcast
        algorithm = broadcast.settings.make_algorithm()
        for (shard, _, _), state in zip(asked, states, strict=True):
            inner, kept = taken_apart(state)
            exact = algorithm.contribution(shard, inner, broadcast)
            assert (WHOLE in kept) == bool(exact)
            if exact:
                schema = algorithm.schema(broadcast, shard.by_user.shape[1])
                steps = np.concatenate([values.ravel() * 2.0 ** schema[part].bits for part, values in exact.items()])
                assert np.abs(kept[WHOLE] - steps).max() <= 0.5 + 1e-6

    @pytest.mark.parametrize("given", [PLAIN, SECAGG])
    def test_states_are_of_the_declared_types(self, name, preset, given):
        engine, last = run(settings_of(name, preset, given))
        algorithm = last.settings.make_algorithm()
        for shard, state in zip(engine.shards, engine.states, strict=True):
            assert isinstance(state, FixedPointState) == (algorithm.cumulative and given is SECAGG)
            inner = taken_apart(state)[0]
            assert type(inner) in algorithm.state_types
            assert inner.U.shape == (len(shard.users), user_columns(last))
            assert all(isinstance(value, np.ndarray) for value in inner._asdict().values())

    def test_states_are_as_large_as_the_memory_estimate_says(self, name, preset):
        engine, last = run(settings_of(name, preset, PLAIN | {"active": CLIENTS}))
        users, rated = (sum(map(len, each)) for each in zip(*((s.users, s.rated) for s in engine.shards), strict=True))
        sizes = Sizes(CLIENTS, users, engine.items, rated, last.settings.width)
        said = users * user_columns(last) + last.settings.make_algorithm().state_numbers(sizes)
        taken = (state._asdict().items() for state in engine.states)
        assert sum(value.size for kept in taken for field, value in kept if field not in ("V", "rated")) == said

    def test_secure_aggregation_gives_the_plain_model(self, name, preset):
        (_, plain), (engine, hidden) = (
            run(settings_of(name, preset, given)) for given in (PLAIN | {"active": CLIENTS}, SECAGG)
        )
        np.testing.assert_allclose(hidden.V, plain.V, rtol=0, atol=1e-5)
        assert engine.joined == set(range(CLIENTS))
        assert aggregation_of(hidden.settings.privacy).masked

    @pytest.mark.parametrize("given", [PLAIN, SECAGG])
    def test_nodes_accept_what_an_honest_server_sends(self, name, preset, given):
        engine, last = run(settings_of(name, preset, given))
        for broadcast in [*(asked[0].broadcast for asked in engine.asked), last._replace(task="finish")]:
            broadcast.settings.make_algorithm().check_broadcast(broadcast)

    def test_clients_updated_together_change_no_bit(self, name, preset):
        engine, _ = run(settings_of(name, preset, PLAIN))
        for asked in engine.asked:
            broadcast = asked[0].broadcast
            algorithm = broadcast.settings.make_algorithm()
            if broadcast.task != "round" or not algorithm.can_batch(broadcast):
                continue
            single = [algorithm.client_update(*one) for one in asked]
            shards, states, _ = zip(*asked, strict=True)
            together, reply = algorithm.batch_update(shards, states, broadcast)
            expected = add_up(sums for _, sums in single)
            assert reply.sent == expected.sent
            for part, value in add_up([reply]).parts.items():
                assert value.tobytes() == expected[part].tobytes()
            for one, (other, _) in zip(together, single, strict=True):
                assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


WRONG = {
    "linearised": ({}, "beta must be one number"),
    "exact": ({"beta": np.zeros(())}, "beta must be above 0"),
    "scaffold": ({"control": np.zeros((3, 3))}, "control must have the shape of V"),
    "fedadmm": ({"rho": np.zeros(())}, "rho must be above 0"),
    "dp": ({}, "posterior is missing or has another shape"),
    "bayes": ({}, "item_roots is missing or has another shape"),
    "gibbs": ({}, "is missing or has another shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_nodes_refuse_what_no_honest_server_sends(name):
    shared, words = WRONG[name]
    _, last = run(settings_of(name, "paper", PLAIN))
    with pytest.raises(InputError, match=words):
        last.settings.make_algorithm().check_broadcast(last._replace(task="round", shared=Shared(shared)))


def test_the_contract_covers_what_is_built_in():
    assert set(registry.BUILT_IN) <= set(registry.names())
    assert set(registry.UPDATES) <= set(registry.BUILT_IN)
    assert {find.name for find in map(registry.find, registry.names())} == set(registry.names())


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="unknown algorithm 'fedsgd': choose one of linearised"):
        registry.find("fedsgd")
    for given, words in (
        ({"algorithm": "fedsgd"}, "unknown algorithm 'fedsgd'"),
        ({"method": "fedsgd"}, "unknown method 'fedsgd'"),
        ({"update": "fedavg"}, "unknown update 'fedavg'"),
        ({"algorithm": object()}, "needs name, client_update, aggregate, schema, which object lacks"),
        ({"algorithm": FedProx}, "an algorithm is an object: give FedProx\\(\\), not the class"),
        ({"algorithm": "fedprox:-1"}, "mu of fedprox must be finite and at least 0, got -1"),
        ({"algorithm": "fedprox:much"}, "'much' should be numbers"),
        ({"algorithm": "fedavg:1"}, "'fedavg:1' cannot be made of the numbers"),
        ({"algorithm": "fedavg", "method": "fedprox"}, "both name the algorithm: give one"),
        ({"method": "fedavg", "update": "exact"}, "both name the algorithm: give one"),
        ({"method": "scaffold", "beta": 3.0}, "beta has no meaning with algorithm='scaffold'"),
        ({"algorithm": "dp"}, "algorithm='dp' needs privacy='dp' or 'dp\\+secagg', got 'plain'"),
    ):
        with pytest.raises(InputError, match=words):
            Settings.preset("paper", **given)


def test_hyper_parameters_follow_the_name():
    settings = settings_of("fedprox:0.5", "paper", PLAIN)
    algorithm = settings.make_algorithm()
    assert (algorithm.name, algorithm.mu, settings.to_dict()["algorithm"]) == ("fedprox", 0.5, "fedprox:0.5")
    assert Settings.from_dict(settings.to_dict()).make_algorithm() is algorithm
    assert Settings.preset("paper", algorithm=FedProx(0.5)).to_dict()["algorithm"] == "fedprox:0.5"
    runs = [run(settings_of(spec, "paper", PLAIN))[1].V for spec in ("fedprox", "fedprox:0.1", "fedprox:0", "fedavg")]
    assert runs[0].tobytes() == runs[1].tobytes() != runs[2].tobytes() == runs[3].tobytes()


def test_an_object_under_the_name_of_another_algorithm_is_refused():
    class Mine(FedProx):
        def __str__(self):
            return self.name  # forgets mu: a saved model would be loaded with the default

    with pytest.raises(InputError, match="'fedprox' is the name of another algorithm"):
        Settings.preset("paper", algorithm=Mine(0.5))


def test_a_reply_that_is_not_the_schema_is_refused():
    class Forgetful(FedProx):
        name = "forgetful"

        def schema(self, broadcast, items):
            return {"W": super().schema(broadcast, items)["W"]}

    for given in (PLAIN, SECAGG):
        with pytest.raises(InputError, match=r"replies with \['W', 'weight'\], but its schema has \['W'\]"):
            run(Settings.preset("paper", rank=RANK, algorithm=Forgetful(0.5), **given))


@pytest.mark.parametrize("name", [name for name in registry.names() if name != "dp"])
@pytest.mark.parametrize("preset", ["paper", "fast"])
def test_what_it_says_it_leaks_the_audit_finds(name, preset):
    """From the plain messages of a client of one user, the attack tells which items were rated."""
    ratings = planted()
    shards = make_shards(ratings, np.arange(len(ratings.users)), "float64")
    settings = settings_of(name, preset, {"active": len(shards)})
    engine = watch(shards, settings, (0, 1, 2), 3)
    for client in (0, 1, 2):
        rated = np.bincount(shards[client].by_user.indices, minlength=len(ratings.items)) > 0
        assert 0 < rated.sum() < len(rated)
        assert attacks.auc(attacks.rated_items(engine.heard[client]), rated) >= 0.99


def test_a_newcomer_is_counted_in_whole_steps():
    settings = settings_of("exact", "fast", SECAGG)
    engine, _ = run(settings)
    first = next(asked for asked in engine.asked if asked[0].broadcast.task == "round")[0]
    aggregation = aggregation_of(settings.privacy)
    assert aggregation.reply(*first)[1]["joined"] == aggregation.joined_value() == 1 << NUMBER_BITS


@pytest.mark.parametrize("name", registry.UPDATES)
def test_a_contribution_in_the_shape_of_the_sum_is_gone_on_with(name):
    """As earlier versions stored it."""
    engine, _ = run(settings_of(name, "fast", SECAGG))
    shard, state, broadcast = engine.asked[-2][0]
    schema = schema_of(broadcast, engine.items)
    inner, kept = taken_apart(state)
    reply = aggregation_of(broadcast.settings.privacy).reply
    earlier = put_together(inner, {WHOLE: kept[WHOLE].reshape(schema["S"].shape)})
    np.testing.assert_array_equal(*(reply(shard, one, broadcast)[1]["S"] for one in (earlier, state)))
