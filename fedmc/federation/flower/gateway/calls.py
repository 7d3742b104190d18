"""Which calls of Flower's Fleet API a node may make, and with which content.

Flower ties a call to the node's key, but not what the call carries: a pushed message may claim any sender, and without
`reply_to` it becomes an instruction to another node. Here each message must be a reply of the node's own to the
server, and objects must be those of its own messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from fedmc.federation.flower.gateway.auth import Member
from fedmc.federation.flower.gateway.http import Refusal
from fedmc.federation.flower.gateway.limits import Limits
from fedmc.federation.flower.gateway.objects import Objects

PREFIX = "/v1/fleet/"
PUSH_OBJECT, PUSH_MESSAGES, PULL_MESSAGES = "push-object", "push-messages", "pull-messages"
# The registration of nodes is not among them: `fedmc server start` does it.
CALLS: dict[str, type[Proto] | None] = {
    "activate-node": ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    "send-node-heartbeat": SendNodeHeartbeatRequest,
    PULL_MESSAGES: PullMessagesRequest,
    PUSH_MESSAGES: PushMessagesRequest,
    "get-run": GetRunRequest,
    "get-fab": GetFabRequest,
    "pull-object": PullObjectRequest,
    PUSH_OBJECT: None,  # streamed, see `ObjectHead`
    "confirm-message-received": ConfirmMessageReceivedRequest,
}
FORBIDDEN = 422  # Flower takes 403 for the end of a run
IDS = 64  # characters of an object id
TREE = 256  # objects of one message
TEXT = 256  # characters of a name in a message's metadata


def call_of(method: bytes, target: bytes) -> str:
    """The name of the call; a Refusal if nodes have no such call."""
    name = target.decode("ascii", "replace")
    name = name[len(PREFIX) :] if name.startswith(PREFIX) else ""
    if method != b"POST" or name not in CALLS:
        raise Refusal(404, "no call of a node")
    return name


def max_bytes(name: str, limits: Limits) -> int:
    return {PUSH_OBJECT: limits.object_bytes, PUSH_MESSAGES: limits.message_bytes}.get(name, limits.small_bytes)


def checked(name: str, body: bytes, member: Member, objects: Objects) -> Proto:
    """The parsed content of a call; a Refusal if it is not the member's to send."""
    kind = CALLS[name]
    assert kind is not None
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise Refusal(400, f"{name} is not of Flower's format") from None
    if isinstance(message, ActivateNodeRequest):
        _require(message.public_key == member.pem, "activates another's node")
        return message
    node = message.node_id if isinstance(message, DeactivateNodeRequest) else message.node.node_id
    _require(node == member.node, f"calls {name} as another node")
    if isinstance(message, PushMessagesRequest):
        _check_push(message, member)
    elif isinstance(message, PullObjectRequest):
        _require(objects.may_pull(member.node, message.object_id), "pulls an object that it was not sent")
    elif isinstance(message, ConfirmMessageReceivedRequest):
        known = objects.may_pull(member.node, message.message_object_id)
        _require(known, "confirms a message that it was not sent")
    return message


def _check_push(request: PushMessagesRequest, member: Member) -> None:
    """Exactly one message, a reply of this node to the server, with its tree of objects."""
    one = len(request.messages_list) == len(request.message_object_trees) == 1
    _require(one and len(request.clientapp_runtime_list) <= 1, "pushes other than one message")
    message, tree = request.messages_list[0], request.message_object_trees[0]
    data = message.metadata
    _require(data.src_node_id == member.node, "pushes a message in another's name")
    _require(data.dst_node_id == SUPERLINK_NODE_ID, "pushes a message to another node")
    _require(is_id(data.reply_to_message_id), "pushes a message that is no reply")
    _require(is_id(data.message_id) and data.message_id == tree.object_id, "pushes a message without an id")
    _require(message.HasField("content") != message.HasField("error"), "pushes a message without content")
    numbers = (data.ttl, data.created_at, *request.clientapp_runtime_list)
    _require(all(math.isfinite(number) for number in numbers), "pushes a time that is not a number")
    _require(max(len(data.group_id), len(data.message_type)) <= TEXT, "pushes a message with long names")
    ids = list(ids_of(tree))
    _require(len(ids) <= TREE, f"pushes a message of more than {TREE} objects")
    _require(all(map(is_id, ids)), "announces objects with false ids")


def is_inline(message: Message) -> bool:
    """Whether a message carries all that it has to say itself, so that no object has to follow."""
    return bool(message.HasField("error") or message.content.ByteSize())


def delivered(reply: bytes) -> list[str]:
    """The objects of the message in the SuperLink's reply to a poll; none, if there is no message."""
    parsed = PullMessagesResponse()
    try:
        parsed.ParseFromString(reply)
    except DecodeError:
        raise Refusal(502, "the SuperLink's reply to a poll is not of Flower's format") from None
    return [name for tree in parsed.message_object_trees for name in ids_of(tree)]


def ids_of(tree: ObjectTree) -> Iterator[str]:
    yield tree.object_id
    for child in tree.children:
        yield from ids_of(child)


def is_id(text: str) -> bool:
    return len(text) == IDS and all(letter in "0123456789abcdef" for letter in text)


class ObjectHead(NamedTuple):
    """What stands before and after the content of a pushed object, of which only these few bytes are looked at.

    A push is accepted in one form only: node, run, object id, content and session in this order, each once, as
    Flower's own clients write them. So what is checked here is what the SuperLink will read.
    """

    node: int
    object_id: str
    content: int  # where the content begins
    end: int  # where it ends

    @property
    def size(self) -> int:
        return self.end - self.content


HEAD = 256  # bytes: more than a head ever has
TAIL = 80  # bytes after the content: a session's id


def object_head(start: bytes, size: int) -> ObjectHead:
    """Read the head of a push of `size` bytes from its first bytes; a Refusal if it has another form."""
    try:
        node, place = _field(start, 0, 0x0A)
        if start[place] != 0x10:
            raise ValueError
        _, place = _varint(start, place + 1)  # the run
        name, place = _field(start, place, 0x1A)
        if start[place] != 0x22:
            raise ValueError
        length, place = _varint(start, place + 1)
        head = ObjectHead(Node.FromString(node).node_id, name.decode("ascii"), place, place + length)
    except (ValueError, IndexError, DecodeError):
        raise Refusal(400, "a pushed object is not of Flower's format") from None
    if not head.end <= size <= head.end + TAIL or not is_id(head.object_id):
        raise Refusal(400, "a pushed object has other lengths than it says")
    return head


def check_tail(tail: bytes) -> None:
    """After the content comes the session's id, or nothing."""
    if tail:
        try:
            session, place = _field(tail, 0, 0x2A)
        except (ValueError, IndexError):
            session, place = b"", -1
        if place != len(tail) or not session.isascii():
            raise Refusal(400, "a pushed object is followed by something else")


def check_object(head: ObjectHead, member: Member, objects: Objects, limits: Limits) -> None:
    _require(head.node == member.node, "pushes an object as another node")
    _require(objects.may_push(member.node, head.object_id), "pushes an object that it did not announce")
    size, most = objects.reply_bytes(member.node, head.object_id) + head.size, limits.reply_bytes
    if size > most:
        raise Refusal(413, f"{member.name} pushes a message of {size} bytes or more, at most {most} are carried")


def _field(data: bytes, place: int, tag: int) -> tuple[bytes, int]:
    """The bytes of a field with this tag, and where it ends."""
    if data[place] != tag:
        raise ValueError
    length, place = _varint(data, place + 1)
    if place + length > len(data):
        raise ValueError
    return data[place : place + length], place + length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Refusal(FORBIDDEN, f"it {what}")
