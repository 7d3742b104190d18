"""A node as one fedmc process on Flower's Fleet API: it pulls messages, answers them, and runs no code from the server.

A stock SuperNode fetches the server's bundle and executes it. This node cannot: it never asks for the bundle, and it
refuses every message that is not bytes of fedmc's protocol. Only this file imports the parts of Flower's node side that
have no stable API; the conformance test fails when they change.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmc.errors import FedmcError
from fedmc.federation.flower.records import pack, unpack
from fedmc.federation.setup import tls_check

log = logging.getLogger("fedmc.node")
T = TypeVar("T")

SERVER_APP = "flwr-serverapp"
MISSING = 5.0  # seconds to wait for missing parts of a message: those of a run that ended never arrive
QUICK = 0.05  # seconds between two polls after a message; the pause then grows up to `poll`
PATIENCE = 20.0  # seconds for which a call is retried before the node reconnects


class NotAdmittedError(FedmcError):
    """The server does not take this node in, and trying again would not help."""


class _UnreadableError(Exception):
    """A message whose parts are not what Flower would have sent."""


class _NotYetError(Exception):
    """The server cannot be reached, or still holds the lease of this node's previous process; retry later."""


_beats: list[HeartbeatSender] = []


class _Heartbeat(HeartbeatSender):
    """A heartbeat that can be monitored: an unexpected answer ends its thread silently."""

    def __init__(self, send: Callable[[], bool]) -> None:
        super().__init__(send)
        _beats.append(self)


class Place(NamedTuple):
    """Where a node connects, and with which keys."""

    server: str  # host:port
    ca: Path
    keys: Any  # private, public
    memory: Path  # a file for the id that the server gave this node


def serve(
    answer: Callable[[bytes], bytes],
    place: Place,
    *,
    poll: float = 0.2,
    again: float = 3.0,
    going_on: Callable[[], bool] = lambda: True,
    on_online: Callable[[], None] = lambda: None,
) -> None:
    """Answer messages while `going_on` returns True, also across restarts of the server.

    `answer` turns a request's bytes into a reply's. An exception from it ends the node, and nothing is sent.
    """
    said = ""
    while going_on():
        try:
            tls_check.check(place.server, place.ca)
            with _connected(place) as connection:
                on_online()
                said = ""
                _answer_all(answer, connection, poll, going_on)
        except (_NotYetError, tls_check.UnreachableError, httpx.HTTPError) as error:
            if str(error) != said:
                log.warning("%s; trying again", error)
            said = str(error)
            time.sleep(again)


def _answer_all(
    answer: Callable[[bytes], bytes], connection: tuple[Any, ...], poll: float, going_on: Callable[[], bool]
) -> None:
    _, receive, send, get_run, _, pull_object, push_object, confirm = connection
    kinds: dict[int, str] = {}
    pause = poll
    while going_on():
        if not all(beat.is_running for beat in _beats):
            raise _NotYetError("the heartbeats ended")
        try:
            found = _readable(receive)
        except _UnreadableError as error:
            log.warning("refused a message that is not one of Flower's: %s", error)
            found = None
        if found is None:
            time.sleep(pause)
            pause = min(1.2 * pause, poll)
            continue
        pause = min(QUICK, poll)  # after a message, the next stage follows soon
        head, tree = found
        run = head.metadata.run_id
        try:
            if run not in kinds:
                kinds[run] = _kind(get_run(run))
            pull, received = partial(pull_object, run), partial(confirm, run)
            message = _readable(partial(
                pull_and_inflate_object_from_tree, tree, pull, received, return_type=Message, max_time=MISSING,
                initial_backoff=0.1, backoff_cap=1.0,
            ))  # fmt: skip
            message.metadata.__dict__.update(head.metadata.__dict__)
            reply = _reply(message, kinds[run], answer)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            push_objects(objects, partial(push_object, run, session), object_ids_to_push=wanted)
        except RunNotRunningException:
            log.info("run %s ended meanwhile: nobody waits for an answer", run)
        except (ObjectPullError, ObjectPushError) as error:
            log.warning("a message did not get through, the server will ask again: %s", error)
        except _UnreadableError as error:
            log.warning("refused a message of run %s that is not one of Flower's: %s", run, error)


def _readable(call: Callable[[], T]) -> T:
    """What a call to the SuperLink returns. Its database is anybody's bytes until a signature is checked, so whatever
    Flower makes of them is refused and does not end the node."""
    try:
        return call()
    except (ObjectPullError, httpx.HTTPError):
        raise
    except Exception as error:
        raise _UnreadableError(f"{type(error).__name__}: {error}") from None


@contextmanager
def _connected(place: Place) -> Iterator[tuple[Any, ...]]:
    """Flower's own connection with its heartbeats. It swallows errors raised inside; here they are raised again."""
    failed: list[Exception] = []
    certificates = place.ca.read_bytes()
    opened = fleet_http_connection.http_request_response(
        place.server, False, certificates, place.keys, max_wait_time=PATIENCE
    )
    vars(fleet_http_connection)["flwr_exit"] = partial(_not_connected, place)  # Flower's would end this process
    vars(fleet_http_connection)["HeartbeatSender"] = _Heartbeat
    _beats.clear()
    with opened as connection:
        try:
            place.memory.write_text(str(connection[0]), encoding="utf-8")
            yield connection
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _not_connected(place: Place, code: int, message: str | None = None, **more: Any) -> NoReturn:
    """Replaces Flower's exit: raises the cause as a fedmc error."""
    text = message or ""
    if "'421 " in text:  # the gate's word
        raise NotAdmittedError(
            "the server does not know this node's key: ask for its public key to be registered there"
        )
    if "'420 " in text:  # the gate's word for Flower's 401, which would interrupt this process
        raise NotAdmittedError("the server does not accept this node's signature: is this machine's clock right?")
    if "[code: 2004]" in text:
        _end_lease(place)
        raise _NotYetError("the server still holds the lease of this node's last process")
    raise _NotYetError(re.sub(r"\s+", " ", text).strip() or f"Flower ended with code {code}")


def _end_lease(place: Place) -> None:
    """Deactivate this node at the server: its previous process was killed before it could do so."""
    with suppress(OSError, ValueError, httpx.HTTPError):
        node = int(place.memory.read_text(encoding="utf-8"))
        signed = [NodeAuthHttpInterceptor(*place.keys)]
        client = FleetHttpClient.from_server_address(place.server, False, place.ca.read_bytes(), interceptors=signed)
        with client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def _kind(run: Run) -> str:
    return str(getattr(run, "primary_task_type", SERVER_APP))


def _reply(message: Message, kind: str, answer: Callable[[bytes], bytes]) -> Message:
    """Answer a fedmc message; refuse any other message, and runs of another kind."""
    try:
        if kind != SERVER_APP:
            raise ValueError(f"a run of the kind {kind!r}")
        content = unpack(message.content)
    except Exception as error:  # nobody has signed this part
        log.warning("refused a message of run %s: %s: %s", message.metadata.run_id, type(error).__name__, error)
        return Message(Error(ErrorCode.INVALID_FAB, "refused"), reply_to=message)
    return Message(pack(answer(content)), reply_to=message)
