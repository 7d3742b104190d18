"""fedmc's bytes inside Flower's messages, in three forms.

inline    up to INLINE bytes travel in the message itself: nothing has to be pushed or pulled besides it
object    up to OBJECT bytes are one object, which is pushed and pulled in one call
records   more bytes are an array, which Flower sends in pieces; also for stock SuperNodes, which know no other form

A short message (`inline` or `object`) goes only to nodes that said they understand it; these answer in kind.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto, recorddict_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedmc.federation.container import read_array
from fedmc.federation.flower.bounded import FRAMING, REQUEST, check_build

PLACE, NAME = "fedmc", "bytes"
INLINE = 512 * 2**10
OBJECT = 32 * 2**20
SMALL = 8 * 2**20  # bytes that a record holds in one piece: each piece is a call, which costs more than a megabyte
KIND = b"ArrayChunk"  # of Flower's kinds of objects, the one that is nothing but bytes
NONCE = 16  # bytes before an object's content: two equal messages must have two ids


class Parcel(NamedTuple):
    """A message as Flower carries it: its head, the tree of its objects, and the objects."""

    head: ProtoMessage
    tree: ObjectTree
    objects: dict[str, bytes]


def pack(content: bytes) -> RecordDict:
    """Few bytes go as they are, many as an array, which Flower sends in pieces."""
    if len(content) <= SMALL:
        return RecordDict({PLACE: ConfigRecord({NAME: content})})
    return RecordDict({PLACE: ArrayRecord({NAME: Array(np.frombuffer(content, np.uint8))})})


def unpack(record: RecordDict) -> bytes:
    """Inverse of `pack`; KeyError, ValueError or TypeError if the record holds no such bytes."""
    if PLACE in record.config_records:
        content = record.config_records[PLACE][NAME]
        if not isinstance(content, bytes):
            raise ValueError(f"expected bytes, got {type(content).__name__}")
        return content
    found = read_array(record.array_records[PLACE][NAME].data)  # Flower's own reader believes the stated size
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"expected bytes, got {found.dtype} of shape {found.shape}")
    return found.tobytes()


def wrap(make: Callable[[RecordDict], Message], content: bytes, short: bool) -> Parcel:
    """Pack content into the message that `make` makes of a record."""
    if not short or len(content) > OBJECT:
        return wrap_records(make(pack(content)))
    if len(content) <= INLINE:
        return _headed(make(pack(content)), hashlib.sha256(secrets.token_bytes(32)).hexdigest(), {})
    body = secrets.token_bytes(NONCE) + content
    made = b"%s  %d%s%s" % (KIND, len(body), HEAD_BODY_DIVIDER, body)
    name = hashlib.sha256(made).hexdigest()
    return _headed(make(RecordDict()), name, {name: made})


def wrap_records(message: Message) -> Parcel:
    """A message in Flower's own form, with all of its objects."""
    objects = get_all_nested_objects(message)
    name, tree = message.object_id, get_object_tree(message)
    deflated = {key: item.deflate() for key, item in objects.items()}
    if message.has_content():
        message = make_message(metadata=message.metadata, content=RecordDict())
    return _headed(message, name, deflated)._replace(tree=tree)


def is_short(head: ProtoMessage, tree: ObjectTree) -> bool:
    """Whether a message came inline or as one object."""
    return not tree.children and not head.HasField("error")


def unwrap(
    head: ProtoMessage, tree: ObjectTree, pull: Callable[[list[str]], dict[str, bytes]], most: int = REQUEST
) -> bytes:
    """The content of a message; `pull` fetches objects. Any error means that it is not a fedmc message.

    An array that would have more than `most` bytes is not built.
    """
    if head.content.ByteSize():
        return unpack(recorddict_from_proto(head.content))
    objects = pull(_ids(tree))
    if tree.children:
        check_build(objects, most + FRAMING)
        message = inflate_object_from_contents(tree.object_id, objects)
        if not isinstance(message, Message):
            raise ValueError(f"expected a message, got {type(message).__name__}")
        return unpack(message.content)
    start, _, body = objects[tree.object_id].partition(HEAD_BODY_DIVIDER)
    if start != b"%s  %d" % (KIND, len(body)) or len(body) < NONCE:
        raise ValueError("an object of another kind")
    return body[NONCE:]


def _headed(message: Message, name: str, objects: dict[str, bytes]) -> Parcel:
    message.metadata.__dict__["_message_id"] = name
    return Parcel(message_to_proto(message), ObjectTree(object_id=name), objects)


def _ids(tree: ObjectTree) -> list[str]:
    return [name for child in tree.children for name in _ids(child)] + [tree.object_id]
