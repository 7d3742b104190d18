"""The gateway under attack: strangers, slow peers, floods, and members that speak in another's name."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import secrets
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    ObjectTree,
    PullObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmc.federation.flower import superlink
from fedmc.federation.flower.gateway.admission import Admission, source
from fedmc.federation.flower.gateway.limits import Limits, allow_files
from fedmc.federation.flower.gateway.server import Gateway
from fedmc.federation.flower.gateway.sparing import SparingLog
from fedmc.federation.flower.notices import Notices, ask_counts
from fedmc.federation.setup import keys
from tests.gateway_world import NODES, RUN, GatewayWorld, answer_of, head, push_of, reply_of, waited_for
from tests.loopback import NAMES, Loopback

NORTH, SOUTH = NODES["north"], NODES["south"]
# Deadlines short enough to be waited for; the counts are the real ones.
SHORT = {
    "handshake": 1.0,
    "header": 1.0,
    "body": 1.0,
    "rate": 1_000_000,
    "stall": 1.5,
    "fallback": 1.2,
    "turn": 0.7,
    "log_lines": 10_000,
    "reply_bytes": 40 * 2**20,
}


@pytest.fixture(scope="module")
def module_world(tmp_path_factory):
    world = GatewayWorld(tmp_path_factory.mktemp("gateway"), **SHORT)
    yield world
    world.end()


@pytest.fixture
def world(module_world):
    module_world.link.answers.clear()
    module_world.link.calls.clear()
    return module_world


def message_for(world, name=None, inline=b""):
    """The next poll finds a message with this object."""
    tree = ObjectTree(object_id=name or secrets.token_hex(32))
    said = PullMessagesResponse(messages_list=[Message()], message_object_trees=[tree]).SerializeToString()
    waiting = [said]
    world.link.answers["pull-messages"] = lambda body: waiting.pop() if waiting else b""
    return tree.object_id


class TestStrangers:
    def test_idle_connections_do_not_shut_out_nodes(self, world):
        """205 were enough before: everybody then got 503."""
        with ExitStack() as open_ones:
            for number in range(400):
                address = f"127.0.0.{2 + number % 3}"
                open_ones.enter_context(socket.create_connection(("127.0.0.1", world.port), 5, (address, 0)))
            for _ in range(210):
                open_ones.enter_context(world.connect())
            for name in NODES:
                began = time.monotonic()
                assert world.poll(name)[0] == 200
                assert time.monotonic() - began < 1.0

    def test_the_oldest_stranger_leaves_when_a_new_one_comes(self, world):
        with ExitStack() as open_ones:
            first = open_ones.enter_context(socket.create_connection(("127.0.0.1", world.port), 5))
            for _ in range(Limits().strangers_by_address):
                open_ones.enter_context(socket.create_connection(("127.0.0.1", world.port), 5))
            assert first.recv(1) == b""  # it was closed, long before its deadline

    def test_a_half_sent_header_ends_at_its_deadline(self, world):
        with world.connect() as sock:
            began = time.monotonic()
            sock.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: ")
            assert answer_of(sock)[0] in (0, 408)
            assert time.monotonic() - began < 3.0

    def test_a_handshake_that_stops_ends_at_its_deadline(self, world):
        with socket.create_connection(("127.0.0.1", world.port), 5) as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
            began = time.monotonic()
            assert sock.recv(1) == b""
            assert time.monotonic() - began < 3.0

    def test_a_large_header_is_refused_at_once(self, world):
        with world.connect() as sock:
            sock.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
            with pytest.raises((ConnectionError, ssl.SSLError)):
                for _ in range(64):
                    sock.sendall(b"x-filler: " + b"x" * 2**20 + b"\r\n")
        assert world.poll()[0] == 200

    def test_seventeen_kilobytes_of_header_get_a_clean_answer(self, world):
        headers = world.signed() | {"x-filler": "x" * 17 * 2**10}
        assert world.call("pull-messages", b"", headers)[0] == 431


class TestSignatures:
    def test_a_body_is_not_read_before_the_signature(self, world):
        """The body never comes: only who reads no body can answer."""
        unsigned = {"flwr-public-key": world.signed()["flwr-public-key"]}
        with world.connect() as sock:
            sock.sendall(head("push-object", 60 * 2**20, unsigned))
            assert answer_of(sock)[0] == 420
        assert not world.link.calls

    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"shift": -400}, 420), ({"shift": 60}, 420), ({"signer": "south"}, 420),
            ({"flwr-signature": "AAAA"}, 420), ({"flwr-signature": "no base64!"}, 420),
            ({"flwr-timestamp": "yesterday"}, 420), ({"flwr-timestamp": "2026-01-01T00:00:00"}, 420),
            ({"flwr-public-key": "AAAA"}, 421),
        ],
    )  # fmt: skip
    def test_whoever_shows_no_valid_signature_is_refused(self, world, changes, status):
        made = {key: value for key, value in changes.items() if not key.startswith("flwr-")}
        headers = world.signed("north", **made) | {k: v for k, v in changes.items() if k.startswith("flwr-")}
        body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
        assert world.call("pull-messages", body, headers)[0] == status
        assert not world.link.calls

    def test_two_keys_in_one_header_are_refused(self, world):
        extra = world.signed("south")["flwr-public-key"]
        with world.connect() as sock:
            lines = head("pull-messages", 0, world.signed())[:-2] + f"flwr-public-key: {extra}\r\n\r\n".encode()
            sock.sendall(lines)
            assert answer_of(sock)[0] == 400

    def test_an_unknown_key_is_logged_by_its_fingerprint(self, world):
        strange = world.signed() | {"flwr-public-key": secrets.token_hex(20)}
        assert world.call("pull-messages", b"", strange)[0] == 421
        line = r"a stranger: key [0-9a-f]{16} is not registered \(127.0.0.1, 421\)"
        assert waited_for(lambda: re.search(line, world.log.read_text()))
        assert strange["flwr-public-key"] not in world.log.read_text()


class TestHttp:
    @pytest.mark.parametrize(
        ("request_line", "more", "status"),
        [
            ("GET /v1/fleet/pull-messages HTTP/1.1", "upgrade: websocket\r\nconnection: upgrade\r\n"
             "sec-websocket-key: x\r\nsec-websocket-version: 13\r\n", 404),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "upgrade: websocket\r\nconnection: upgrade\r\n", 400),
            ("GET / HTTP/1.1", "", 404), ("DELETE /v1/fleet/pull-messages HTTP/1.1", "", 404),
            ("CONNECT elsewhere:443 HTTP/1.1", "", 404), ("OPTIONS * HTTP/1.1", "", 404),
            ("POST /v1/fleet/../control/start-run HTTP/1.1", "", 404),
            ("POST /v1/fleet/pull-messages?x=1 HTTP/1.1", "", 404),
            ("POST /v1/fleet/pull%2dmessages HTTP/1.1", "", 404),
            ("POST http://elsewhere/v1/fleet/pull-messages HTTP/1.1", "", 404),
            ("POST /v1/fleet/register-node HTTP/1.1", "", 404), ("POST /v1/fleet/unregister-node HTTP/1.1", "", 404),
            ("POST /v1/control/start-run HTTP/1.1", "", 404),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "transfer-encoding: chunked\r\n", 411),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "transfer-encoding: gzip, chunked\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "transfer-encoding: chunked\r\ncontent-length: 5\r\n", 411),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "content-length: 5\r\ncontent-length: 6\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "content-length: -5\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "content-length: 5x\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "content-length: 99999999999999\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "x: a\rb\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "x\x00y: a\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/1.1", "flwr injected: a\r\n", 400),
            ("POST /v1/fleet/pull-messages HTTP/2.0", "", 400), ("nonsense", "", 400),
        ],
    )  # fmt: skip
    def test_odd_requests_get_a_clean_refusal(self, world, request_line, more, status):
        with world.connect() as sock:
            signed = "".join(f"{key}: {value}\r\n" for key, value in world.signed().items())
            sock.sendall(f"{request_line}\r\nhost: x\r\n{more}{signed}\r\n".encode())
            assert answer_of(sock)[0] == status
        assert not world.link.calls

    def test_noise_instead_of_tls(self, world):
        with socket.create_connection(("127.0.0.1", world.port), 5) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            while sock.recv(100):
                pass
        assert world.poll()[0] == 200

    def test_only_flowers_headers_pass(self, world):
        body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
        more = {"cookie": "x", "x-forwarded-for": "1.2.3.4", "authorization": "x", "flwr-package-name": "flwr"}
        waited_for(lambda: world.call("get-run", body, world.signed() | more)[0] == 200)
        _, headers, _ = world.link.calls[-1]
        assert headers["flwr-package-name"] == "flwr"
        assert not {"cookie", "x-forwarded-for", "authorization"} & headers.keys()

    def test_a_connection_is_kept_for_further_calls(self, world):
        with world.connect() as sock:
            for _ in range(5):
                assert world.poll(sock=sock)[0] == 200

    def test_who_waits_for_permission_to_send_gets_it(self, world):
        body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
        with world.connect() as sock:
            sock.sendall(head("get-run", len(body), world.signed() | {"expect": "100-continue"}))
            assert answer_of(sock)[0] == 100
            sock.sendall(body)
            assert answer_of(sock)[0] == 200

    @pytest.mark.parametrize(("theirs", "ours"), [(401, 420), (403, 403), (404, 404), (500, 502), (503, 502)])
    def test_the_superlinks_word_is_passed_on(self, world, theirs, ours):
        """But 401, at which Flower's client ends its process, and faults."""
        world.link.answers["get-run"] = (theirs, b'{"code": 1}')
        body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
        assert world.call("get-run", body) == (ours, b'{"code": 1}')


class TestBodies:
    def announced(self, world, node=NORTH, name="c" * 64):
        said = PushMessagesResponse(objects_to_push=[name], session_id="s")
        world.link.answers["push-messages"] = said.SerializeToString()
        world.link.answers["push-object"] = PushObjectResponse(stored=True).SerializeToString()
        who = next(key for key, value in NODES.items() if value == node)
        request = reply_of(node).SerializeToString()
        assert world.call("push-messages", request, world.signed(who))[0] == 200

    def test_a_large_object_passes_in_pieces(self, world):
        self.announced(world)
        before, body = world.rss(), push_of(NORTH, "c" * 64, bytes(32 * 2**20))
        world.link.received = 0
        assert world.call("push-object", body)[0] == 200
        assert world.link.received == len(body)
        assert world.rss() - before < 12

    def test_a_body_sent_a_byte_at_a_time_ends_at_its_deadline(self, world):
        with world.connect() as sock:
            sock.sendall(head("push-messages", 1000, world.signed()))
            began, dripping = time.monotonic(), threading.Event()
            drip = threading.Thread(target=lambda: [sock.sendall(b"x") for _ in range(20) if not dripping.wait(0.2)])
            drip.start()
            assert answer_of(sock)[0] == 408
            assert time.monotonic() - began < 3.0
            dripping.set()
            drip.join(5)

    @pytest.mark.parametrize(
        ("name", "size"),
        [("push-object", 65 * 2**20), ("push-messages", 2**20 + 1), ("pull-messages", 2**14 + 1), ("get-run", 10**11)],
    )
    def test_what_is_declared_too_large_is_refused_unread(self, world, name, size):
        with world.connect() as sock:
            sock.sendall(head(name, size, world.signed()))
            assert answer_of(sock)[0] == 413

    def test_all_objects_of_a_reply_together_are_bounded(self, world):
        """Of 256 objects of 64 MB each the SuperLink would keep 16 GB."""
        names, east = [letter * 64 for letter in "1234"], NODES["east"]
        said = PushMessagesResponse(objects_to_push=names, session_id="s").SerializeToString()
        world.link.answers["push-object"] = PushObjectResponse(stored=True).SerializeToString()
        request = reply_of(east, message_id="e" * 64)
        request.message_object_trees[0].object_id = "e" * 64
        for number, name in enumerate(names):  # announced anew each time, which must not help
            world.link.answers["push-messages"] = said
            assert world.call("push-messages", request.SerializeToString(), world.signed("east"))[0] == 200
            body = push_of(east, name, bytes(15 * 2**20))
            with world.connect() as sock:
                sock.sendall(head("push-object", len(body), world.signed("east")) + body[:300])
                if number < 2:
                    sock.sendall(body[300:])
                assert answer_of(sock)[0] == (200 if number < 2 else 413)

    def test_a_key_sends_only_so_many_bodies_at_once(self, world):
        """Four bodies do not go on; a fifth of the same key waits and is refused, another key's passes."""
        self.announced(world)
        self.announced(world, SOUTH, "d" * 64)
        body = push_of(NORTH, "c" * 64, bytes(10**6))
        with ExitStack() as open_ones:
            for _ in range(Limits().bodies_by_key):
                sock = open_ones.enter_context(world.connect())
                sock.sendall(head("push-object", len(body), world.signed()) + body[:300])
            time.sleep(0.3)
            mine = threading.Thread(target=lambda: answers.append(world.call("push-object", body)[0]))
            answers = []
            mine.start()
            theirs = push_of(SOUTH, "d" * 64, b"x")
            assert world.call("push-object", theirs, world.signed("south"))[0] == 200
            mine.join(10)
            assert answers == [503]

    def test_a_key_holds_only_so_many_connections(self, world):
        with ExitStack() as open_ones:
            socks = [open_ones.enter_context(world.connect()) for _ in range(Limits().connections_by_key + 1)]
            theirs = open_ones.enter_context(world.connect())
            assert world.poll("south", sock=theirs)[0] == 200
            for sock in socks:
                assert world.poll(sock=sock)[0] == 200
            assert socks[0].recv(1) == b""  # the oldest had to go
            assert world.poll(sock=socks[-1])[0] == 200
            assert world.poll("south", sock=theirs)[0] == 200

    def test_a_reply_that_nobody_reads_is_given_up(self, world):
        name = message_for(world)
        assert waited_for(lambda: world.poll()[1])
        world.link.answers["pull-object"] = bytes(16 * 2**20)
        body = PullObjectRequest(node=Node(node_id=NORTH), run_id=RUN, object_id=name).SerializeToString()
        before = world.rss()
        with world.connect(receive=2**16) as sock:
            sock.sendall(head("pull-object", len(body), world.signed()) + body)
            time.sleep(2.5)
            assert world.rss() - before < 12
            assert len(answer_of(sock)[1]) < 16 * 2**20


def test_small_calls_of_a_key_keep_a_pace(world):
    """Each costs the SuperLink milliseconds of SQL. Others are not slowed down, and nor are polls."""
    statuses = []
    with ExitStack() as open_ones:
        for _ in range(3 * Limits().calls_burst):
            if not statuses or statuses[-1] != 200:  # a refusal closes the connection
                sock = open_ones.enter_context(world.connect())
            body = PullMessagesRequest(node=Node(node_id=SOUTH)).SerializeToString()  # of the same form
            statuses.append(world.call("get-run", body, world.signed("south"), sock)[0])
            if statuses.count(429) == 3:
                break
    assert statuses[: Limits().calls_burst] == [200] * Limits().calls_burst
    assert statuses.count(429) == 3
    assert world.poll("south")[0] == 200
    body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
    assert world.call("get-run", body)[0] == 200
    time.sleep(0.1)
    body = PullMessagesRequest(node=Node(node_id=SOUTH)).SerializeToString()
    assert world.call("get-run", body, world.signed("south"))[0] == 200


class TestOwnMessagesOnly:
    """Flower does not tie a pushed message's source to the key: one organisation could speak to another's node."""

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"src_node_id": 1}, "another's name"), ({"src_node_id": SOUTH}, "another's name"),
            ({"dst_node_id": SOUTH}, "to another node"), ({"dst_node_id": NORTH}, "to another node"),
            ({"reply_to_message_id": ""}, "no reply"), ({"reply_to_message_id": "x"}, "no reply"),
            ({"message_id": "d" * 64}, "without an id"), ({"ttl": float("nan")}, "not a number"),
            ({"created_at": float("inf")}, "not a number"), ({"group_id": "g" * 1000}, "long names"),
            ({"src_node_id": 1, "dst_node_id": SOUTH, "reply_to_message_id": ""}, "another's name"),
        ],
    )  # fmt: skip
    def test_a_message_that_is_no_reply_of_ones_own_is_refused(self, world, changes, why):
        assert world.call("push-messages", reply_of(NORTH, **changes).SerializeToString())[0] == 422
        assert not world.link.calls
        assert re.search(f"north: it pushes a .*{why}", world.log.read_text())

    def test_an_honest_reply_passes(self, world):
        assert world.call("push-messages", reply_of(NORTH).SerializeToString())[0] == 200
        assert world.link.names() == ["push-messages"]

    def test_other_counts_of_messages_and_trees_are_refused(self, world):
        honest = reply_of(NORTH)
        two, none, deep = PushMessagesRequest(), PushMessagesRequest(), PushMessagesRequest()
        two.CopyFrom(honest)
        two.messages_list.append(reply_of(NORTH, dst_node_id=SOUTH).messages_list[0])
        none.node.node_id = NORTH
        deep.CopyFrom(honest)
        deep.message_object_trees[0].children.extend(ObjectTree(object_id=f"{n:064x}") for n in range(300))
        for wrong in (two, none, deep):
            assert world.call("push-messages", wrong.SerializeToString())[0] == 422
        assert not world.link.calls

    def test_a_call_as_another_node_is_refused(self, world):
        for name in ("pull-messages", "get-run", "send-node-heartbeat", "push-messages"):
            assert world.call(name, PullMessagesRequest(node=Node(node_id=SOUTH)).SerializeToString())[0] == 422
        other = ActivateNodeRequest(public_key=b"x", heartbeat_interval=30)
        assert world.call("activate-node", other.SerializeToString())[0] == 422
        assert world.call("get-run", b"\xff\xff")[0] == 400
        assert not world.link.calls

    def test_objects_of_others_can_neither_be_pulled_nor_confirmed(self, world):
        name = message_for(world)
        assert waited_for(lambda: world.poll("south")[1])
        pull = PullObjectRequest(node=Node(node_id=NORTH), run_id=RUN, object_id=name)
        confirm = ConfirmMessageReceivedRequest(node=Node(node_id=NORTH), run_id=RUN, message_object_id=name)
        assert world.call("pull-object", pull.SerializeToString())[0] == 422
        assert world.call("confirm-message-received", confirm.SerializeToString())[0] == 422
        for request in (pull, confirm):
            request.node.node_id = SOUTH
        assert world.call("pull-object", pull.SerializeToString(), world.signed("south"))[0] == 200
        assert world.call("confirm-message-received", confirm.SerializeToString(), world.signed("south"))[0] == 200

    def test_only_announced_objects_can_be_pushed(self, world):
        TestBodies().announced(world, SOUTH, "e" * 64)
        assert world.call("push-object", push_of(NORTH, "e" * 64, b"x"))[0] == 422
        assert world.call("push-object", push_of(SOUTH, "e" * 64, b"x"))[0] == 422
        assert world.call("push-object", push_of(SOUTH, "e" * 64, b"x"), world.signed("south"))[0] == 200

    @pytest.mark.parametrize(
        "trick",
        [
            lambda made: made + made,  # twice: the second would count
            lambda made: made + b"\x1a\x40" + b"f" * 64,  # another id after the content
            lambda made: made + b"\x0a\x02\x08\x07",  # another node after it
            lambda made: made[2:], lambda made: b"\x22\x01x" + made, lambda made: made[:-1],
            lambda made: made.replace(b"\x10", b"\x18", 1), lambda made: b"", lambda made: b"\xff" * 300,
        ],
    )  # fmt: skip
    def test_a_pushed_object_has_one_form_only(self, world, trick):
        name = secrets.token_hex(32)
        TestBodies().announced(world, NORTH, name)
        world.link.calls.clear()
        assert world.call("push-object", trick(push_of(NORTH, name, b"x" * 500)))[0] in (400, 422)
        assert "push-object" not in world.link.names()


class TestPolls:
    @pytest.fixture
    def notices(self, world):
        heard = Notices(world.home)
        assert waited_for(lambda: heard.connected)
        heard.announce([NORTH])  # so that one poll goes through, and the next is not the fallback
        assert waited_for(lambda: (world.poll(), "pull-messages" in world.link.names())[1])
        world.link.calls.clear()
        yield heard
        heard.close()

    def test_a_poll_is_held_until_the_server_app_pushes(self, world, notices):
        message_for(world)
        threading.Timer(0.7, lambda: notices.announce([NORTH])).start()
        began = time.monotonic()
        assert world.poll(wait=10)[1]
        assert 0.5 < time.monotonic() - began < 1.7
        assert world.link.names() == ["pull-messages"]

    def test_without_a_notice_the_message_comes_a_little_later(self, world, notices):
        message_for(world)
        began = time.monotonic()
        assert world.poll(wait=10)[1]
        assert 0.5 < time.monotonic() - began < 4

    def test_a_poll_that_may_not_wait_is_answered_at_once(self, world, notices):
        """A stock SuperNode's: it says nothing about waiting."""
        began = time.monotonic()
        for _ in range(10):
            assert world.poll() == (200, b"")
        assert time.monotonic() - began < 1.5
        assert len(world.link.calls) <= 1

    def test_an_empty_poll_ends_at_the_time_that_the_node_asked_for(self, world, notices):
        began = time.monotonic()
        assert world.poll(wait=1) == (200, b"")
        assert 0.8 < time.monotonic() - began < 2
        assert not world.link.calls

    def test_nothing_is_pulled_for_a_node_that_is_gone(self, world, notices):
        message_for(world)
        with world.connect() as sock:
            body = PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString()
            sock.sendall(head("pull-messages", len(body), world.signed() | {"fedmc-wait": "20"}) + body)
            time.sleep(0.3)
        time.sleep(0.3)
        notices.announce([NORTH])
        time.sleep(0.3)
        assert not world.link.calls
        assert world.poll(wait=5)[1]  # its successor gets it

    def test_a_newer_poll_ends_the_older(self, world, notices):
        answers = []
        older = threading.Thread(target=lambda: answers.append(world.poll(wait=10)))
        older.start()
        time.sleep(0.3)
        began = time.monotonic()
        assert world.poll(wait=1) == (200, b"")
        older.join(5)
        assert answers == [(200, b"")]
        assert time.monotonic() - began < 3

    def test_polls_of_others_sleep_on(self, world, notices):
        world.poll("south")
        world.link.calls.clear()
        threading.Timer(0.3, lambda: notices.announce([NORTH])).start()
        began = time.monotonic()
        assert world.poll("south", wait=1) == (200, b"")
        assert time.monotonic() - began > 0.8

    def test_the_server_app_hears_when_a_reply_is_complete(self, world, notices):
        TestBodies().announced(world, NORTH, "9" * 64)
        notices.wait(0.5)
        assert notices.take() == (set(), set())
        world.call("push-object", push_of(NORTH, "9" * 64, b"x"))
        notices.wait(5)
        assert notices.take() == ({NORTH}, set())

    def test_an_inline_reply_is_complete_at_once(self, world, notices):
        request = reply_of(NORTH)
        request.messages_list[0].content.CopyFrom(recorddict_to_proto(RecordDict({"x": ConfigRecord({"y": b"z"})})))
        world.link.answers["push-messages"] = PushMessagesResponse(objects_to_push=["a" * 64]).SerializeToString()
        assert world.call("push-messages", request.SerializeToString())[0] == 200
        notices.wait(5)
        assert notices.take() == ({NORTH}, set())

    def test_an_error_is_complete_at_once_and_its_object_may_follow(self, world, notices):
        request = reply_of(NORTH)
        request.messages_list[0].ClearField("content")
        request.messages_list[0].error.reason = "refused"
        world.link.answers["push-messages"] = PushMessagesResponse(objects_to_push=["8" * 64]).SerializeToString()
        world.link.answers["push-object"] = PushObjectResponse(stored=True).SerializeToString()
        assert world.call("push-messages", request.SerializeToString())[0] == 200
        notices.wait(5)
        assert notices.take() == ({NORTH}, set())
        assert world.call("push-object", push_of(NORTH, "8" * 64, b"x"))[0] == 200

    def test_the_server_app_hears_who_came_back(self, world, notices):
        pem = world.keys["south"][1]
        request = ActivateNodeRequest(public_key=public_key_to_bytes(pem), heartbeat_interval=30)
        assert world.call("activate-node", request.SerializeToString(), world.signed("south"))[0] == 200
        notices.wait(5)
        assert notices.take() == (set(), {SOUTH})

    def test_the_server_app_knows_who_speaks_the_short_form(self, world, notices):
        world.poll("east", wait=0)
        assert waited_for(lambda: NODES["east"] in notices.short)
        world.poll("east")
        assert waited_for(lambda: NODES["east"] not in notices.short)

    def test_only_the_server_can_ring(self, world):
        assert (world.home / "gateway.sock").stat().st_mode & 0o777 == 0o600
        assert (world.home / "gateway.address").stat().st_mode & 0o777 == 0o600

    def test_a_reply_of_the_superlink_in_another_format_is_a_502(self, world, notices):
        before = world.log.stat().st_size
        world.link.answers["pull-messages"] = b"\xff\xff"
        notices.announce([NORTH])
        assert waited_for(lambda: world.poll()[0] == 502)
        said = world.log.read_text()[before:]
        assert "is not of Flower's format" in said
        assert "Traceback" not in said

    def test_calls_are_counted(self, world):
        before = ask_counts(world.home)
        world.call("get-run", PullMessagesRequest(node=Node(node_id=NORTH)).SerializeToString())
        assert ask_counts(world.home)["get-run"] == before.get("get-run", 0) + 1


class Attack:
    """Attackers in a process of their own, while it is entered."""

    def __init__(self, world_port, pem, seconds, addresses, share=1.0):
        words = [world_port, seconds, b64encode(pem).decode(), share, *addresses]
        self.command = [sys.executable, Path(__file__).parent / "attackers.py", *words]

    def __enter__(self):
        self.process = subprocess.Popen(
            [*map(str, self.command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout.readline() == "attacking\n"
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


ADDRESSES = {"others": [f"127.0.0.{n}" for n in range(2, 10)], "own": ["127.0.0.1"]}


@pytest.fixture
def unhurried(tmp_path):
    """A gateway with the limits of production."""
    world = GatewayWorld(tmp_path)
    yield world
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize("where", ADDRESSES)
def test_polls_are_answered_under_attack(unhurried, where):
    """For ten seconds: each honest poll within a second, on a kept connection and on new ones; memory stays bounded."""
    world, took, failed = unhurried, [], []
    world.poll()
    before = world.rss()

    def honest(name):
        with world.connect() as kept:
            while time.monotonic() < until:
                for sock in (kept, None):
                    began = time.monotonic()
                    status = world.poll(name, sock=sock)[0]
                    took.append(time.monotonic() - began)
                    if status != 200:
                        failed.append(status)
                time.sleep(0.2)

    with Attack(world.port, public_key_to_bytes(world.keys["north"][1]), 30, ADDRESSES[where]):
        until = time.monotonic() + 10
        threads = [threading.Thread(target=honest, args=(name,)) for name in NODES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        grown = world.rss() - before
    print(f"{len(took)} polls, at most {max(took):.2f} s; memory {grown:+.0f} MB")
    assert not failed
    assert len(took) > 30
    assert max(took) < 1.0
    assert grown < 100


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ADDRESSES)
def test_a_run_ends_with_its_bits_under_attack(tmp_path, where):
    """Real processes, a minute of attack: every poll of the nodes within a second, and a run in the middle of it."""
    made, times = Loopback(tmp_path), tmp_path / "polls"
    try:
        made.start_server()
        for name in NAMES:
            made.start_node(name, f"timed={times}-{name}")
        assert made.train("before", 1).returncode == 0  # kernels are loaded
        statm = Path(f"/proc/{made.processes['server'].pid}/statm")
        before, key = int(statm.read_text().split()[1]), made.server.path("nodes/north.pub").read_bytes()
        for name in NAMES:
            Path(f"{times}-{name}").write_text("")
        began = time.monotonic()
        with Attack(made.server.port, public_key_to_bytes(load_ssh_public_key(key)), 90, ADDRESSES[where]):
            done = made.train("attacked", 5)
            assert done.returncode == 0, done.stderr + made.log("server")
            while time.monotonic() - began < 60:
                time.sleep(0.2)
            grown = (int(statm.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE") / 1e6
        made.check_bits("attacked")
        took = [float(line) for name in NAMES for line in Path(f"{times}-{name}").read_text().split()]
        print(f"{len(took)} polls, at most {max(took):.2f} s; memory {grown:+.0f} MB")
        assert len(took) > 100
        assert max(took) < 1.0
        assert grown < 100
    finally:
        made.end()


def newest_run(made):
    """Flower's id of the run that was started last."""
    with closing(sqlite3.connect(made.server.path("superlink.db"), timeout=20)) as database:
        (found,) = database.execute("SELECT run_id FROM run ORDER BY rowid DESC LIMIT 1").fetchone()
    return found % 2**64


def stored_instructions(made):
    with closing(sqlite3.connect(made.server.path("superlink.db"), timeout=20)) as database:
        rows = database.execute("SELECT message_type FROM message_ins WHERE message_type = ?", ("query.injected",))
        return rows.fetchall()


@pytest.mark.slow
def test_a_member_cannot_speak_to_anothers_node(all_up):
    """Real processes: north pushes an instruction to south's node in the server's name, during a run."""
    assert all_up.train("injected", 12, "--detach").returncode == 0
    all_up.wait_for_round("injected", 1)
    nodes = superlink.registered(all_up.server)
    claims = {"src_node_id": 1, "dst_node_id": nodes["south"], "reply_to_message_id": ""}
    request = reply_of(nodes["north"], run_id=newest_run(all_up), message_type="query.injected", **claims)
    folder = all_up.folder / "north"
    signed = [NodeAuthHttpInterceptor(*keys.load_node_keys(folder / "node.key"))]
    address = f"127.0.0.1:{all_up.server.port}"
    with FleetHttpClient.from_server_address(address, False, (folder / "ca.crt").read_bytes(), signed) as client:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            client.PushMessages(request)
        assert refused.value.response.status_code == 422
    assert not stored_instructions(all_up)
    assert "north: it pushes a message in another's name" in all_up.log("server")
    all_up.wait_until("injected", "finished")
    all_up.check_bits("injected")


class TestAdmission:
    """In process: who leaves."""

    def enter(self, admission, address, number):
        tasks = [Task() for _ in range(number)]
        return [admission.enter(address, task) for task in tasks]

    def test_the_fullest_address_gives_way(self):
        admission = Admission(Limits(strangers=10, strangers_by_address=8))
        honest = self.enter(admission, "1.1.1.1", 2)
        crowd = self.enter(admission, "2.2.2.2", 8)
        more = self.enter(admission, "3.3.3.3", 3)
        assert [one.ended for one in honest + more] == [False] * 5
        assert [one.ended for one in crowd] == [True] * 3 + [False] * 5
        assert admission.total == 10

    def test_members_are_no_strangers(self):
        admission = Admission(Limits(strangers=3, strangers_by_address=3, connections_by_key=2))
        member = self.enter(admission, "1.1.1.1", 1)[0]
        admission.prove(member, b"key")
        self.enter(admission, "1.1.1.1", 50)
        assert not member.ended
        others = self.enter(admission, "1.1.1.1", 2)
        for one in others:
            admission.prove(one, b"key")
        assert [member.ended, *(one.ended for one in others)] == [True, False, False]

    def test_who_leaves_is_forgotten(self):
        admission = Admission(Limits())
        for visitor in self.enter(admission, "1.1.1.1", 100):
            admission.prove(visitor, b"k") if id(visitor) % 2 else None
            admission.leave(visitor)
        assert admission.total == 0
        assert not admission.strangers
        assert not admission.members[b"k"] if b"k" in admission.members else True

    @pytest.mark.parametrize(
        ("address", "counted"),
        [("10.0.0.7", "10.0.0.7"), ("2001:db8::1", "2001:db8::/64"), ("::ffff:10.0.0.7", "10.0.0.7"),
         ("fe80::1%eth0", "fe80::/64"), ("nonsense", "nonsense")],
    )  # fmt: skip
    def test_what_counts_as_one_address(self, address, counted):
        assert source(address) == counted


class Task:
    def __init__(self):
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


def test_the_log_cannot_be_flooded(caplog):
    import logging

    log = SparingLog(logging.getLogger("t"), lines=3, seconds=0.2)
    for _ in range(100):
        log.warning("a stranger", "knocks\nforged line")
    assert [one.message for one in caplog.records] == ["a stranger: knocks?forged line"] * 3
    log.warning("north", "pushes")
    assert caplog.records[3].message == "north: pushes"  # strangers do not hide what a member does
    time.sleep(0.25)
    log.warning("a stranger", "later")
    assert [one.message for one in caplog.records][4:] == [
        "a stranger: 97 more lines were left out",
        "a stranger: later",
    ]


class Reset(socket.socket):
    """A connection that was reset before it was accepted, as macOS reports it."""

    def setsockopt(self, *args):
        raise OSError(22, "Invalid argument")


def test_a_connection_that_was_reset_does_not_end_the_listener():
    async def run():
        gate, again = SimpleNamespace(members={}), asyncio.Event()
        gateway, broken = Gateway(gate, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), Limits()), [Reset()]

        async def accept(listener):
            if broken:
                return broken.pop(), ("127.0.0.1", 1)
            again.set()
            return await asyncio.Future()

        asyncio.get_running_loop().sock_accept = accept
        listening = asyncio.create_task(gateway.listen(None))
        waiting = asyncio.create_task(again.wait())
        await asyncio.wait({listening, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert not listening.done()
        assert again.is_set()
        await asyncio.wait_for(asyncio.gather(*gateway.tasks), 5)
        listening.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(("soft", "hard", "holds"), [(5000, 5000, 1000), (256, 4096, 1000), (256, 512, 512)])
def test_open_files_are_raised_as_far_as_permitted(monkeypatch, soft, hard, holds):
    found = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: found.__setitem__(slice(None), values))
    assert allow_files(1000) == holds


def test_a_long_path_finds_another_place_for_the_socket(tmp_path):
    from fedmc.federation.flower.gateway.doorbell import Doorbell

    home = tmp_path / ("deep" * 30)
    home.mkdir()
    heard = []

    async def ring():
        bell = Doorbell(lambda node, count: heard.append((node, count)))
        await bell.open(home)
        notices = Notices(home)
        await asyncio.to_thread(waited_for, lambda: notices.connected)
        notices.announce([5, 5, 6])
        await asyncio.to_thread(waited_for, lambda: len(heard) == 2)
        notices.close()
        await bell.close()

    asyncio.run(ring())
    assert sorted(heard) == [(5, 2), (6, 1)]
