"""A member, and whoever can write to the SuperLink's database, speaks to another organisation's node as the server.

Real processes on loopback. What the gateway refuses is told apart from what reaches the node: the node's own check must
hold without the gateway.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import httpx
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto, recorddict_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.federation.flower import node_client, superlink
from fedmc.federation.flower.records import INLINE, pack, wrap
from fedmc.federation.setup import keys
from fedmc.federation.wire import NEVER, Request, encode, to_bytes

FORGED = "forged"
REASONS = {
    "north": ["it is not signed"],
    "south": ["it is not signed", "it is addressed to another organisation than south"],
}


def forged_end(loopback, client):
    """The end of a run that never was, with item factors of the attacker's choice."""
    catalogue = loopback.server.catalogue()
    settings = Settings.preset("fast", rank=3, active=3)
    V = np.full((len(catalogue), settings.width), 7.0)
    broadcast = Broadcast("finish", 1, 3, settings, V)
    return to_bytes(*encode(Request(FORGED, client, broadcast, NEVER, catalogue.hash)))


class Database:
    """The SuperLink's database, in the hands of somebody who can write to it."""

    def __init__(self, loopback):
        self.path = loopback.server.path("superlink.db")

    def __call__(self, query, *values):
        with closing(sqlite3.connect(self.path, timeout=20)) as database, database:
            return database.execute(query, values).fetchall()

    def take(self, node, seconds=60):
        """Take a message away before its node pulls it; the server will repeat it."""
        oldest = "SELECT message_id FROM message_ins WHERE dst_node_id = ? AND delivered_at = '' LIMIT 1"
        query = f"UPDATE message_ins SET dst_node_id = 0 WHERE message_id IN ({oldest}) RETURNING message_id, run_id"
        until = time.monotonic() + seconds
        while True:
            found = self(query, signed(node))
            if found:
                return found[0]
            assert time.monotonic() < until, "no message is waiting"
            time.sleep(0.02)

    def is_inline(self, message):
        return self("SELECT length(content) FROM message_ins WHERE message_id = ?", message)[0][0] > 0

    def leaf(self, message):
        """The object that holds a message's bytes; None while it is on its way."""
        found = message
        while child := self("SELECT child_id FROM object_children WHERE parent_id = ?", found):
            found = child[0][0]
        there = self("SELECT is_available FROM objects WHERE object_id = ?", found)
        return found if there == [(1,)] and found != message else None

    def readdress(self, messages, nodes):
        for message, node in zip(messages, nodes, strict=True):
            self("UPDATE message_ins SET dst_node_id = ? WHERE message_id = ?", signed(node), message)

    def replace(self, message, content):
        """Other bytes in a message; Flower does not compare them with the object's id, which is their hash."""
        record = pack(content)
        if self.is_inline(message):
            inline = recorddict_to_proto(record).SerializeToString()
            self("UPDATE message_ins SET content = ? WHERE message_id = ?", inline, message)
        else:
            (part,) = record.values()
            self("UPDATE objects SET content = ? WHERE object_id = ?", part.deflate(), self.leaf(message))


def signed(node):
    """Flower's id of a node as SQLite holds it."""
    return node - 2**64 if node >= 2**63 else node


def inject(loopback, port, sender, receiver, run, content):
    """Push a message as the server's, with the sender's own valid key; whether it was taken."""
    nodes = superlink.registered(loopback.server)
    server = 1  # Flower's id of the SuperLink
    metadata = Metadata(run % 2**64, "", server, nodes[receiver], "", "", time.time(), 600.0, "query")
    message = make_message(metadata, pack(content))
    message.metadata.__dict__["_message_id"] = message.object_id
    folder, node = loopback.folder / sender, Node(node_id=nodes[sender])
    interceptors = [NodeAuthHttpInterceptor(*keys.load_node_keys(folder / "node.key"))]
    ca = (folder / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address(f"127.0.0.1:{port}", False, ca, interceptors=interceptors) as client:
        try:
            answer = client.PushMessages(
                PushMessagesRequest(
                    node=node,
                    messages_list=[message_to_proto(remove_content_from_message(message))],
                    message_object_trees=[get_object_tree(message)],
                )
            )
        except httpx.HTTPStatusError:
            return False
        for name, part in get_all_nested_objects(message).items():
            if name in answer.objects_to_push:
                client.PushObject(
                    PushObjectRequest(
                        node=node,
                        run_id=run % 2**64,
                        session_id=answer.session_id,
                        object_id=name,
                        object_content=part.deflate(),
                    )
                )
    return True


def stored(loopback, name):
    """What a node keeps of forged runs: it may well act on what the server really sent."""
    with closing(sqlite3.connect(loopback.folder / name / "state" / "state.sqlite")) as database:
        runs = {run for (run,) in database.execute("SELECT run FROM runs UNION SELECT run FROM states")}
    models = {path.name for path in (loopback.folder / name / "models").glob("*.npz")}
    return {one for one in (*runs, *models) if FORGED in one}


def signal_to(loopback, names, number):
    for name in names:
        with suppress(ProcessLookupError):
            os.kill(loopback.processes[name].pid, number)


def wait_for_refusals(loopback, name, began, reasons, seconds=60):
    """Until the node has refused messages for all these reasons; on a node that obeys them, until the time is up."""
    log, until = loopback.folder / f"{name}.log", time.monotonic() + seconds
    while not all(one in log.read_text(errors="replace")[began:] for one in reasons) and time.monotonic() < until:
        time.sleep(0.1)
    return log.read_text(errors="replace")[began:]


class AlteredFleet:
    """The node's side of a SuperLink whose database somebody has altered: one message at each poll."""

    def __init__(self, parcels):
        self.waiting, self.now, self.sent = list(parcels), None, []

    def poll(self, hold):
        if not self.waiting:
            raise DecodeError("a reply that is not of Flower's format")
        self.now = self.waiting.pop(0)
        trees = [] if self.now.tree is None else [self.now.tree]
        return PullMessagesResponse(messages_list=[self.now.head], message_object_trees=trees)

    def kind(self, run):
        return node_client.SERVER_APP

    def pull(self, run, names):
        return {name: self.now.objects[name] for name in names}

    def push(self, parcel):
        self.sent.append(parcel)


def altered():
    """Messages with objects, trees or inline content that Flower cannot read, and one that is as it was."""
    make = partial(make_message, Metadata(1, "", 1, 2, "", "", time.time(), 600.0, "query"))
    changes = [lambda part: b"", lambda part: b"junk", lambda part: part[:-1], lambda part: b"\0" + part]
    changes += [lambda part: part.replace(b"ConfigRecord", b"NothingRecord"), lambda part: part[::-1]]
    for content, short in ((b"content", False), (bytes(INLINE + 1), True)):
        whole = wrap(make, content, short)
        for change in changes if not short else changes[:4]:
            yield whole._replace(objects={name: change(part) for name, part in whole.objects.items()})
    inline = wrap(make, b"content", True)
    yield inline._replace(tree=None)
    for record in (RecordDict(), RecordDict({"fedmc": ConfigRecord({"bytes": 7})}), RecordDict({"a": ConfigRecord()})):
        head = ProtoMessage.FromString(inline.head.SerializeToString())
        head.content.CopyFrom(recorddict_to_proto(record))
        yield inline._replace(head=head)
    yield inline


def test_objects_that_flower_cannot_read_do_not_end_a_node(monkeypatch, caplog):
    """What lies in the SuperLink's database is parsed by Flower before there is a signature to check."""
    monkeypatch.setattr(node_client, "PAUSE", 0.0)
    messages = list(altered())
    fleet, count = AlteredFleet(messages), len(messages)
    polls = iter(range(count + 2))
    answered = []
    node_client._answer_all(
        lambda content: answered.append(content) or content,
        fleet,
        SimpleNamespace(is_running=True),
        1.0,
        lambda: next(polls, None) is not None,
    )
    assert answered == [b"content"]
    assert caplog.text.count("refused a message") == count - 1 + 2
    errors = [parcel for parcel in fleet.sent if parcel.head.HasField("error")]
    assert len(errors) == len(fleet.sent) - 1 >= count - 3


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_neither_a_member_nor_an_altered_database_speaks_for_the_server(all_up):
    """South gets a message that north wrote and one that was for north; north gets one whose bytes were replaced."""
    nodes, database, attacked = superlink.registered(all_up.server), Database(all_up), ("north", "south")
    began = {name: (all_up.folder / f"{name}.log").stat().st_size for name in attacked}
    everybody = (*attacked, "east")  # without them the run cannot go on
    signal_to(all_up, everybody, signal.SIGSTOP)
    try:
        assert all_up.train("attacked", 1, "--detach", "--patience", 60).returncode == 0
        (for_north, run), (for_south, _) = (database.take(nodes[name]) for name in attacked)
        # At once: at the next pull the SuperLink deletes messages to nodes that it does not know. And in this order,
        # since the gateway pulls for a stopped node whose poll it holds.
        database.replace(for_south, forged_end(all_up, 0))
        database.readdress((for_north, for_south), (nodes["south"], nodes["north"]))
        ports = [all_up.server.port, superlink.control_port(all_up.server)]
        injected = [inject(all_up, port, "north", "south", run, forged_end(all_up, 1)) for port in ports]
        assert injected == [False, True], "the gateway refuses it; the SuperLink takes it, else this test shows little"
        signal_to(all_up, attacked, signal.SIGCONT)
        said = {name: wait_for_refusals(all_up, name, began[name], REASONS[name]) for name in attacked}
    finally:
        signal_to(all_up, everybody, signal.SIGCONT)
    assert [stored(all_up, name) for name in attacked] == [set(), set()]
    for name in attacked:
        assert all(one in said[name] for one in REASONS[name]), said[name]
        assert all_up.alive(name)
    until = time.monotonic() + 90
    while (state := all_up.run("attacked").status()["state"]) not in ("finished", "failed"):
        assert time.monotonic() < until, state
        time.sleep(0.2)
    if state == "failed":  # the server heard of the refusals before anybody answered what it had really sent
        assert "not-signed" in all_up.run("attacked").status()["why"]
        done = all_up.resume("attacked")
        assert done.returncode == 0, done.stderr
    all_up.check_bits("attacked")
