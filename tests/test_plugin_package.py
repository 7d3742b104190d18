"""A package of one's own (tests/plugin) is installed, and its names work everywhere; without it they are refused."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedmc
from fedmc.algorithms import registry
from fedmc.cli.federation_demo import NAMES
from fedmc.errors import InputError, ModelFileError
from fedmc.federation.server import checkpoint
from fedmc.federation.setup.policy import Policy
from fedmc.federation.wire import decode_reply, from_bytes
from fedmc.problem import plugins
from tests.command import fedmc as command
from tests.conftest import planted
from tests.loopback import Loopback
from tests.world import World, engine_on, local

SOURCE = Path(__file__).parent / "plugin"
OWN = {
    "algorithm": "momentum", "penalty_users": "ball:2.0", "penalty_items": "l2:0.1", "loss": "pseudo-huber:0.5",
    "sampler": "round-robin",
}  # fmt: skip
WORDS = (
    "--method", "momentum", "--penalty-users", "ball:2.0", "--penalty-items", "l2:0.1", "--loss", "pseudo-huber:0.5",
    "--sampler", "round-robin",
)  # fmt: skip

# Nodes use a plug-in only if their organisation's policy names it.
AGREED = Policy(algorithms=("momentum",), penalties=("ball", "l2"), losses=("pseudo-huber",))
IN_CONFIG = 'algorithms = ["momentum"]\npenalties = ["ball", "l2"]\nlosses = ["pseudo-huber"]\n'


def install(folder: Path) -> Path:
    """What pip makes of the package: its module, and its entry points in a dist-info folder."""
    about = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    info = folder / f"fedmc_example-{about['version']}.dist-info"
    info.mkdir(parents=True)
    shutil.copy(SOURCE / "fedmc_example.py", folder)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    groups = about["entry-points"].items()
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in found.items()) for group, found in groups]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def forget() -> None:
    """As in a process that has just started."""
    plugins._installed.cache_clear()
    registry._found.pop("momentum", None)
    sys.modules.pop("fedmc_example", None)
    importlib.invalidate_caches()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    site = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def uninstall(monkeypatch) -> None:
    monkeypatch.undo()
    forget()


def test_in_python_saved_and_loaded(installed, tmp_path):
    model = fedmc.FedMC(3, clients=4, rounds=4, active=2, **OWN).fit(planted())
    assert [len(round.participants) for round in model.rounds_[1:]] == [2, 2, 2, 2]
    assert model.rounds_[-1].participants != model.rounds_[-2].participants
    free = np.delete(model.model_.U, 3, axis=1)  # column 3 is the fixed 1 of the biases
    assert np.linalg.norm(free, axis=1).max() <= 2 * (1 + 1e-9)
    model.save(tmp_path / "model.npz")
    again = fedmc.load(tmp_path / "model.npz")
    assert again.settings == model.settings(4)
    np.testing.assert_array_equal(again.predict([0, 1], [2, 3]), model.predict([0, 1], [2, 3]))
    uninstall(installed)
    with pytest.raises(ModelFileError, match="unknown"):
        fedmc.load(tmp_path / "model.npz")
    with pytest.raises(InputError, match="unknown method 'momentum': choose one of fedmc, linearised"):
        fedmc.FedMC(method="momentum").settings(3)


def test_at_the_command_line(installed, tmp_path):
    table = write_table(tmp_path)
    done = command("train", table, "--rank", 2, "--clients", 4, "--rounds", 3, *WORDS, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert 'algorithm = "momentum"' in (tmp_path / "run" / "settings.toml").read_text()
    assert command("recommend", tmp_path / "run", 0, "-n", 2).returncode == 0
    words = "--rank", 2, "--clients", 4, "--active", 2, "--rounds", 3, "--seeds", 1, "--out", tmp_path / "compared"
    done = command("compare", table, "--methods", "fedmc,momentum", *words)
    assert done.returncode == 0, done.stderr
    assert "FedAvg with momentum" in (tmp_path / "compared" / "summary.csv").read_text()
    uninstall(installed)
    done = command("train", table, "--method", "momentum", "--out", tmp_path / "none")
    assert done.returncode == 2
    assert "unknown method 'momentum'" in done.stderr


def write_table(folder: Path) -> Path:
    entries = planted().matrix.tocoo()
    rows = zip(entries.row, entries.col, entries.data, strict=True)
    path = folder / "ratings.csv"
    path.write_text("user,item,rating\n" + "".join(f"{u},{i},{r:.4f}\n" for u, i, r in rows))
    return path


@pytest.mark.parametrize("mode", [{"active": 2}, {"active": 4, "privacy": "secagg", "min_cohort": 3}])
def test_in_a_federation(installed, tmp_path, mode):
    settings = fedmc.Settings.preset("fast", rank=2, **OWN, **mode)
    world = World(tmp_path / "world", policy=AGREED)
    found = world.finish(settings, 3)
    assert found.broadcast.V.tobytes() == local(settings, 3)[1].broadcast.V.tobytes()
    world.close()


def test_a_node_without_it_refuses_with_a_status_of_its_own(installed, tmp_path, caplog):
    world = World(tmp_path / "world", policy=AGREED)
    world.finish(fedmc.Settings.preset("fast", rank=2, active=2, **OWN), 1)
    last = checkpoint.load(world.path).checkpoint
    asked = engine_on(None).asking.encoded(0, last.broadcast._replace(task="round", round=2))
    uninstall(installed)
    reply = decode_reply(*from_bytes(world.ask(0, asked)))
    assert reply.status == "missing-plugin"
    assert "unknown loss 'pseudo-huber'" in caplog.text
    world.close()


@pytest.mark.slow
def test_over_flower_with_nodes_that_have_it_installed(installed, tmp_path):
    federation = Loopback(tmp_path)
    for name in NAMES:
        config = federation.folder / name / "config.toml"
        text = config.read_text().replace("[policy]\n", f"[policy]\n{IN_CONFIG}")
        config.write_text(text)
    try:
        federation.start_all()
        done = federation.train("own", 2, *WORDS)
        assert done.returncode == 0, done.stdout + done.stderr + federation.log("server")
        federation.check_bits("own")
    finally:
        federation.end()
