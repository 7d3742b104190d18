"""Versions side by side: nodes of the version before under a server of this one, and what it stored goes on here."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import FedmcError, TooFewError
from fedmc.federation.envelope import open_
from fedmc.federation.protocol import OLDEST_SECURE, PROTOCOL, Served
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.training.rounds import rounds
from tests.world import (
    CATALOGUE,
    HIDDEN,
    ITEMS,
    KEYS,
    KINDS,
    NODES,
    RUN,
    SERVER,
    SIGNER,
    Between,
    Snapshot,
    World,
    engine_on,
    local,
    name_of,
)  # fmt: skip

ROOT = Path(__file__).parents[1]
EVERYBODY = KINDS["exact"].replace(active=NODES)
PUBLIC = tuple(key.public_key().public_bytes_raw().hex() for key in KEYS)
BEFORE, VERSION = "95a571b", "0.2.0"  # the last commit of protocol 1


class OldNode:
    """A node of protocol 1 in a process of its own."""

    def __init__(self, tree, folder, client):
        environment = os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(tree / ".numba_cache")}
        command = [sys.executable, str(ROOT / "tests" / "old_node.py")]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        keys = [key.private_bytes_raw().hex() for key in KEYS]
        given = {"folder": str(folder), "client": client, "keys": keys, "catalogue": CATALOGUE, "version": VERSION}
        self.process.stdin.write(json.dumps(given).encode() + b"\n")

    def answer_bytes(self, content):
        self.process.stdin.write(len(content).to_bytes(8) + content)
        self.process.stdin.flush()
        return self.process.stdout.read(int.from_bytes(self.process.stdout.read(8)))

    def end(self):
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The files of the version before."""
    archive = subprocess.run(["git", "archive", BEFORE, "fedmc", "tests"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"there is no git history with {BEFORE} here")
    folder = tmp_path_factory.mktemp(VERSION)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


class MixedWorld(World):
    """Some of the nodes are of the version before."""

    def __init__(self, folder, tree, old):
        super().__init__(folder)
        self.nodes |= {client: OldNode(tree, folder / f"old-{client}", client) for client in old}

    def close(self):
        super().close()
        for node in self.nodes.values():
            if isinstance(node, OldNode):
                node.end()


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("old", [(1, 2), tuple(range(NODES))], ids=["some", "all"])
def test_nodes_of_the_version_before_take_part_to_the_same_bits(old, tree, tmp_path):
    """In plain runs; they know another protocol of secure sums."""
    world, last = MixedWorld(tmp_path, tree, old), []
    engine = engine_on(world, served=Served(1, 2))
    found = list(itertools.islice(rounds(engine, EVERYBODY, on_checkpoint=last.append), 4))
    assert found[-1].V.tobytes() == local(EVERYBODY, 3)[1].broadcast.V.tobytes()
    assert engine.finish(last[-1].broadcast, range(NODES)) == tuple(range(NODES))
    assert engine.absent == []
    world.close()


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("settings", [EVERYBODY, HIDDEN], ids=["exact", "secagg"])
def test_a_server_may_leave_them_out(settings, tree, tmp_path):
    world = MixedWorld(tmp_path, tree, (2,))
    said = "node 2: .*wrong-version: the server speaks protocol 2, the node protocol 1: install a newer fedmc at the"
    with pytest.raises(TooFewError, match=said):
        next(rounds(engine_on(world, served=Served(2, 2)), settings))
    world.close()


@pytest.mark.parametrize("mode", ["plain", "secagg"])
def test_secure_sums_are_asked_of_nodes_of_protocol_2_only(mode, tmp_path):
    """Whatever the server's config.toml says: nodes of protocol 1 refuse what they are sent then."""
    settings, identities, oldest = (EVERYBODY, (), 1) if mode == "plain" else (HIDDEN, PUBLIC, OLDEST_SECURE)
    names = [name_of(k) for k in range(NODES)]
    folder, wire = RunFolder(tmp_path / "run"), Between(World(tmp_path / "world"))
    folder.write_plan(
        RunPlan(RUN, settings, names, list(range(NODES)), CATALOGUE, ITEMS, 1, 1, 10.0, NODES, identities, 1)
    )
    conduct(folder, wire, SIGNER)
    served = {open_(asked, SERVER.public_key(), name_of(client)).served for _, client, asked, _ in wire.seen}
    assert served == {(oldest, PROTOCOL)}
    wire.world.close()


def begun_before(kind, folder):
    """A run of the version before: its checkpoint after round 1, and the states of its nodes.

    Their first contributions are still pending.
    """
    settings, written = KINDS[kind].replace(active=NODES), ROOT / "tests" / "fixtures" / f"version-{VERSION[:3]}" / kind
    world = World(folder / "world", quorum=NODES, start=Snapshot(0, written))
    for store in world.stores.values():
        assert store.get(RUN, "pending", settings.make_algorithm()).round == 1
    return settings, world


def test_a_run_that_the_version_before_began_goes_on(tmp_path):
    settings, world = begun_before("clipped", tmp_path)
    found = world.finish(settings, 3)
    np.testing.assert_allclose(found.broadcast.V, local(settings, 3)[1].broadcast.V, rtol=1e-9, atol=1e-12)
    for store in world.stores.values():
        assert store.get(RUN, "committed", settings.make_algorithm()).round == 3
    world.close()


def test_a_secure_run_that_the_version_before_began_does_not_go_on(tmp_path):
    """Nobody has a certificate of what is in its sums: nodes would add their whole contributions a second time."""
    settings, world = begun_before("secagg", tmp_path)
    with pytest.raises(FedmcError, match="start a new run"):
        world.finish(settings, 3)
    world.close()
