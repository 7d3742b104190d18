"""Events over a real Flower: the simulation's bits and metrics, in plain mode and under secure aggregation."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.data.ratings import Ratings
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.setup import layout
from fedmc.model import load
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.loopback import NAMES, Loopback

pytestmark = pytest.mark.slow  # real processes
USERS, ITEMS, ROUNDS = 45, 20, 3
ENTRIES = '\nfeedback = "implicit"\nconfidence_scale = "log"\n'


def plays():
    """How often each user played each item: users like the items near their own number."""
    rng = np.random.default_rng(0)
    near = (np.arange(ITEMS) - np.arange(USERS)[:, None]) % ITEMS < 7
    amounts = np.where(near & (rng.random(near.shape) < 0.8), rng.integers(1, 9, near.shape), 0)
    return Ratings(np.arange(USERS), np.arange(ITEMS), sparse.csr_array(amounts.astype(float)))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Loopback(tmp_path_factory.mktemp("flower"), plays())
    for name in NAMES:
        config = made.folder / name / "config.toml"
        config.write_text(config.read_text().replace('test = "random:0.2" ', f"{ENTRIES}" + 'test = "leave:1" ', 1))
    try:
        made.start_all()
        yield made
    finally:
        made.end()


def last_round(made, plan):
    """The last round of the simulation over the nodes' own events."""
    opened = [open_folder(layout.load_node(made.folder / name)).prepared for name in plan.organisations]
    assert all(shard.by_user.data.max() > 2 for prepared in opened for shard in prepared.shards)  # by the scale log
    shards = [replace(prepared.shards[0], client=k) for k, prepared in enumerate(opened)]
    *_, last = islice(rounds(LocalEngine(shards), plan.settings, measure_every=plan.rounds), plan.rounds + 1)
    return last


@pytest.mark.parametrize("privacy", ["plain", "secagg"])
@pytest.mark.parametrize("algorithm", ["ials", pytest.param("ease", marks=pytest.mark.nightly)])
def test_events_end_with_the_simulations_bits_and_metrics(federation, algorithm, privacy):
    run = f"{algorithm}-{privacy}"
    done = federation.train(run, ROUNDS, "--algorithm", algorithm, "--json", privacy=privacy)
    assert done.returncode == 0, done.stderr + federation.log("server")
    federation.check_bits(run)
    plan = federation.run(run).plan()
    assert plan.settings.make_algorithm().name == algorithm
    last, result = last_round(federation, plan), json.loads(done.stdout.splitlines()[-1])
    assert result["test_ndcg_20"] > result["test_popular_ndcg_20"] > 0
    for name, value in last.diagnostics.ranking.items():
        assert result[name] == pytest.approx(value, abs=1e-6), name
    for name in NAMES:
        model = load(federation.folder / name / "model.npz")
        assert model.V.tobytes() == last.V.tobytes()
        assert len(model.users) == USERS // len(NAMES)
    user = load(federation.folder / "north" / "model.npz").users[0]
    said = federation.fedmc("node", "recommend", federation.folder / "north", user, "-n", 2)
    assert said.returncode == 0, said.stderr
    assert len(said.stdout.splitlines()) == 3
