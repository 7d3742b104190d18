"""Files that the commit before the packages wrote (`scripts/previous/make_fixtures.py`) open and mean the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedmc
from fedmc.data.partition import Federation
from fedmc.data.prepared import open_prepared, verify
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from scripts.compare_with_previous import compare
from tests.command import fedmc as run_command

WRITTEN = Path(__file__).parent / "fixtures" / "previous"
MODELS = sorted(path.stem for path in (WRITTEN / "models").glob("*.npz"))
RUNS = sorted(path.name for path in (WRITTEN / "federations").iterdir())


@pytest.fixture(scope="module")
def expected():
    with np.load(WRITTEN / "expected.npz", allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


@pytest.fixture
def copied(tmp_path):
    """A folder of the earlier commit that may be written to."""
    return lambda name: Path(shutil.copytree(WRITTEN / name, tmp_path / name))


def command(*arguments):
    done = run_command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tolerance(name):
    return {"rtol": 1e-4, "atol": 1e-5} if name == "float32" else {"rtol": 1e-9, "atol": 1e-10}


def test_there_is_a_file_of_each_kind():
    kinds = ("clipped", "curvature", "dp", "dp+secagg", "exact", "fedavg", "float32", "huber", "paper", "secagg")
    assert set(kinds) | {"string-ids"} == set(MODELS)
    assert set(RUNS) == {"clipped", "curvature", "dp", "exact", "paper", "secagg"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_what_it_predicted(name, expected, tmp_path):
    model = fedmc.load(WRITTEN / "models" / f"{name}.npz")
    rows, columns = np.meshgrid(model.users[::7], model.items[::4], indexing="ij")
    predicted = model.predict(rows.ravel(), columns.ravel())
    np.testing.assert_allclose(predicted, expected[f"models/{name}"], **tolerance(name))
    model.save(tmp_path / "again.npz")
    again = fedmc.load(tmp_path / "again.npz")
    assert again.U.tobytes() == model.U.tobytes()
    assert again.settings == model.settings


@pytest.mark.parametrize("name", MODELS)
def test_a_model_folds_in_new_users_as_it_did(name, expected):
    model = fedmc.load(WRITTEN / "models" / f"{name}.npz")
    new = fedmc.Ratings.from_arrays([1, 1, 2], model.items[[0, 3, 5]], [4, 2, 5.0])
    np.testing.assert_allclose(model.transform(new), expected[f"folded/{name}"], **tolerance(name))


def test_prepared_shards_train_to_the_same_model(expected):
    verify(WRITTEN / "shards")
    opened = open_prepared(WRITTEN / "shards")
    federation = Federation(opened.shards, np.concatenate(opened.ids), opened.catalogue.items)
    run = train(federation, fedmc.Settings.preset("fast", rank=3, active=3), Stop(5), measure_every=1)
    np.testing.assert_allclose(run.model.V, expected["shards/V"], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(run.model.U, expected["shards/U"], rtol=1e-6, atol=1e-8)
    assert run.history[-1].diagnostics.test_rmse == pytest.approx(float(expected["shards/test_rmse"]), rel=1e-6)


def test_a_run_folder_is_evaluated_and_reported(expected, copied):
    folder = copied("run")
    found = json.loads(command("evaluate", folder, WRITTEN / "ratings.csv", "--json"))
    assert found["rmse"] == pytest.approx(float(expected["run/rmse"]), rel=1e-9)
    command("report", folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<title>Ratings: 6 organisations, one model</title>" in page
    assert "3 organisations in each" in page
    assert json.loads(command("info", folder, "--json"))["rank"] == 3


def test_a_comparison_is_reported_and_goes_on(copied, tmp_path, monkeypatch):
    folder = copied("comparison")
    command("report", folder)
    lines = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert "FedMC-ADMM" in json.dumps(lines)
    before = {path.name: path.read_bytes() for path in (folder / "outcomes").iterdir()}
    shutil.copy(WRITTEN / "ratings.csv", tmp_path / "ratings.csv")
    monkeypatch.chdir(tmp_path)
    command(
        "compare", "ratings.csv", "--methods", "fedmc,fedmc-paper,fedavg,pooled,biases", "--seeds", "1,2",
        "--rank", "3", "--clients", "6", "--active", "3", "--rounds", "6", "--out", "comparison",
    )  # fmt: skip
    assert {path.name: path.read_bytes() for path in (folder / "outcomes").iterdir()} == before, "it ran again"


@pytest.mark.parametrize("kind", RUNS)
def test_a_federations_run_folder_opens(kind, expected, copied):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server import checkpoint
    from fedmc.federation.server.run_folder import RunFolder

    folder = RunFolder(copied("federations") / kind)
    plan = folder.plan()
    number = 3 if kind == "dp" else 4
    assert plan.organisations == ["a", "b", "c", "d"]
    assert plan.rounds == number
    assert plan.settings == fedmc.Settings.preset(**given(kind))
    assert folder.status()["state"] == "finished"
    assert [line["number"] for line in folder.history()] == list(range(number + 1))
    saved = checkpoint.load(folder.path / "server.npz").checkpoint
    assert saved.number == number
    assert saved.broadcast.settings == plan.settings
    assert saved.broadcast.V.tobytes() == expected[f"federations/{kind}/V"].tobytes()
    assert np.asarray(saved.server.S).tobytes() == expected[f"federations/{kind}/S"].tobytes()


def given(kind):
    """The settings that the run was planned with."""
    return {
        "paper": {"name": "paper", "rank": 3, "beta": 0.5, "active": 2},
        "exact": {"name": "fast", "rank": 3, "update": "exact", "active": 2},
        "curvature": {"name": "fast", "rank": 3, "active": 2},
        "secagg": {"name": "fast", "rank": 3, "active": 3, "privacy": "secagg", "min_cohort": 3},
        "dp": {"name": "fast", "rank": 2, "active": 4, "privacy": "dp", "epsilon": 5, "dp_rounds": 3},
        "clipped": {"name": "fast", "rank": 3, "active": 3, "clip": 1.0},
    }[kind]


def outcome(U=1.0, rmse=0.5, dtype="float64"):
    history = json.dumps([{"number": 0, "test_rmse": 1.0}, {"number": 1, "test_rmse": rmse}])
    values = {"U": np.array([U], dtype), "V": np.zeros(1), "scaling": np.zeros(2), "history": np.array(history)}
    return {f"a case/{name}": value for name, value in values.items()}


def test_the_comparison_with_an_earlier_commit_sees_every_bit():
    assert compare("a case", outcome(), outcome()).same
    for other in (outcome(U=1 + 2**-52), outcome(rmse=0.5 + 2**-53)):
        line = compare("a case", outcome(), other)
        assert not line.same
        assert 0 < line.difference < 1e-15
        assert not line.allowed
    assert not compare("a case", outcome(), outcome(dtype="float32")).same
    assert not compare("a case", outcome(), {"a case/error": np.array("it failed")}).same
