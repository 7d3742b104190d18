"""Runs of a federation that go on from an earlier one, in process: the bits of the simulation, whatever dies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.data.catalogue import Catalogue
from fedmc.errors import DataError, InputError
from fedmc.federation.server import checkpoint, warm
from fedmc.federation.server.checkpoint import SavedRun
from fedmc.training.rounds import rounds
from fedmc.training.warm import previous_run
from tests.world import ITEMS, KINDS, ROUNDS, RelentlessWorld, World, engine_on, local

IDS = np.arange(ITEMS)
WARM = ["paper", "exact", "curvature", "bayes", "secagg", "secagg-bayes", "clipped"]


def gone_on_from(settings):
    """The end of a simulated run, as the start of another."""
    _, last = local(settings)
    return previous_run(last.broadcast, IDS, IDS, settings)


@pytest.mark.parametrize("kind", WARM)
def test_a_second_run_at_the_same_nodes_has_the_bits_of_the_simulation(kind, tmp_path):
    """The nodes know the first run; the second one is new to them, and takes nothing of their states over."""
    settings = KINDS[kind]
    world = World(tmp_path)
    first = world.finish(settings)
    previous = previous_run(first.broadcast, IDS, IDS, settings)
    engine = engine_on(world, run="second")
    found = list(itertools.islice(rounds(engine, settings, last=3, previous=previous), 4))
    _, expected = local(settings, 3, gone_on_from(settings))
    assert np.array_equal(found[-1].V, expected.broadcast.V)
    assert set(found[1].participants) == set(range(engine.clients))
    assert not np.array_equal(found[-1].V, first.broadcast.V)


@pytest.mark.parametrize("kind", ["curvature", "bayes", "secagg"])
def test_killed_everywhere_a_warm_run_has_the_same_bits(kind, tmp_path):
    settings = KINDS[kind]
    world = RelentlessWorld(tmp_path)
    world.previous = gone_on_from(settings)
    found = world.finish(settings)
    _, expected = local(settings, ROUNDS, world.previous)
    assert np.array_equal(found.broadcast.V, expected.broadcast.V)
    if expected.server.S is not None:
        assert np.array_equal(found.server.S, expected.server.S)
    assert len(world.struck) > 10


def saved_run(folder, settings, items):
    """The folder of a run that has ended, as the server keeps it."""
    folder.mkdir()
    _, last = local(settings)
    catalogue = Catalogue.of(items)
    checkpoint.save(folder / warm.SAVED, SavedRun("first", last, {}, catalogue.hash))
    warm.keep(folder, catalogue, None)
    return catalogue


def test_items_are_matched_by_their_ids(tmp_path):
    """A larger catalogue moves columns; factors stay with their items."""
    settings, old = KINDS["bayes"], np.arange(ITEMS) * 10
    saved_run(tmp_path / "first", settings, old)
    now = Catalogue.of(np.append(old, [5, 15]))
    warm.check_previous(tmp_path / "first", now, settings)
    (tmp_path / "second").mkdir()
    warm.keep(tmp_path / "second", now, tmp_path / "first")
    found = warm.previous_of(tmp_path / "second", settings)
    trained = checkpoint.load(tmp_path / "first" / warm.SAVED).checkpoint.broadcast.V
    assert found.known.tolist() == [item % 10 == 0 for item in now.items.tolist()]
    assert np.array_equal(found.V[found.known], trained)


def test_what_a_run_cannot_go_on_from_is_refused(tmp_path):
    settings = KINDS["bayes"]
    catalogue = saved_run(tmp_path / "first", settings, IDS)
    with pytest.raises(InputError, match="rank is"):
        warm.check_previous(tmp_path / "first", catalogue, settings.replace(rank=settings.rank + 1))
    with pytest.raises(DataError, match="there is no checkpoint"):
        warm.check_previous(tmp_path / "nowhere", catalogue, settings)
    (tmp_path / "first" / warm.ITEMS).unlink()  # a run of an earlier version
    warm.check_previous(tmp_path / "first", catalogue, settings)
    with pytest.raises(DataError, match="another catalogue than that of today"):
        warm.check_previous(tmp_path / "first", Catalogue.of(np.arange(ITEMS + 1)), settings)
