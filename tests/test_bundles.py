"""Whose code runs on a node: of a server that sends a bundle of its own, nothing on ours, everything on a stock one."""

from __future__ import annotations

import inspect
import os
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.federation.flower import fleet, node_client, superlink
from tests.loopback import SCRIPTS, Loopback

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "another-bundle"
version = "1.0.0"
description = "Not the one that was agreed on."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "another.server:app"
clientapp = "another.client:app"

[tool.flwr.app.config]
said = ""
"""
CLIENT = """
from pathlib import Path
from flwr.app import Message
from flwr.clientapp import ClientApp
Path({marker!r}).write_text("foreign code ran here")
app = ClientApp()
@app.query()
def query(message, context):
    return Message(message.content, reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    content = lambda: RecordDict({{"run": ConfigRecord({{"this": "print()"}})}})
    waiting = set(grid.push_messages([Message(content(), node, "query") for node in nodes]))
    said, until = [], time.time() + 60
    while waiting and time.time() < until:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            said.append("error" if reply.has_error() else "answered")
        time.sleep(0.3)
    Path({said!r}).write_text(json.dumps([len(nodes), said]))
"""


def another_bundle(folder: Path) -> tuple[Path, Path, Path]:
    """A bundle that leaves a mark where its client code runs; the mark, and what the nodes replied."""
    (folder / "bundle" / "another").mkdir(parents=True)
    mark, said = folder / "mark", folder / "said.json"
    (folder / "bundle" / "pyproject.toml").write_text(PROJECT)
    (folder / "bundle" / "another" / "__init__.py").write_text("")
    (folder / "bundle" / "another" / "client.py").write_text(CLIENT.format(marker=str(mark)))
    (folder / "bundle" / "another" / "server.py").write_text(SERVER.format(said=str(said)))
    return folder / "bundle", mark, said


def send(loopback: Loopback, bundle: Path, said: Path) -> str:
    superlink.flwr(loopback.server, "run", str(bundle), superlink.NAME)
    until = time.monotonic() + 90
    while not said.exists() or not said.read_text():
        assert time.monotonic() < until, loopback.log("server")
        time.sleep(0.2)
    return said.read_text()


def stock(loopback: Loopback, name: str) -> None:
    """Flower's own SuperNode for one organisation."""
    folder = loopback.folder / name
    command = [
        SCRIPTS / "flower-supernode", "--superlink", f"127.0.0.1:{loopback.server.port}", "--root-certificates",
        folder / "ca.crt", "--auth-supernode-private-key", folder / "node.key", "--host", "127.0.0.1", "--port",
        superlink.free_port(), "--node-config", f'folder="{folder}"',
    ]  # fmt: skip
    quiet = superlink.environment(loopback.server)
    before = os.environ.copy()
    os.environ.update(quiet)
    try:
        loopback.start(name, command, None)
    finally:
        os.environ.clear()
        os.environ.update(before)
    until = time.monotonic() + 60
    while superlink.presence(loopback.server).seen(name).stays:  # until the SuperNode calls
        assert time.monotonic() < until, loopback.log(name)
        time.sleep(0.5)


@pytest.mark.slow
def test_a_run_of_another_kind_is_refused(all_up):
    """A server that declares its run an agent's, in its own database: a wrapper of the SuperNode fell for that."""
    assert all_up.train("kind", 2, "--detach", "--patience", 15).returncode == 0
    until = time.monotonic() + 30
    while not all_up.apps() and time.monotonic() < until:
        time.sleep(0.02)
    with sqlite3.connect(all_up.server.path("superlink.db"), timeout=20) as database:
        newest = "UPDATE task SET type = 'flwr-agentapp' WHERE rowid = (SELECT max(rowid) FROM task)"
        assert database.execute(newest).rowcount == 1
    database.close()
    all_up.wait_until("kind", "failed", 60)
    for name in ("north", "south", "east"):
        assert "a run of the kind 'flwr-agentapp'" in all_up.log(name)
    assert all_up.run("kind").status()["round"] == 0


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_foreign_code_runs_on_a_stock_supernode_and_never_on_ours(all_up, tmp_path):
    bundle, mark, said = another_bundle(tmp_path / "bad")
    assert send(all_up, bundle, said) == '[3, ["error", "error", "error"]]'
    assert not mark.exists()
    assert "refused a message" in all_up.log("north")

    all_up.stop("east")
    try:
        stock(all_up, "east")  # it works with our bundle too, to the same bits ...
        done = all_up.train("stock", 1, timeout=400)
        assert done.returncode == 0, done.stderr + all_up.log("east")
        all_up.check_bits("stock")
        said.unlink()
        send(all_up, bundle, said)  # ... but runs whatever it is sent
        assert mark.read_text() == "foreign code ran here"
    finally:
        all_up.kill("east")


def test_our_node_has_no_way_to_get_a_bundle():
    """By structure: nothing in it makes the call that fetches one. (The client has it: the test can fail.)"""
    for module in (node_client, fleet):
        source = inspect.getsource(module).lower()
        assert "fab" not in source.replace("invalid_fab", "")
    assert hasattr(fleet.FleetHttpClient, "GetFab")


def test_nothing_of_flower_was_moved():
    """The conformance test: what `flower/` leans on beyond Flower's documented commands, by name and by arguments."""
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.superlink.grid.http_grid import HttpGrid
    from flwr.superlink.routers.fleet.router import router

    from fedmc.federation.flower.gateway import calls

    arguments = list(inspect.signature(fleet.FleetHttpClient.__init__).parameters)
    assert arguments == ["self", "base_url", "interceptors", "verify", "timeout", "retry_invoker"]
    made = HttpGrid(token="t")
    assert made.node.node_id == calls.SUPERLINK_NODE_ID
    for name in ("GetNodes", "PushMessages", "PullMessages", "PushObject", "PullObject", "ConfirmMessageReceived"):
        assert hasattr(made._runtime_client, name)
    assert isinstance(FLEET_HTTP_PUBLIC_KEY_HEADER, str)
    assert isinstance(FLEET_HTTP_SIGNATURE_HEADER, str)
    refused = {"register-node", "unregister-node"}  # of all calls, these two are not forwarded
    assert {route.path.rpartition("/")[2] for route in router.routes} == calls.CALLS.keys() | refused
    fields = [(field.number, field.name) for field in PushObjectRequest.DESCRIPTOR.fields]
    assert fields == [(1, "node"), (2, "run_id"), (3, "object_id"), (4, "object_content"), (5, "session_id")]
    said = subprocess.run([SCRIPTS / "flower-superlink", "--help"], capture_output=True, text=True).stdout
    for option in (
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--database",
        "--ssl-certfile",
    ):
        assert option in said
