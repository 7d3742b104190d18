"""A life of a federation, in one process: it grows, goes on, is killed at random, and one leaves with its part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms import bayes_server
from fedmc.cli.federation_members import take_out_of
from fedmc.errors import InputError, TooFewError
from fedmc.federation.node import consents
from fedmc.federation.server import taking_out
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.setup import joining, layout
from fedmc.model import load
from fedmc.privacy.secagg.fixed import to_fixed
from fedmc.training.fixed_point import FixedPointState
from tests.living import Living, Simulated, settings_of, tables

THREE, FOUR = ["north", "south", "east"], ["north", "south", "east", "west"]
NEW = 5_000


def same(found, expected):
    """The bits of the simulation."""
    assert found.checkpoint.broadcast.V.tobytes() == expected.broadcast.V.tobytes()
    assert found.checkpoint.server.S.tobytes() == expected.server.S.tobytes()
    assert found.checkpoint.server.seen == expected.server.seen


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("exact", 1), ("bayes", 1)]
    + [
        pytest.param(kind, seed, marks=pytest.mark.nightly)
        for kind in ("exact", "curvature", "bayes")
        for seed in range(2, 12)
    ],
)
def test_a_life_with_kills_has_the_bits_of_a_simulation_with_the_same_history(kind, seed, tmp_path):
    rows, settings, simulation = tables(4), settings_of(kind), Simulated()
    living = Living(tmp_path, dict(zip(THREE, rows, strict=False)), deaths=0.04, seed=seed)

    def lives(run, names, number, start_from=""):
        found = living.train(run, settings, number, start_from)
        items = living.federation.server.catalogue().items
        same(found, simulation.train(living.shards(names), items, settings, number, warm=bool(start_from)))

    lives("january", THREE, 4)
    living.add("west", rows[3])
    with pytest.raises(TooFewError, match="joins or leaves alone without its consent"):
        living.train("refused", settings, 3, "january")
    consents.record(layout.load_node(living.made / "west"), True)
    lives("february", FOUR, 3, "january")
    grow(living)
    living.refresh("north", [*rows[0], (0, NEW, 4.0), (7_000, 3, 2.0)])
    living.refresh("south", rows[1][1:])
    lives("march", FOUR, 3, "february")
    left = living.leave("west", take_out=True, visible=True)
    same(living.take_out("march", "west"), simulation.take_out(3))
    assert living.remove(west=left) == dict.fromkeys(FOUR, "ok")
    living.stop("west")
    lives("april", THREE, 3, "march")
    assert living.killed > 10
    model = load(living.made / "north" / "model.npz")
    assert model.items[-1] == NEW
    assert np.isfinite(model.predict([0], [NEW])).all()
    living.close()


def grow(living):
    before = living.federation.server.catalogue()
    grown = before.grown(np.array([NEW]))
    replace(grown, signature=joining.sign_catalogue(living.authority, grown)).save(living.server / "catalogue.json")
    assert set(living.announce().values()) == {"ok"}


@pytest.mark.parametrize("kind", ["exact", "curvature", "bayes"])
def test_after_a_take_out_the_sum_is_exactly_that_of_the_others(kind, tmp_path):
    """As whole numbers: the server's sum against what the other nodes hold of their own contributions."""
    living = Living(tmp_path, dict(zip(FOUR, tables(4), strict=True)))
    settings = settings_of(kind)
    found = living.train("first", settings, 3)
    assert steps(found, settings) == sum_of(living, FOUR, settings)
    living.leave("west", take_out=True, visible=True)
    found = living.take_out("first", "west")
    assert steps(found, settings) == sum_of(living, FOUR[:3], settings)
    assert found.checkpoint.server.seen == 3
    assert RunFolder(living.server / "runs" / "first").status()["taken_out"] == ["west"]
    assert RunFolder(living.server / "runs" / "first").history()[-1]["taken_out"] == ["west"]
    assert own(living, "west", settings).tolist() == [0] * len(own(living, "west", settings))
    take_out_of(layout.load_server(living.server), ["west"], "first")  # a repeated command has nothing to do
    assert not taking_out.asked(living.server / "runs" / "first")
    with pytest.raises(InputError, match="nobody would be left"):
        living.take_out("first", "north", "south", "east")
    living.close()


def own(living, name, settings):
    """A node's whole contribution in its store, in whole steps."""
    store, algorithm = living.stores[name], settings.make_algorithm()
    entries = [store.get("first-run", kind, algorithm) for kind in ("pending", "committed")]
    state = next(one.state for one in entries if one.state is not None)
    assert isinstance(state, FixedPointState)
    return state.whole


def sum_of(living, names, settings):
    return sum(own(living, name, settings) for name in names).tolist()


def steps(found, settings):
    """The server's sum in whole steps: every number in it is one."""
    server, broadcast = found.checkpoint.server, found.checkpoint.broadcast._replace(task="round")
    schema = settings.make_algorithm().schema(broadcast, len(broadcast.V))
    parts = {"S": server.S}
    if settings.algorithm == "bayes":
        sums = bayes_server.sums_of(server, settings)
        parts = {"S": sums.items, "users": sums.users[None]}
    return [one for name, part in parts.items() for one in to_fixed(part, schema[name].bits, 2**62).ravel().tolist()]


class TestRefused:
    @pytest.fixture
    def living(self, tmp_path):
        found = Living(tmp_path, dict(zip("abcdefgh", tables(8), strict=True)))
        found.train("first", settings_of("exact"), 2)
        yield found
        found.close()

    def test_alone_and_without_consent(self, living):
        before = (living.server / "runs" / "first" / "server.npz").read_bytes()
        living.leave("h", take_out=True)
        with pytest.raises(TooFewError, match="not-hidden"):
            living.take_out("first", "h")
        assert (living.server / "runs" / "first" / "server.npz").read_bytes() == before
        assert taking_out.asked(living.server / "runs" / "first")  # it can be tried again, with others

    def test_enough_hide_each_other(self, living):
        for name in "efgh":
            living.leave(name, take_out=True)
        found = living.take_out("first", *"efgh")
        assert found.checkpoint.server.seen == 4

    def test_a_node_whose_organisation_did_not_say_so(self, living):
        for name in "efg":
            living.leave(name, take_out=True)
        with pytest.raises(TooFewError, match="h: masked: wrong-member"):
            living.take_out("first", *"efgh")

    def test_who_was_not_in_the_run(self, living):
        with pytest.raises(Exception, match="z was not in this run"):
            living.take_out("first", "z")
