"""Ray itself: processes, made-up machines, kills, and what is left behind. `test_distributed` has the rest."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import psutil
import pytest

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, make_shards
from fedmc.training import tree
from fedmc.training.distributed import library
from fedmc.training.engines import Local, OnRay
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.command import fedmc
from tests.conftest import planted
from tests.distributed_world import bits_of_states, history
from tests.test_algorithms import settings_of
from tests.test_distributed import CASES

CLIENTS, ROUNDS = 12, 4
GIVEN = [
    {"preset": "bayes"},
    {"preset": "paper"},
    {"preset": "fast"},
    {"preset": "fast", "clip": 2.0},
    {"preset": "fast", "privacy": "secagg", "min_cohort": 3, "active": CLIENTS},
]


NOTICED = {"initial_delay_ms": 0, "period_ms": 300, "timeout_ms": 1000, "failure_threshold": 3}  # that one is gone


class Machines:
    """Three made-up machines on this one."""

    def __init__(self) -> None:
        ray = library.ray(alone=True)
        from ray.cluster_utils import Cluster

        own = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
        soon = {f"health_check_{name}": value for name, value in NOTICED.items()}
        self.cluster = Cluster(initialize_head=True, head_node_args=own | {"_system_config": soon})
        self.others = [self.cluster.add_node(**own) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def close(self) -> None:
        library.ray().shutdown()
        self.cluster.shutdown()

    def lose_one(self) -> None:
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)


def workers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            found += [process] if process.name().startswith("ray::Worker") else []
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(scope="module")
def machines():
    found = Machines()
    yield found
    found.close()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(tree, "MIN_BLOCK", 2)


def federation() -> Federation:
    ratings = planted()
    return Federation(make_shards(ratings, np.arange(40) % CLIENTS, "float64"), ratings.users, ratings.items)


def settings_for(given: dict) -> Settings:
    chosen = {"rank": 2, "active": 7} | given
    return Settings.preset(chosen.pop("preset"), **chosen)


def told(engine, settings: Settings, number: int = ROUNDS):
    return history(engine, settings, number), bits_of_states(engine), set(engine.joined)


def expected(settings: Settings, number: int = ROUNDS):
    with Local().open(federation().shards, None, {}) as engine:
        return told(engine, settings, number)


@contextmanager
def killing(seconds: list[float], kill):
    """Call `kill` after each of these waits, meanwhile."""
    over = threading.Event()

    def run() -> None:
        for wait in seconds:
            if over.wait(wait):
                return
            kill()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def kill_a_worker(chance: random.Random) -> None:
    running = workers()
    if running:
        chance.choice(running).send_signal(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
class TestMachines:
    @pytest.mark.nightly
    @pytest.mark.parametrize("given", GIVEN)
    def test_three_machines_give_the_bits_of_the_local_engine(self, machines, given):
        settings = settings_for(given)
        with OnRay(workers=3).open(federation().shards, None, {}) as engine:
            assert told(engine, settings) == expected(settings)

    @pytest.mark.nightly
    @pytest.mark.parametrize("number", range(len(CASES)))
    def test_every_algorithm(self, machines, number):
        name, preset, given = CASES[number]
        settings = settings_of(name, preset, given)
        settings = settings.replace(active=CLIENTS) if settings.active == 4 else settings
        with OnRay(workers=1 + number % 3).open(federation().shards, None, {}) as engine:
            assert told(engine, settings) == expected(settings)

    @pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.nightly) for k in range(1, 20))])
    def test_kills_of_workers_change_no_bit(self, machines, seed):
        chance = random.Random(seed)
        settings, number = settings_for(GIVEN[seed % len(GIVEN)]), 60
        waits = [chance.uniform(0.05, 1.5) for _ in range(3 if seed else 1)]
        with OnRay(workers=3).open(federation().shards, None, {}) as engine:
            history(engine, settings, 0)  # all workers are there
            before = {process.pid for process in workers()}
            with killing(waits, lambda: kill_a_worker(chance)):
                found = told(engine, settings, number)
            assert found == expected(settings, number)
            assert before - {process.pid for process in workers()}

    @pytest.mark.nightly
    def test_a_lost_machine_changes_no_bit(self, machines):
        settings, number = settings_for({"preset": "bayes"}), 60
        with OnRay(workers=3).open(federation().shards, None, {}) as engine:
            history(engine, settings, 0)
            with killing([0.3], machines.lose_one):
                found = told(engine, settings, number)
            assert found == expected(settings, number)
        assert len(machines.others) < 2


@pytest.mark.slow
def test_a_run_of_the_command_line_leaves_nothing(tmp_path):
    """The same model as without Ray, no process, no file; and Ray listens on the loopback interface only."""
    ratings = planted()
    lines = [f"u{u},i{i},{v}" for u, i, v in zip(*ratings.matrix.tocoo().coords, ratings.matrix.data, strict=True)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,rating", *lines]))
    words = ["train", "ratings.csv", "--rounds", "2", "--clients", "20", "--rank", "2", "--seed", "1"]
    run = [sys.executable, "-m", "fedmc", *words, "--engine", "ray", "--workers", "2", "--out", "on-ray", "--json"]
    (tmp_path / "t").mkdir()
    there = {"cwd": tmp_path, "env": os.environ | {"TMPDIR": str(tmp_path / "t")}}
    with (
        open(tmp_path / "stderr.txt", "w") as notes,
        subprocess.Popen(run, **there, stdout=subprocess.PIPE, stderr=notes, text=True) as process,
    ):
        seen, open_to = {}, set()
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    seen[child.pid] = child.create_time()
                    listening = [one for one in child.net_connections() if one.status == psutil.CONN_LISTEN]
                    open_to |= {one.laddr.ip.removeprefix("::ffff:") for one in listening}
            time.sleep(0.3)
        said = process.stdout.read()
    assert process.returncode == 0, (tmp_path / "stderr.txt").read_text()
    assert json.loads(said.splitlines()[-1])["rounds"] == 2
    assert len(seen) > 3
    assert open_to == {"127.0.0.1"}
    assert not [pid for pid, born in seen.items() if _lives(pid, born)]
    assert not list((tmp_path / "t").iterdir())
    assert fedmc(*words, "--out", "here", cwd=tmp_path).returncode == 0
    assert (tmp_path / "on-ray/model.npz").read_bytes() == (tmp_path / "here/model.npz").read_bytes()


def _lives(pid: int, born: float) -> bool:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.nightly
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("preset", ["paper", "fast", "bayes"])
def test_a_model_and_its_history_are_those_of_the_local_engine(machines, preset):
    settings = settings_for({"preset": preset})
    runs = [train(federation(), settings, Stop(ROUNDS), engine=one) for one in (Local(), OnRay(workers=2))]
    models = [(run.model.V.tobytes(), run.model.U.tobytes(), run.model.seen.nnz) for run in runs]
    assert models[0] == models[1]
    assert [one.diagnostics for one in runs[0].history] == [one.diagnostics for one in runs[1].history]
