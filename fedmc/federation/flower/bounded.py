"""Bounds on what one side takes in from the other, before there is a signature to check.

A call's answer is read up to a size, and not decompressed. A message is bounded as a whole: by its objects as they
arrive, and by what Flower would build from them, since an array may name one piece many times.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping

import httpx
from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

from fedmc.errors import FedmcError

MIB = 2**20
# A request is V and what the algorithm shares; a node refuses requests whose reply would have more than 400 MB
# (`node/sizes.py`), and neither of the two parts is larger than the reply.
REQUEST = 2048 * MIB
FRAMING = MIB  # bytes around a message's content: heads of objects, ids of pieces
STRUCTURE = 8 * MIB + FRAMING  # bytes of all objects that are not pieces of an array; `records.SMALL` may be in one
OBJECTS = 512  # of one message; Flower's pieces have 5 MiB
PULLS = 2  # objects that are pulled at the same time: so many may be in memory beyond a bound
ANSWERS = {"pull-object": 65 * MIB, "pull-messages": 4 * MIB}  # bytes of a call's answer
ANSWER = MIB  # of any other call
KEPT = ("content-type", "content-length")  # headers of an answer: a cookie would be kept for ever


class TooLargeError(FedmcError, ValueError):
    """More bytes than are taken in; `size` is how many were seen."""

    def __init__(self, what: str, size: int, most: int) -> None:
        super().__init__(f"{what} has {size} bytes or more, at most {most} are taken in")
        self.size = size


class BoundedTransport(httpx.BaseTransport):
    """Sends as `inner` does, and reads no more of an answer than its call may have."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self.inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        call = request.url.path.rpartition("/")[2]
        answer = self.inner.handle_request(request)
        assert isinstance(answer.stream, httpx.SyncByteStream)
        body = _BoundedStream(answer.stream, f"the answer to {call}", ANSWERS.get(call, ANSWER))
        if "content-encoding" in answer.headers:  # a few bytes could become gigabytes
            body.close()
            raise ValueError(f"the answer to {call} is compressed, which was not asked for")
        headers = [(name, value) for name, value in answer.headers.multi_items() if name in KEPT]
        return httpx.Response(answer.status_code, headers=headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        self.inner.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, what: str, most: int) -> None:
        self.inner, self.what, self.most = inner, what, most

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self.inner:
            size += len(piece)
            if size > self.most:
                raise TooLargeError(self.what, size, self.most)
            yield piece

    def close(self) -> None:
        self.inner.close()


class Budget:
    """The bytes of one message, counted while its objects arrive in several threads."""

    def __init__(self, most: int) -> None:
        self.most, self.used, self._lock = most, 0, threading.Lock()

    def take(self, content: bytes) -> bytes:
        with self._lock:
            self.used += len(content)
            if self.used > self.most:
                raise TooLargeError("a message", self.used, self.most)
        return content


def check_count(names: list[str]) -> None:
    """Refuse a message of very many objects before any is pulled."""
    if len(names) > OBJECTS:
        raise ValueError(f"a message of {len(names)} objects, at most {OBJECTS} are pulled")


def check_build(objects: Mapping[str, bytes], most: int) -> None:
    """Refuse objects from which Flower would build much more than they are."""
    heads = {name: get_object_head_values_from_object_content(content) for name, content in objects.items()}
    structure = [name for name, (kind, _, _) in heads.items() if kind != ArrayChunk.__qualname__]
    size = sum(len(objects[name]) for name in structure)
    if size > STRUCTURE:
        raise TooLargeError("the structure of a message", size, STRUCTURE)
    size = 0
    for name in structure:
        kind, children, _ = heads[name]
        if kind == Array.__qualname__:
            pieces = json.loads(objects[name].partition(HEAD_BODY_DIVIDER)[2])["arraychunk_ids"]
            size += sum(len(objects[children[piece]]) for piece in pieces)
    if size > most:
        raise TooLargeError("a message's arrays", size, most)
