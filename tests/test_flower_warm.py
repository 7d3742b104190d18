"""A second month over a real Flower: new ratings, a new item, and a run that goes on from the first one."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pandas
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytest.importorskip("mlflow", reason="needs the extra `mlflow`")

from mlflow.tracking import MlflowClient

from fedmc.data import catalogue as catalogues
from fedmc.data.catalogue import Catalogue
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.server import checkpoint, warm
from fedmc.federation.setup import layout
from fedmc.model import load
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.loopback import NAMES

pytestmark = pytest.mark.slow  # real processes
NEW_ITEM = 1_000


def add_ratings(source, item):
    """Ten new users rate an item, in a file of text or of Parquet."""
    users = range(90_000, 90_010)
    if source.suffix == ".parquet":
        table = pandas.read_parquet(source)
        rows = [[user, item, 4.0] for user in users]
        new = pandas.DataFrame(rows, columns=table.columns).astype(table.dtypes)
        pandas.concat([table, new]).to_parquet(source, index=False)
    else:
        with open(source, "a", encoding="utf-8") as file:
            file.writelines(f"{user},{item},4.0\n" for user in users)


def second_month(made):
    """Two organisations get new ratings, one of them of a new item; everybody gets the larger catalogue."""
    places = [made.folder / name for name in (*NAMES, "server")]
    larger = Catalogue.of(catalogues.load(places[0] / "catalogue.json").items, [NEW_ITEM])
    for name in NAMES:
        made.stop(name)
    for place in places:
        larger.save(place / "catalogue.json")
    for name, item in zip(NAMES[:2], (NEW_ITEM, int(larger.items[0])), strict=True):
        add_ratings(made.folder / name / layout.load_node(made.folder / name).source, item)
    for name in NAMES:
        done = made.fedmc("node", "refresh", made.folder / name)
        assert done.returncode == 0, done.stderr
        made.start_node(name)
    return larger


def expected(made, run):
    """The simulation with the same history."""
    plan = made.run(run).plan()
    opened = [open_folder(layout.load_node(made.folder / name)).prepared for name in plan.organisations]
    shards = [replace(prepared.shards[0], client=k) for k, prepared in enumerate(opened)]
    previous = warm.previous_of(made.run(run).path, plan.settings)
    found = rounds(LocalEngine(shards), plan.settings, measure_every=plan.rounds, last=plan.rounds, previous=previous)
    *_, last = islice(found, plan.rounds + 1)
    return last


def check_mlflow(store, history):
    """The run is there as the history has it, with its report."""
    client = MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("fedmc").experiment_id])
    assert (run.info.run_name, run.info.status) == ("february", "FINISHED")
    points = client.get_metric_history(run.info.run_id, "test_rmse")
    assert {one.step: one.value for one in points} == {line["number"]: line["test_rmse"] for line in history}
    assert [one.path for one in client.list_artifacts(run.info.run_id)] == ["report.html"]


@pytest.mark.parametrize("privacy", ["secagg"])
def test_the_next_month_goes_on_from_the_last_model(loopback, privacy):
    done = loopback.train("january", 6, privacy=privacy)
    assert done.returncode == 0, done.stderr
    larger = second_month(loopback)
    refused = loopback.train("wrong", 3, "--from", "january", "--rank", 4, privacy=privacy)
    assert refused.returncode == 2
    assert "rank is 4, but 3" in refused.stderr
    store = f"sqlite:///{loopback.folder / 'mlflow.db'}"
    more = "--from", "latest", "--json", "--mlflow-uri", store
    done = loopback.train("february", 3, *more, privacy=privacy)
    assert done.returncode == 0, done.stderr
    last = expected(loopback, "february")
    found = checkpoint.load(loopback.run("february").saved).checkpoint
    assert np.array_equal(found.broadcast.V, last.V)
    assert json.loads(done.stdout.splitlines()[-1])["has_model"] == list(NAMES)
    model = load(loopback.folder / NAMES[0] / "model.npz")
    assert NEW_ITEM in model.items.tolist()
    assert len(model.items) == len(larger)
    check_mlflow(store, loopback.run("february").history())
    page = (loopback.run("february").path / "report.html").read_text(encoding="utf-8")
    assert 'goes on from</td><td class="words">january<' in page
    assert loopback.fedmc("report", loopback.folder / NAMES[0]).returncode == 0, "while the node runs"
    own = (loopback.folder / NAMES[0] / "report.html").read_text(encoding="utf-8")
    assert "the model before" in own
    assert "finished" in own
