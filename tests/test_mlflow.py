"""Runs in MLflow, with a real store in a database file: what is logged, what is not, and what happens if it fails."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("mlflow", reason="needs the extra `mlflow`")

from mlflow.tracking import MlflowClient

from fedmc.algorithms.settings import Settings
from fedmc.cli import federation_train, tracking
from fedmc.cli.federation_progress import result_of
from fedmc.cli.tracking import Log, Tracking, tracked
from fedmc.errors import InputError
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Ratings of named users, and a tracking store; the tables of a new database take two seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    entries = planted().matrix.tocoo()
    lines = [f"person-{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def client(store, monkeypatch):
    monkeypatch.chdir(store)  # where artifacts go
    return MlflowClient(tracking_uri=uri(store))


def uri(store):
    return f"sqlite:///{store / 'runs.db'}"


def runs(client, wanted=""):
    experiment = client.get_experiment_by_name("fedmc")
    return client.search_runs([experiment.experiment_id], wanted) if experiment is not None else []


def train(store, out, *options):
    words = "train ratings.csv --preset fast --clients 4 --rounds 4 --rank 2 --report --measure-every 2"
    return fedmc(*words.split(), "--out", out, "--mlflow-uri", uri(store), *options, cwd=store)


@pytest.mark.parametrize("options", [(), ("--privacy", "secagg", "--min-cohort", "3"), ("--privacy", "dp")])
def test_a_run_is_logged_as_its_history_has_it(store, client, options):
    name = f"run-{len(options)}{''.join(options[1:2])}"
    done = train(store, name, *options)
    assert done.returncode == 0, done.stderr
    (run,) = runs(client, f"attributes.run_name = '{name}'")
    assert run.info.status == "FINISHED"
    history = [json.loads(line) for line in (store / name / "history.jsonl").read_text().splitlines()]
    measured = {key for line in history for key in line} - {"number"}
    assert {key for key in run.data.metrics if not key.startswith("final_")} == measured - {"certified"}
    if "train_rmse" in measured:
        points = client.get_metric_history(run.info.run_id, "test_rmse")
        expected = {line["number"]: line["test_rmse"] for line in history if "test_rmse" in line}
        assert {one.step: one.value for one in points} == expected
        assert run.data.metrics["final_test_rmse"] == history[-1]["test_rmse"]
    assert run.data.params["rank"] == "2"
    assert run.data.params["source"] == "ratings.csv"
    privacy = Settings.preset("fast", privacy=(*options, "", "plain")[1], min_cohort=3).privacy.mode
    assert run.data.tags["fedmc.privacy"] == privacy
    assert run.data.tags["fedmc.privacy.claim"].startswith(f"privacy {privacy}: ")
    assert sorted(one.path for one in client.list_artifacts(run.info.run_id)) == [
        "history.jsonl", "report.html", "settings.toml"
    ]  # fmt: skip


def test_nothing_about_users_is_logged(store, client):
    """Neither in the database nor among the files of all runs; the model, which knows who rated what, stays here."""
    train(store, "silent")
    assert (store / "runs.db").stat().st_size > 10_000
    files = [path for path in (store / "mlruns").rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in (store / "runs.db", *files):
        assert b"person-" not in path.read_bytes(), path
        assert path.suffix != ".npz"


def test_a_comparison_is_a_run_with_one_below_for_each_method_and_seed(store, client):
    words = "compare ratings.csv --methods fedmc,pooled --seeds 1,2 --rank 2 --clients 4 --active 2 --rounds 3"
    done = fedmc(*words.split(), "--out", "compared", "--mlflow-uri", uri(store), cwd=store)
    assert done.returncode == 0, done.stderr
    (above,) = runs(client, "attributes.run_name = 'compared'")
    assert above.data.params["seeds"] == "(1, 2)"
    assert sorted(one.path for one in client.list_artifacts(above.info.run_id)) == ["report.html", "summary.csv"]
    below = runs(client, f"tags.mlflow.parentRunId = '{above.info.run_id}'")
    assert len(below) == 4
    assert {one.info.status for one in below} == {"FINISHED"}
    with open(store / "compared" / "summary.json") as file:
        summary = {line["method"]: line["test_rmse"] for line in json.load(file)}
    for method in ("fedmc", "pooled"):
        found = [one.data.metrics["final_test_rmse"] for one in below if one.data.params["method"] == method]
        assert any(abs(sum(found) / 2 - value) < 1e-9 for value in summary.values()), (found, summary)


def test_a_failure_in_the_middle_costs_one_warning_and_not_the_run(store, client, monkeypatch):
    wanted = []

    def fails(self, run, **named):
        wanted.append(named)
        if len(wanted) > 2:
            raise OSError("the tracking server is gone")

    monkeypatch.setattr(MlflowClient, "log_batch", fails)
    done = train(store, "unlucky", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("MLflow failed, the run goes on without it: OSError: 'the tracking server is gone'") == 1
    assert len(wanted) == 3
    assert (store / "unlucky" / "model.npz").is_file()
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 4


def test_what_does_not_work_at_the_start_is_an_error_with_its_cure(store):
    words = "train ratings.csv --clients 4 --rounds 2 --out never --mlflow-uri nonsense://x"
    done = fedmc(*words.split(), cwd=store)
    assert done.returncode == 2
    assert "leave out --mlflow" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (store / "never").exists()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(InputError, match=r"pip install 'fedmc\[mlflow\]'"), tracked(Tracking(mlflow=True), "x"):
        pass


def test_nothing_is_imported_unless_asked_for(monkeypatch):
    monkeypatch.setattr(tracking, "_mlflow", None)
    with tracked(Tracking(), "x") as log:
        log.settings({"a": 1})
        log.round({"number": 0, "seconds": 1.0})
        log.end({"a": 1.0})
        assert log.child("y", Settings.preset("fast").privacy)._client is None


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (ValueError, "FAILED")])
def test_how_a_run_ended(store, client, error, status):
    with pytest.raises(error), tracked(Tracking(mlflow_uri=uri(store)), f"ended-{status}"):
        raise error
    (run,) = runs(client, f"attributes.run_name = 'ended-{status}'")
    assert run.info.status == status


def test_a_growing_history_is_logged_once(store, client, tmp_path):
    """As `fedmc federation train` reads it while a run goes on."""
    folder = RunFolder(tmp_path / "run")
    settings = Settings.preset("fast", rank=3, active=3, privacy="secagg", min_cohort=3)
    folder.write_plan(RunPlan("run-1", settings, ["a", "b", "c"], [1, 2, 3], "0", 5, 3, 1, 60.0, 3))
    with tracked(Tracking(mlflow_uri=uri(store)), "federated", settings.privacy) as log:
        for number in range(4):
            with open(folder.path / "history.jsonl", "a") as file:
                line = {
                    "number": number,
                    "seconds": 1.0,
                    "bytes_up": 10,
                    "participants": [0, 2],
                    "test_rmse": 1 / (1 + number),
                }
                file.write(json.dumps(line) + "\n")
            log.history(folder.history())
            log.history(folder.history())
        log.end(result_of(folder))
    (run,) = runs(client, "attributes.run_name = 'federated'")
    points = client.get_metric_history(run.info.run_id, "test_rmse")
    assert [(one.step, one.value) for one in points] == [(k, 1 / (1 + k)) for k in range(4)]
    assert run.data.metrics["participants"] == 2
    assert run.data.metrics["final_bytes_up"] == 40
    assert run.data.tags["fedmc.privacy"] == "secagg"


def test_a_federation_s_run_is_logged_only_while_it_is_followed(store):
    with pytest.raises(InputError, match="leave out --detach"):
        federation_train._check_tracking(Tracking(mlflow=True), detach=True)
    federation_train._check_tracking(Tracking(), detach=True)
    with pytest.raises(InputError, match="leave out --mlflow"):
        federation_train._check_tracking(Tracking(mlflow_uri="nonsense://x"), detach=False)


def test_many_settings_and_values_that_are_no_numbers(store, client):
    log = tracking._begin(uri(store), "many", {})
    log.settings({f"setting-{k}": "x" * 10_000 for k in range(230)})
    log.round({"number": 1, "seconds": float("nan"), "why": "text", "ok": True, "none": None})
    log.close()
    run = client.get_run(log._run)
    assert len(run.data.params) == 230
    assert run.data.metrics == {"ok": 1.0}
    assert isinstance(log, Log)
