"""The history of models at a node: versions, which is in use, rollback, and a new model that is no worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc import FedMC, Ratings
from fedmc.cli.federation_demo import NAMES, set_up
from fedmc.errors import InputError
from fedmc.federation.node import models
from fedmc.federation.node.models import HeldOut
from fedmc.federation.setup.layout import load_node
from fedmc.federation.setup.policy import DEFAULT
from fedmc.model import load
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture
def config(tmp_path):
    set_up(tmp_path / "federation", planted(), ("plain", "secagg"), NAMES)
    return load_node(tmp_path / "federation" / NAMES[0])


@pytest.fixture(scope="module")
def trained():
    """A good model, a bad one, and ratings that neither was trained on."""
    rng = np.random.default_rng(4)
    truth = 3 + rng.normal(size=(60, 2)) @ rng.normal(size=(2, 25)) + 0.1 * rng.normal(size=(60, 25))
    drawn = rng.random(truth.shape)
    train, test = (sparse.csr_array(np.where(some, truth, 0)) for some in (drawn < 0.5, drawn > 0.85))
    table = Ratings(np.arange(60), np.arange(25), train)
    good = FedMC(rank=2, clients=3, rounds=20).fit(table).model_
    bad = replace(good, V=good.V[::-1].copy(), posterior=None)
    return good, bad, HeldOut(table.users, table.items, test)


def test_versions_and_rollback(config, trained):
    good, bad, _ = trained
    assert models.versions(config) == []
    for run, model in (("one", good), ("two", bad)):
        assert models.keep(config, run, model)
    assert [(one.run, one.in_use) for one in models.versions(config)] == [("two", True), ("one", False)]
    assert models.rollback(config) == "one"
    assert np.array_equal(load(config.path("model.npz")).V, good.V)
    assert {one.run: one.in_use for one in models.versions(config)} == {"two": False, "one": True}
    with pytest.raises(InputError, match="no older model"):
        models.rollback(config)
    with pytest.raises(InputError, match=r"no model of run '\.\./x': choose from two, one"):
        models.rollback(config, "../x")


def test_the_model_in_use_is_never_pruned(config, trained):
    good, _, _ = trained
    for run in ("first", "second", "third", "fourth"):
        models.keep(config, run, good)
    models.rollback(config, "first")
    folder = config.path(models.FOLDER)
    models.prune(folder, folder / "fourth.npz", 2, 10**9)
    assert {one.run for one in models.versions(config)} == {"first", "fourth"}


def test_a_worse_model_is_kept_but_not_used(config, trained, caplog):
    good, bad, held_out = trained
    careful = replace(config, policy=replace(DEFAULT, no_worse=True))
    assert models.keep(careful, "good", good, held_out)
    assert not models.keep(careful, "bad", bad, held_out)
    assert "the model of run bad is not taken into use: RMSE" in caplog.text
    assert np.array_equal(load(config.path("model.npz")).V, good.V)
    assert {one.run: one.in_use for one in models.versions(config)} == {"bad": False, "good": True}
    assert models.rollback(careful, "bad") == "bad"  # by hand
    assert models.keep(careful, "better", good, held_out)


def test_without_the_policy_the_newest_is_used(config, trained):
    good, bad, held_out = trained
    models.keep(config, "good", good, held_out)
    assert models.keep(config, "bad", bad, held_out)


def test_ratings_that_a_model_was_trained_on_do_not_count(config, trained):
    """The model in use has seen what is held out today: nothing is left to compare on, and the new one is taken."""
    good, bad, held_out = trained
    careful = replace(config, policy=replace(DEFAULT, no_worse=True))
    knows = replace(good, seen=sparse.csr_array(np.ones(good.seen.shape)))
    models.keep(careful, "old", knows, held_out)
    assert models.keep(careful, "new", bad, held_out)


def test_the_commands(config, trained):
    good, bad, _ = trained
    assert "no models yet" in fedmc("node", "models", config.folder).stdout
    for run, model in (("one", good), ("two", bad)):
        models.keep(config, run, model)
    listed = fedmc("node", "models", config.folder, "--json").stdout
    assert "in use" in listed.splitlines()[0]
    assert '"run": "two"' in listed
    assert "run one is in use" in fedmc("node", "rollback", config.folder).stdout
    refused = fedmc("node", "rollback", config.folder, "--to", "three")
    assert refused.returncode == 2
    assert "choose from two, one" in refused.stderr
