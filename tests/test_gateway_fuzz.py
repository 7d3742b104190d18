"""Mutated calls against the gateway's parsing, in process: whatever a node sends is accepted as its own or refused."""

from __future__ import annotations

import asyncio
import random
import resource
from base64 import b64encode

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedmc.federation.flower.gateway import calls
from fedmc.federation.flower.gateway.auth import Member
from fedmc.federation.flower.gateway.gate import Gate
from fedmc.federation.flower.gateway.http import GoneError, Http, Refusal
from fedmc.federation.flower.gateway.limits import Limits
from fedmc.federation.flower.gateway.objects import Objects
from tests.gateway_world import RUN, head, push_of, reply_of

NODE = 1001
KEY = generate_key_pairs()[1]
MEMBER = Member("north", NODE, KEY, public_key_to_bytes(KEY))
NUMBERS = (0, 1, 2, 127, 128, 1002, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def honest_calls() -> dict[str, bytes]:
    node = Node(node_id=NODE)
    made = {
        "activate-node": ActivateNodeRequest(public_key=MEMBER.pem, heartbeat_interval=30),
        "deactivate-node": DeactivateNodeRequest(node_id=NODE),
        "send-node-heartbeat": SendNodeHeartbeatRequest(node=node, heartbeat_interval=30),
        "pull-messages": PullMessagesRequest(node=node),
        "push-messages": reply_of(NODE),
        "get-run": GetRunRequest(node=node, run_id=RUN),
        "get-fab": GetFabRequest(node=node, hash_str="f" * 64, run_id=RUN),
        "pull-object": PullObjectRequest(node=node, run_id=RUN, object_id="d" * 64),
        "confirm-message-received": ConfirmMessageReceivedRequest(node=node, run_id=RUN, message_object_id="d" * 64),
    }
    return {name: message.SerializeToString() for name, message in made.items()}


def objects() -> Objects:
    known = Objects()
    known.deliver(NODE, ["d" * 64])
    known.announce(NODE, "a" * 64, ["c" * 64])
    return known


# --- a protobuf, taken apart and put together again with faults


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """(number, wire type, content) of each field; ValueError or IndexError if this is not a protobuf."""
    found, place = [], 0
    while place < len(data):
        tag, place = calls._varint(data, place)
        kind = tag & 7
        if kind == 0:
            end = calls._varint(data, place)[1]
        elif kind == 2:
            size, place = calls._varint(data, place)
            end = place + size
        elif kind in (1, 5):
            end = place + (8 if kind == 1 else 4)
        else:
            raise ValueError(kind)
        if end > len(data):
            raise IndexError(end)
        found.append((tag >> 3, kind, data[place:end]))
        place = end
    return found


def encoded(parts, rng) -> bytes:
    out = b""
    for number, kind, content in parts:
        size = len(content)
        if rng.random() < 0.02:  # a lie about the length
            size = rng.choice([0, size + 1, max(0, size - 1), 2**31, 2**64 - 1])
        out += varint(number << 3 | kind) + (varint(size) if kind == 2 else b"") + content
    return out


def mutated(data: bytes, rng: random.Random, depth: int = 0) -> bytes:
    try:
        parts = fields(data)
    except (ValueError, IndexError):
        parts = []
    if not parts or (depth and rng.random() < 0.2):
        return noise(data, rng)
    place = rng.randrange(len(parts))
    number, kind, content = parts[place]
    what = rng.randrange(7)
    if what == 0:
        del parts[place]
    elif what == 1:
        parts.insert(rng.randrange(len(parts) + 1), parts[place])
    elif what == 2:
        parts[place] = number, rng.choice([0, 1, 2, 5]), rng.choice([varint(rng.choice(NUMBERS)), content, bytes(8)])
    elif what == 3:
        parts[place] = rng.choice([number + 1, 15, 536870911]), kind, content
    elif what == 4 and kind == 0:
        parts[place] = number, 0, varint(rng.choice(NUMBERS))
    elif what == 5:
        rng.shuffle(parts)
    else:
        parts[place] = number, kind, mutated(content, rng, depth + 1) if kind == 2 else noise(content, rng)
    return encoded(parts, rng)


def noise(data: bytes, rng: random.Random) -> bytes:
    what = rng.randrange(5)
    if what == 0 or not data:
        return rng.randbytes(rng.choice([0, 1, 8, 64, 1000]))
    if what == 1:
        return data[: rng.randrange(len(data))]
    if what == 2:
        return (data * rng.choice([2, 50]))[: 2**20]
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


# --- what must hold of everything that is accepted


def try_call(name: str, body: bytes, known: Objects) -> bool:
    try:
        found = calls.checked(name, body, MEMBER, known)
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
        return False
    if isinstance(found, PushMessagesRequest):
        (message,), (tree,) = found.messages_list, found.message_object_trees
        data = message.metadata
        assert (data.src_node_id, data.dst_node_id, found.node.node_id) == (NODE, 1, NODE)
        assert len(data.reply_to_message_id) == 64
        assert tree.object_id == data.message_id
    elif not isinstance(found, ActivateNodeRequest):
        assert (found.node_id if isinstance(found, DeactivateNodeRequest) else found.node.node_id) == NODE
    return True


def try_push(body: bytes, known: Objects) -> bool:
    """What the gateway reads of a pushed object is what the SuperLink will read."""
    try:
        start = calls.object_head(body[: calls.HEAD], len(body))
        calls.check_object(start, MEMBER, known, Limits())
        calls.check_tail(body[start.end :])
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
        return False
    theirs = PushObjectRequest.FromString(body)
    assert (theirs.node.node_id, theirs.object_id) == (NODE, "c" * 64)
    assert theirs.object_content == body[start.content : start.end]
    return True


def fuzz_calls(number: int, seed: int) -> tuple[int, int]:
    """(accepted, refused) of so many mutated calls."""
    rng, known, accepted = random.Random(seed), objects(), 0
    honest = honest_calls() | {"push-object": push_of(NODE, "c" * 64, b"x" * 300)}
    for name, body in honest.items():
        assert try_push(body, known) if name == "push-object" else try_call(name, body, known), name
    names = [*honest, "push-messages", "push-messages", "push-object", "push-object"]
    for _ in range(number):
        name = rng.choice(names)
        body = honest[name]
        for _ in range(rng.choice([1, 1, 2, 4])):
            body = mutated(body, rng)
        body = body[: min(calls.max_bytes(name, Limits()), 2**20)]  # more is refused by its declared length
        accepted += try_push(body, known) if name == "push-object" else try_call(name, body, known)
    return accepted, number - accepted


class FakeStream:
    """Hands out bytes in pieces, and swallows what is written."""

    def __init__(self, data: bytes) -> None:
        self.data, self.step, self.closed = data, 1000, False

    async def read(self) -> bytes:
        piece, self.data = self.data[: self.step], self.data[self.step :]
        return piece

    async def write(self, data: bytes) -> None:
        assert data.startswith((b"HTTP/1.1 4", b"HTTP/1.1 100"))

    async def close(self, linger: float = 0.0) -> None:
        self.closed = True


async def try_header(data: bytes, gate: Gate) -> bool:
    http = Http(FakeStream(data), gate.limits)
    try:
        gate.accept(await http.request(1.0))
    except GoneError:
        return False
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
        await http.refuse(refusal.status)
        return False
    return True


async def fuzz_headers(number: int, seed: int) -> int:
    """How many of so many mutated headers were accepted: none has a valid signature."""
    rng, gate = random.Random(seed), Gate({b64encode(MEMBER.pem): MEMBER}, None, Limits())
    shown = {"flwr-public-key": b64encode(MEMBER.pem).decode(), "flwr-timestamp": "2026-01-01T00:00:00+00:00",
             "flwr-signature": "AAAA", "fedmc-wait": "20", "connection": "keep-alive"}  # fmt: skip
    pieces = [b"\r\n", b"\n", b"\r", b"\0", b": ", b":", b" ", b"\t", b"chunked", b"transfer-encoding: chunked\r\n",
              b"content-length: 5\r\n", b"upgrade: h2c\r\n", b"GET ", b"\xff\xfe", b"x" * 5000]  # fmt: skip
    accepted = 0
    for _ in range(number):
        data = head(rng.choice([*calls.CALLS, "../control/x"]), rng.choice([0, 5, 10**6, 10**12]), shown)
        for _ in range(rng.choice([1, 2, 4])):
            place = rng.randrange(len(data))
            cut = rng.choice([0, 0, 1, 10, 100])
            data = data[:place] + rng.choice([*pieces, rng.randbytes(3)]) + data[place + cut :]
        accepted += await try_header(data, gate)
    return accepted


def test_mutated_calls_are_accepted_as_ones_own_or_refused():
    accepted, refused = fuzz_calls(3_000, seed=1)
    assert accepted > 100  # the test can fail: not everything is refused outright
    assert refused > 1_000


def test_mutated_headers_are_refused():
    assert asyncio.run(fuzz_headers(500, seed=2)) == 0


@pytest.mark.slow
def test_a_hundred_thousand_mutations():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted, refused = fuzz_calls(90_000, seed=3)
    assert accepted > 3_000
    assert refused > 30_000
    assert asyncio.run(fuzz_headers(10_000, seed=4)) == 0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 64


def test_a_tree_deeper_than_any_stack_is_refused():
    deep = ObjectTree(object_id="a" * 64)
    for _ in range(90):
        deep = ObjectTree(object_id="a" * 64, children=[deep])
    body = reply_of(NODE).SerializeToString()
    for _ in range(2_000):
        wrapped = varint(2 << 3 | 2) + varint(len(body)) + body
        body = varint(3 << 3 | 2) + varint(len(wrapped)) + wrapped
    assert not try_call("push-messages", body, objects())
    request = reply_of(NODE)
    request.message_object_trees[0].CopyFrom(deep)
    assert try_call("push-messages", request.SerializeToString(), objects())
