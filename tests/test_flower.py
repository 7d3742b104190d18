"""A real Flower: SuperLink, ServerApp and nodes in processes of their own on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedmc.engines.local import LocalEngine
from fedmc.federation import checkpoint
from fedmc.partition import make_shards
from fedmc.server import rounds
from fedmc.settings import Settings
from tests.conftest import planted

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedmc.engines.flower as flower
from fedmc.engines.flower import fleet, records, transport

NODES, ROUNDS = 3, 5
BUNDLE = Path(flower.__file__).parent / "bundle"
SCRIPTS = Path(sys.executable).parent


class Federation:
    """Processes that end with the test, by their ids."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings, self.processes = folder, settings, []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "{self.address}"\ninsecure = true\n'
        )
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        poll = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "FLWR_HOME": str(home)}
        self.environment = os.environ | quiet | poll | {"PATH": path}

    def start(self, name: str, *command) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*map(str, command)], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def superlink(self) -> None:
        host, port = self.address.split(":")
        options = "--insecure", "--disable-runtime-dependency-installation", "--host", host, "--port", port
        self.start("superlink", SCRIPTS / "flower-superlink", *options)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(self.log("superlink"))

    def node(self, number: int) -> subprocess.Popen:
        state = self.folder / f"state-{number}"
        script = Path(__file__).parent / "flower_node.py"
        return self.start(f"node-{number}", sys.executable, script, number, NODES, self.address, state)

    def run(self) -> None:
        plan = {
            "settings": self.settings.to_dict(), "organisations": [f"org{k}" for k in range(NODES)],
            "catalogue": "a-hash", "items": 15, "run": "a-run", "rounds": ROUNDS, "measure_every": 1, "patience": 60,
            "quorum": NODES,
        }  # fmt: skip
        (self.folder / "plan.json").write_text(json.dumps(plan))
        command = [str(SCRIPTS / "flwr"), "run", str(BUNDLE), "test", "-c", f'folder="{self.folder}"']
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def finished(self) -> checkpoint.Checkpoint:
        until, path = time.monotonic() + 120, self.folder / "server.npz"
        while time.monotonic() < until:
            if path.exists() and checkpoint.load(path).number == ROUNDS:
                return checkpoint.load(path)
            time.sleep(0.2)
        raise AssertionError(self.log("superlink"))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def apps(self) -> list[int]:
        """The processes that our SuperLink started for the run: they have its address in their command."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if self.address.encode() in words and any(b"serverapp" in word for word in words):
                    found.append(int(entry.parent.name))
        return found

    def end(self) -> None:
        until = time.monotonic() + 20
        while self.apps() and time.monotonic() < until:
            time.sleep(0.2)  # a ServerApp that ends by itself needs its SuperLink for that
        for app in self.apps():
            os.kill(app, signal.SIGKILL)
        self._end_started()

    def _end_started(self) -> None:
        """Each with the group it leads: a SuperLink starts processes of its own."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self.processes):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self.processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, Settings.preset("fast", rank=3, active=NODES))
    yield made
    made.end()


def simulated(settings):
    engine = LocalEngine(make_shards(planted(), np.arange(40) % NODES, "float64"))
    for round in rounds(engine, settings):
        if round.number == ROUNDS:
            return round.V
    raise AssertionError


def test_a_federation_on_loopback_ends_with_the_simulations_bits(federation):
    federation.superlink()
    for number in range(NODES):
        federation.node(number)
    federation.run()
    found = federation.finished()
    assert found.cast.V.tobytes() == simulated(federation.settings).tobytes()
    assert found.counted == dict.fromkeys(range(NODES), ROUNDS)
    assert len((federation.folder / "history.jsonl").read_text().splitlines()) >= ROUNDS


@pytest.fixture
def inside_of_a_run(monkeypatch):
    """Messages can be made in a Flower process only."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def message(content: RecordDict) -> Message:
    made = Message(content, 1, "query")
    made.metadata.__dict__.update(_run_id=1, _src_node_id=1, _message_id="m")
    return made


@pytest.mark.usefixtures("inside_of_a_run")
def test_a_node_answers_bytes_of_ours_and_nothing_else():
    asked = []

    def answer(content):
        asked.append(content)
        return b"said"

    reply = fleet._reply(message(records.pack(b"asked")), fleet.SERVER_APP, answer)
    assert records.unpack(reply.content) == b"said"
    for wrong, kind in (
        (records.pack(b"asked"), "flwr-agentapp"),
        (RecordDict({"run this": ConfigRecord({"code": "print()"})}), fleet.SERVER_APP),
        (RecordDict({}), fleet.SERVER_APP),
    ):
        assert fleet._reply(message(wrong), kind, answer).has_error()
    assert asked == [b"asked"]


def test_bytes_survive_flowers_records():
    for content in (b"", b"x", bytes(range(256)) * 1000):
        assert records.unpack(records.pack(content)) == content
    with pytest.raises(KeyError):
        records.unpack(RecordDict({}))


class FakeGrid:
    """Replies by a function of (node, bytes); what Flower's Grid does, without a network."""

    def __init__(self, nodes, answer):
        self.nodes, self.answer, self.held = nodes, answer, {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for k, sent in enumerate(messages):
            name = f"{len(self.held)}-{k}"
            sent.metadata.__dict__.update(_run_id=1, _src_node_id=9, _message_id=name)
            content = self.answer(sent.metadata.dst_node_id, records.unpack(sent.content))
            self.held[name] = None if content is None else Message(records.pack(content), reply_to=sent)
            yield name

    def pull_messages(self, names):
        return [reply for name in names if (reply := self.held.pop(name, None)) is not None]


@pytest.mark.usefixtures("inside_of_a_run")
def test_who_is_who():
    """Names that are not invited, and a second node with a name that is taken, are left alone."""
    names = {11: b'{"organisation": "a"}', 12: b'{"organisation": "stranger"}', 13: b'{"organisation": "a"}', 14: b"?"}
    names[15] = b'{"organisation": "b"}'
    grid = FakeGrid(names, lambda node, content: names[node] if content == transport.HELLO else None)
    made = transport.FlowerTransport(grid, ["a", "b"], patience=5)
    made.meet(2)
    assert made.nodes == {0: 11, 1: 15}
    assert transport.hello(transport.HELLO, "a") == names[11]
    assert transport.hello(b"anything else", "a") is None
