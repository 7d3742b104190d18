"""The Flower app in examples/flower-app gives what the simulation gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmc.federation.flower import superlink
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted

APP = Path(__file__).parents[1] / "examples" / "flower-app"
SCRIPTS = Path(sys.executable).parent
CLIENTS, ROUNDS = 3, 3


@pytest.fixture
def app(monkeypatch):
    """The app's package: client_app, server_app and task."""
    monkeypatch.syspath_prepend(str(APP))
    import fedmc_flower.client_app
    import fedmc_flower.server_app
    import fedmc_flower.task

    for name in ("run_id", "node_id", "task_id"):  # Flower sets them in each process
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return fedmc_flower


@pytest.fixture
def config(tmp_path):
    """The run's config: that of pyproject.toml, with a small table."""
    source = tmp_path / "ratings.csv"
    entries = planted().matrix.tocoo()
    source.write_text("".join(f"{u},{i},{x}\n" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)))
    small = {"data": str(source), "clients": CLIENTS, "active": 2, "rounds": ROUNDS, "rank": 2, "measure-every": 1}
    return declared() | small | {"out": str(tmp_path / "out.json")}


def declared():
    import tomllib

    return tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


class OneProcess:
    """Flower's Grid, with all clients in this process; replies come in another order than the messages."""

    def __init__(self, app, config):
        self.app, self.asked, clients = app.client_app.app, 0, config["clients"]
        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": (k + 1) % clients}, RecordDict(), config)
            for k in range(clients)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages):
        self.asked += len(messages)
        return [self.app(one, self.contexts[one.metadata.dst_node_id]) for one in messages][::-1]


def simulated(app, config):
    settings = app.task.settings_of(config)
    engine = LocalEngine([app.task.shard_of(config, client) for client in range(config["clients"])])
    found = islice(rounds(engine, settings, measure_every=config["measure-every"]), config["rounds"] + 1)
    told = [(one.number, one.diagnostics) for one in found]
    return [
        {"round": k, "objective": one.objective, "test_rmse": one.test_rmse}
        for k, one in told
        if one.objective is not None
    ]


@pytest.mark.parametrize(
    ("algorithm", "clients"), [("linearised", 3), ("fedmavg", 3), ("exact", 3), ("linearised", 20)]
)
def test_gives_the_numbers_of_the_simulation(app, config, algorithm, clients):
    """More than 16 clients are added in a tree."""
    config |= {"algorithm": algorithm, "clients": clients, "active": clients - 1}
    grid = OneProcess(app, config)
    app.server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    found = json.loads(Path(config["out"]).read_text())
    assert found == simulated(app, config)
    assert found[-1]["objective"] < found[1]["objective"]
    states = {frozenset(one.state["state"].keys()) for one in grid.contexts.values() if "state" in one.state}
    assert all("U" in names for names in states)  # what a client keeps stays with it


def test_a_client_that_fails_or_is_twice_there_ends_the_run(app, config):
    grid = OneProcess(app, config)
    grid.contexts[101].node_config["partition-id"] = 1
    with pytest.raises(RuntimeError, match="expected clients 0 to 2, got"):
        app.server_app.FlowerEngine(grid, CLIENTS)
    grid = OneProcess(app, config)
    grid.send_and_receive = lambda messages: []
    with pytest.raises(RuntimeError, match="0 of 3 clients answered"):
        app.server_app.FlowerEngine(grid, CLIENTS)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_runs_with_flwr_run(app, config, tmp_path):
    """A SuperLink and three SuperNodes on loopback, and `flwr run`, as the app's README says."""
    port, home = superlink.free_port(), tmp_path / "home"
    home.mkdir()
    text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(text)
    path = os.pathsep.join([str(SCRIPTS), os.environ["PATH"]])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home), "PATH": path}
    environment = os.environ | quiet
    started = []

    def start(name, *words):
        with open(tmp_path / f"{name}.log", "wb") as log:
            started.append(subprocess.Popen(list(map(str, words)), env=environment, stdout=log, stderr=log))

    config["measure-every"] = config["rounds"] = 2
    changes = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items() if value != declared()[key])
    try:
        start("link", SCRIPTS / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port,
              "--database", tmp_path / "link.db", "--disable-runtime-dependency-installation")  # fmt: skip
        until = time.monotonic() + 60
        while not superlink.answers("127.0.0.1", port):
            assert time.monotonic() < until, (tmp_path / "link.log").read_text()
            time.sleep(0.2)
        for client in range(CLIENTS):
            start(f"node{client}", SCRIPTS / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                  "--host", "127.0.0.1", "--port", superlink.free_port(),
                  "--node-config", f"partition-id={client}")  # fmt: skip
        command = [str(SCRIPTS / "flwr"), "run", str(APP), "-c", changes]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        until = time.monotonic() + 700
        while not Path(config["out"]).exists():
            assert time.monotonic() < until, (tmp_path / "link.log").read_text()[-3000:]
            time.sleep(1)
        time.sleep(1)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
    assert json.loads(Path(config["out"]).read_text()) == simulated(app, config)
