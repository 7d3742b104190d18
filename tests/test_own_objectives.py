"""An organisation's own penalty and loss: in its node's config.toml, and nowhere else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.objectives import Objective, OwnObjective
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.errors import DataError
from fedmc.federation.node.checks import check_objective
from fedmc.federation.node.overview import policy_in_words
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.server import checkpoint
from fedmc.federation.setup.layout import load_node
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted
from tests.test_every_algorithm import UnluckyWorld, check_same, check_states
from tests.world import KINDS, NODES, World, engine_on

OWN = {1: Objective("box:-0.3,0.3"), 3: Objective("l1:2+l2:1", "square")}
ROUNDS = 3


class OwnWorld(UnluckyWorld):
    """Nodes with objectives of their own; nodes and server are killed on the way."""

    def node(self, client):
        return with_own(super().node(client), OWN.get(client))


def with_own(node, objective):
    """The node with its organisation's objective, as `make_node` makes it."""
    if objective is not None:
        node.terms = node.terms._replace(own=OwnObjective(objective))
    return node


@pytest.mark.parametrize("kind", ["paper", "exact", "curvature", "secagg", "secagg-exact", "clipped"])
def test_a_federation_has_the_bits_of_the_simulation(kind, tmp_path):
    settings = KINDS[kind].replace(active=NODES)
    engine = LocalEngine(make_shards(planted(), np.arange(40) % NODES, "float64"), objectives=OWN)
    kept = []
    *_, last = itertools.islice(rounds(engine, settings, on_checkpoint=kept.append), ROUNDS + 1)
    assert last.number == ROUNDS
    world = OwnWorld(tmp_path, NODES)
    check_same(world.finish(settings, ROUNDS), kept[-1])
    check_states(world, engine.states, settings.make_algorithm())
    world.close()


def terms_with(objective, tmp_path):
    return with_own(World(tmp_path).nodes[0], objective).terms


def asked(settings):
    return Broadcast("round", 1, NODES, settings, np.zeros((15, settings.width)))


@pytest.mark.parametrize(
    ("own", "settings", "words"),
    [
        (Objective("l2:5"), KINDS["bayes"], "bayes has no penalty_users that could differ by client"),
        (Objective("l2:5"), KINDS["dp"], "dp has no penalty or loss that could differ by client"),
        (Objective(loss="huber"), KINDS["curvature"], "needs the square loss, got huber"),
        (Objective("none"), KINDS["secagg"], "the users' penalty must hold every factor, got 'none'"),
    ],
)
def test_runs_that_cannot_have_it_are_refused(own, settings, words, tmp_path):
    with pytest.raises(RefusedError) as refused:
        check_objective(terms_with(own, tmp_path), asked(settings))
    assert refused.value.status == "wrong-settings"
    assert words in refused.value.reason
    assert refused.value.cure.startswith("leave [objective] out of config.toml")


def test_any_run_suits_a_node_without_one(tmp_path):
    terms = terms_with(None, tmp_path)
    for settings in KINDS.values():
        check_objective(terms, asked(settings))


CONFIG = """
organisation = "north"
server = "host:9092"
accept = ["plain"]
{}
[ratings]
source = "ratings.csv"
"""


def config(tmp_path, section):
    (tmp_path / "config.toml").write_text(CONFIG.format(section), encoding="utf-8")
    return load_node(tmp_path)


def test_config_toml_holds_it(tmp_path):
    own = config(tmp_path, '[objective]\npenalty_users = "non-negative+l2:5"\nloss = "huber:0.5"')
    assert own.objective == {"penalty_users": "non-negative+l2:5", "loss": "huber:0.5"}
    told = "with its own objective, which stays here: penalty_users non-negative+l2:5, loss huber:0.5"
    assert told in policy_in_words(own)
    assert config(tmp_path, "").objective == {}
    assert not any("objective" in line for line in policy_in_words(config(tmp_path, "")))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('[objective]\npenalty_users = "l3:5"', r"\[objective\]: unknown penalty 'l3'"),
        ('[objective]\nloss = "cube"', r"\[objective\]: unknown loss 'cube'"),
        ("[objective]\npenalty_users = 5", r"\[objective\] has penalty_users and loss, .* got {'penalty_users': 5}"),
        ('[objective]\npenalty_items = "l2:5"', "'penalty_items' is not an entry of it"),
        ('objective = "l2:5"', r"\[objective\] has penalty_users and loss, .* got 'l2:5'"),
    ],
)
def test_config_toml_is_checked(section, words, tmp_path):
    with pytest.raises(DataError, match=words):
        config(tmp_path, section)


def test_it_stays_at_the_node(tmp_path):
    """What the server broadcasts has the run's penalty; the model that the organisation keeps has its own."""
    settings, written = Settings.preset("paper", rank=3, active=NODES, beta=0.5), {}
    world = OwnWorld(tmp_path, NODES)
    last = world.finish(settings, ROUNDS)
    for client, node in world.nodes.items():
        node.on_finish = lambda request, U, state, client=client: written.update(
            {client: (request.broadcast.settings.to_dict(), U)}
        )
    engine, saved = engine_on(world), checkpoint.load(world.path)
    engine.restore(saved.counted, saved.factors, saved.measured)
    assert engine.finish(last.broadcast, range(NODES)) == tuple(range(NODES))
    assert last.broadcast.settings.penalty_users == "l2:1e-6"
    found = [written[client][0]["penalty_users"] for client in range(NODES)]
    assert found == ["l2:1e-6", "box:-0.3,0.3", "l2:1e-6", "l1:2+l2:1"]
    assert np.abs(written[1][1]).max() <= 0.3 < np.abs(written[0][1]).max()
    world.close()
