"""A node's connection to Flower's Fleet API: it activates the node, keeps its lease, and carries messages.

Only this file imports the parts of Flower's node side that have no stable API; the conformance test fails when they
change. The call that fetches the server's bundle is not among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmc.errors import FedmcError, reason
from fedmc.federation.flower.bounded import FRAMING, PULLS, REQUEST, BoundedTransport, Budget, check_count
from fedmc.federation.flower.records import Parcel

T = TypeVar("T")

WAIT = "fedmc-wait"  # the header by which a poll says how long the gateway may hold it
KEPT = 100.0  # seconds that an idle connection is kept: longer than the pause between two heartbeats
TIMEOUT = 30.0  # seconds without a byte, after which a call has failed
PATIENCE = 20.0  # seconds for which a call is retried
MISSING = 5.0  # seconds to wait for missing parts of a message: those of a run that ended never arrive
RETRIED = (429, 502, 503, 504)
RUN_ENDED = 403


class NotAdmittedError(FedmcError):
    """The server does not take this node in, and trying again would not help."""


class NotYetError(Exception):
    """The server cannot be reached, or still holds the lease of this node's previous process; retry later."""


class RunEndedError(Exception):
    """The run that a message belongs to has ended: nobody waits for an answer."""


class LostError(Exception):
    """A message did not get through; the server will ask again."""


class Place(NamedTuple):
    """Where a node connects, and with which keys."""

    server: str  # host:port
    ca: Path
    keys: Any  # private, public
    memory: Path  # a file for the id that the server gave this node


class _Headers:
    """Adds to a call: Flower's version, and to a poll how long it may be held."""

    def __init__(self) -> None:
        self.version = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self.hold = 0

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update(self.version)
        if isinstance(context.message, PullMessagesRequest):
            context.request.headers[WAIT] = str(self.hold)
        return call_next(context)


class _Client(FleetHttpClient):
    """Flower's client with connections that are kept, bounded answers, and no redirects to other machines."""

    def __init__(self, base_url: str, *, interceptors: Any = (), verify: Any = True, retry_invoker: Any = None) -> None:
        super().__init__(base_url, interceptors=interceptors, verify=verify, timeout=TIMEOUT)
        self._client.close()
        kept = httpx.Limits(max_connections=8, max_keepalive_connections=8, keepalive_expiry=KEPT)
        plain = httpx.HTTPTransport(verify=verify, limits=kept, trust_env=False)
        self._client = httpx.Client(transport=BoundedTransport(plain), timeout=TIMEOUT, trust_env=False)


class Fleet:
    """The calls of an activated node. They are retried for a while, and then fail with httpx's errors."""

    def __init__(self, client: Any, node: int, headers: _Headers) -> None:
        self.client, self.node, self.headers = client, Node(node_id=node), headers

    def poll(self, hold: float) -> PullMessagesResponse:
        """The next message, if there is one; the gateway may keep us waiting for so long."""
        self.headers.hold = int(hold)
        found: PullMessagesResponse = retried(self.client.PullMessages, PullMessagesRequest(node=self.node))
        return found

    def kind(self, run: int) -> str:
        """The kind of app that the server says it runs."""
        return str(retried(self.client.GetRun, GetRunRequest(node=self.node, run_id=run)).run.primary_task_type)

    def pull(self, run: int, names: list[str]) -> dict[str, bytes]:
        """These objects, the last of which is the message's; confirms that they were received."""
        check_count(names)
        budget = Budget(REQUEST + FRAMING)

        def one(name: str) -> bytes:
            request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
            found = retried(self.client.PullObject, request)
            if not found.object_found:
                raise ObjectPullError(name, "it is not there")
            if not found.object_available:
                raise ObjectUnavailableError(name)
            return budget.take(bytes(found.object_content))

        try:
            objects: dict[str, bytes] = pull_objects(
                names, one, max_concurrent_pulls=PULLS, max_time=MISSING, initial_backoff=0.1, backoff_cap=1.0
            )
        except ObjectPullError as error:
            raise LostError(str(error)) from None
        done = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=names[-1])
        retried(self.client.ConfirmMessageReceived, done)
        return objects

    def push(self, parcel: Parcel) -> None:
        """Push a message, and its objects if it has any."""
        request = PushMessagesRequest(
            node=self.node, messages_list=[parcel.head], message_object_trees=[parcel.tree],
            clientapp_runtime_list=[0.0],
        )  # fmt: skip
        said = retried(self.client.PushMessages, request)
        run = parcel.head.metadata.run_id

        def one(name: str, content: bytes) -> None:
            push = PushObjectRequest(
                node=self.node, run_id=run, object_id=name, object_content=content, session_id=said.session_id
            )
            if not retried(self.client.PushObject, push).stored:
                raise ObjectPushError(name, run, said.session_id)

        missing = set(said.objects_to_push)
        try:
            wanted = ((name, content) for name, content in parcel.objects.items() if name in missing)
            push_object_contents_from_iterable(wanted, one)
        except ObjectPushError as error:
            raise LostError(str(error)) from None

    def beat(self) -> bool:
        """Prolong the lease; False if this should be tried again soon."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            if not self.client.SendNodeHeartbeat(request).success:
                raise NotYetError("the server does not know this node any more")
        except (httpx.TransportError, ValueError):
            return False
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in RETRIED:
                raise
            return False
        return True


def retried(call: Callable[[Any], T], request: Any) -> T:
    """Call until it works, while it might; httpx's error if it does not, LostError for an answer that says nothing."""
    until, pause = time.monotonic() + PATIENCE, 0.3
    while True:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status == RUN_ENDED:
                raise RunEndedError from None
            if status not in RETRIED or time.monotonic() >= until:
                raise
        except httpx.TransportError:
            if time.monotonic() >= until:
                raise
        except ValueError as error:  # of another format, compressed, or too large
            raise LostError(reason(error)) from None
        time.sleep(pause)
        pause = min(1.5 * pause, 3.0)


@contextmanager
def connected(place: Place) -> Iterator[tuple[Fleet, HeartbeatSender]]:
    """An activated node and its heartbeats; it is deactivated at the end."""
    headers = _Headers()
    with _Client.from_server_address(
        place.server, False, place.ca.read_bytes(), [headers, NodeAuthHttpInterceptor(*place.keys)]
    ) as client:
        fleet = Fleet(client, _activated(client, place), headers)
        place.memory.write_text(str(fleet.node.node_id), encoding="utf-8")
        beats = HeartbeatSender(fleet.beat)
        beats.start()
        try:
            yield fleet, beats
        finally:
            with suppress(RuntimeError):  # they ended by themselves
                beats.stop()
            with suppress(httpx.HTTPError, ValueError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=fleet.node.node_id))


def _activated(client: Any, place: Place) -> int:
    """Take up the node's lease; returns its id."""
    key = public_key_to_bytes(place.keys[1])
    request = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    try:
        return int(retried(client.ActivateNode, request).node_id)
    except httpx.HTTPStatusError as error:
        status, said = error.response.status_code, _flower_error(error.response.content)
        if status == 421:  # the gateway's word
            raise NotAdmittedError(
                "the server does not know this node's key: ask for its public key to be registered there"
            ) from None
        if status == 420:  # the gateway's word for Flower's 401
            raise NotAdmittedError(
                "the server does not accept this node's signature: is this machine's clock right?"
            ) from None
        if said is not None and said.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            _end_lease(client, place)
            raise NotYetError("the server still holds the lease of this node's last process") from None
        raise NotYetError(f"the server answers {status}") from None
    except (LostError, RunEndedError) as error:
        raise NotYetError(f"the server does not answer as Flower does: {error}") from None


def _flower_error(body: bytes) -> FlowerError | None:
    """What Flower says in an error's body, which is anybody's bytes in any encoding; None if it is not Flower's."""
    try:
        return FlowerError.from_json(body.decode("utf-8"))
    except Exception:
        return None


def _end_lease(client: Any, place: Place) -> None:
    """Deactivate this node at the server: its previous process was killed before it could do so."""
    with suppress(OSError, ValueError, httpx.HTTPError):
        client.DeactivateNode(DeactivateNodeRequest(node_id=int(place.memory.read_text(encoding="utf-8"))))
