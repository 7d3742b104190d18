"""The ServerApp's messages through the SuperLink: few calls, and none that only asks whether there is something.

Flower's `Grid` pushes and pulls every record of a message as objects of their own. Its client is used directly here,
for fedmc's short form of messages (`records.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import GetNodesRequest, PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedmc.federation.flower.bounded import FRAMING, PULLS, Budget, TooLargeError
from fedmc.federation.flower.notices import Notices
from fedmc.federation.flower.records import Parcel, unwrap, wrap

log = logging.getLogger("fedmc.server")

QUERY = "query"  # the type of all fedmc messages
BATCH = 8 * 2**20  # bytes of messages that are pushed in one call
SLACK = 3600.0  # seconds that Flower keeps a message after its exchange: clocks may differ by minutes
KEPT_MOST = 12 * 3600.0  # seconds that Flower would keep every message by itself


class Answer(NamedTuple):
    """A node's answer to the message `to`: its bytes, the code of an error, or the size at which it was too large."""

    to: str
    content: bytes = b""
    error: int | None = None
    size: int = 0


class FlowerPost:
    def __init__(self, grid: HttpGrid, notices: Notices, patience: float) -> None:
        self.grid, self.notices = grid, notices
        self.calls = 0  # to the SuperLink, since the gateway was told last
        self.ttl = min(patience + SLACK, KEPT_MOST)
        # Flower waits up to two hours for the rest of a reply whose sender died; asking the node again is quicker.
        self.pull_objects = partial(
            pull_objects, max_concurrent_pulls=PULLS, max_time=max(patience / 3, 1.0), initial_backoff=0.1,
            backoff_cap=1.0,
        )  # fmt: skip

    def online(self) -> set[int]:
        """The nodes that the SuperLink believes to be there."""
        return {node.node_id for node in self._call("GetNodes", GetNodesRequest()).nodes}

    def push(self, contents: Sequence[tuple[int, bytes]]) -> list[str]:
        """Send each node its content; returns the messages' ids, empty for those that Flower did not take."""
        short, ids = self.notices.short, list[str]()
        batch, nodes, size = list[Parcel](), list[int](), 0
        for place, (node, content) in enumerate(contents):
            make = partial(Message, dst_node_id=node, message_type=QUERY, ttl=self.ttl)
            batch.append(wrap(make, content, node in short))
            nodes.append(node)
            size += len(content)
            if size >= BATCH or place == len(contents) - 1:
                ids += self._push(batch)
                stored = [node for node, name in zip(nodes, ids[-len(nodes) :], strict=True) if name]
                self.notices.announce(stored, self.calls)
                self.calls = 0
                batch, nodes, size = [], [], 0
        return ids

    def _push(self, batch: list[Parcel]) -> list[str]:
        trees = [parcel.tree for parcel in batch]
        request = PushAppMessagesRequest(messages_list=[p.head for p in batch], message_object_trees=trees)
        said = self._call("PushMessages", request)
        missing = set(said.objects_to_push)
        call = partial(self._call, "PushObject")
        push = make_push_object_fn_protobuf(call, self.grid.node, self._run, said.session_id)
        objects = {name: content for parcel in batch for name, content in parcel.objects.items() if name in missing}
        push_object_contents_from_iterable(objects.items(), push)
        return list(said.message_ids)

    def pull(self, ids: Iterable[str], most: int) -> list[Answer]:
        """The answers to these messages that are there; of one with more than `most` bytes only its size."""
        said = self._call("PullMessages", PullAppMessagesRequest(message_ids=list(ids)))
        pairs = zip(said.messages_list, said.message_object_trees, strict=True)
        return [self._read(head, tree, most) for head, tree in pairs]

    def _read(self, head: ProtoMessage, tree: ObjectTree, most: int) -> Answer:
        to = head.metadata.reply_to_message_id
        if head.HasField("error"):
            return Answer(to, error=head.error.code)
        try:
            return Answer(to, unwrap(head, tree, partial(self._fetch, most), most))
        except TooLargeError as error:
            log.warning("node %s: %s", head.metadata.src_node_id, error)
            return Answer(to, size=max(error.size, most + 1))
        except ObjectPullError as error:
            log.warning("the rest of a reply is missing: %s", error)
            return Answer(to, error=0)
        except Exception as error:  # malformed bytes can raise anything
            if isinstance(error, httpx.HTTPError):
                raise
            log.warning("node %s sent a reply that is not a fedmc message", head.metadata.src_node_id)
            return Answer(to)

    def _fetch(self, most: int, names: list[str]) -> dict[str, bytes]:
        """Pull these objects until there are more bytes than an answer may have; Flower then forgets all of them."""
        pull = make_pull_object_fn_protobuf(partial(self._call, "PullObject"), self.grid.node, self._run)
        budget = Budget(most + FRAMING)
        try:
            found: dict[str, bytes] = self.pull_objects(names, lambda name: budget.take(pull(name)))
        except TooLargeError:
            self._confirm(names[-1])
            raise
        self._confirm(names[-1])
        return found

    def _confirm(self, name: str) -> None:
        done = ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self._run, message_object_id=name)
        self._call("ConfirmMessageReceived", done)

    def _call(self, name: str, request: Any) -> Any:
        self.calls += 1
        return getattr(self.grid._runtime_client, name)(request)

    @property
    def _run(self) -> int:
        return int(self.grid.run.run_id)
