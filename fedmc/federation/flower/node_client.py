"""A node as one fedmc process on Flower's Fleet API: it pulls messages, answers them, and runs no code from the server.

A stock SuperNode fetches the server's bundle and executes it. This node cannot: it never asks for the bundle, and it
refuses every message that is not bytes of fedmc's protocol.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.heartbeat import HeartbeatSender

from fedmc.errors import reason
from fedmc.federation.flower.fleet import (
    Fleet,
    LostError,
    NotAdmittedError,
    NotYetError,
    Place,
    RunEndedError,
    connected,
)
from fedmc.federation.flower.records import Parcel, is_short, unwrap, wrap, wrap_records
from fedmc.federation.setup import tls_check

log = logging.getLogger("fedmc.node")
T = TypeVar("T")

SERVER_APP = "flwr-serverapp"
QUICK = 0.5  # a poll that comes back empty sooner was not held: then the node pauses
PAUSE = 1.0  # seconds
SLOW = 10  # times the usual pause, before a node that was admitted once tries again at a server that refuses its key


class _UnreadableError(Exception):
    """A message whose parts are not what Flower would have sent."""


def serve(
    answer: Callable[[bytes], bytes],
    places: Callable[[], Sequence[Place]],
    *,
    hold: float = 20.0,
    again: float = 3.0,
    going_on: Callable[[], bool] = lambda: True,
    on_online: Callable[[], None] = lambda: None,
    on_offline: Callable[[], None] = lambda: None,
) -> None:
    """Answer messages while `going_on` returns True, also across restarts of the server.

    `answer` turns a request's bytes into a reply's. An exception from it ends the node, and nothing is sent. A server
    that knows none of the node's keys ends it too, but not after it was admitted: whoever answers then may be wrong.
    `places` says where to connect, with each key that the server may know.
    """
    said, admitted, turn = "", False, 0
    while going_on():
        known = places()
        place = known[turn % len(known)]
        try:
            tls_check.check(place.server, place.ca)
            with connected(place) as (fleet, beats):
                on_online()
                said, admitted = "", True
                _answer_all(answer, fleet, beats, hold, going_on)
        except (NotYetError, NotAdmittedError, tls_check.UnreachableError, httpx.HTTPError) as error:
            on_offline()
            refused = isinstance(error, NotAdmittedError)
            turn += refused
            if refused and turn % len(known):
                continue  # with another key
            if refused and not admitted:
                raise
            if str(error) != said:
                log.warning("%s; trying again", error)
            said = str(error)
            time.sleep(again * SLOW if refused else again)


def _answer_all(
    answer: Callable[[bytes], bytes],
    fleet: Fleet,
    beats: HeartbeatSender,
    hold: float,
    going_on: Callable[[], bool],
) -> None:
    kinds: dict[int, str] = {}
    while going_on():
        if not beats.is_running:
            raise NotYetError("the heartbeats ended")
        began = time.monotonic()
        try:
            found = _readable(partial(fleet.poll, hold))
            if found.messages_list:
                push_reply(fleet, _reply(found, kinds, fleet, answer))
                continue
        except RunEndedError:
            log.info("a run ended meanwhile: nobody waits for an answer")
        except LostError as error:
            log.warning("a message did not get through, the server will ask again: %s", error)
        except _UnreadableError as error:
            log.warning("refused a message that is not one of Flower's: %s", error)
        if time.monotonic() - began < QUICK:  # a server that does not hold polls
            time.sleep(PAUSE)


def _readable(call: Callable[[], T]) -> T:
    """What a call to the SuperLink returns. Its database is anybody's bytes until a signature is checked, so whatever
    Flower makes of them is refused and does not end the node."""
    try:
        return call()
    except (LostError, RunEndedError, httpx.HTTPError):
        raise
    except Exception as error:
        raise _UnreadableError(reason(error)) from None


def push_reply(fleet: Fleet, reply: Parcel) -> None:
    fleet.push(reply)


def _reply(
    found: PullMessagesResponse, kinds: dict[int, str], fleet: Fleet, answer: Callable[[bytes], bytes]
) -> Parcel:
    """Answer a fedmc message in the form in which it came; refuse any other message, and runs of another kind."""
    head, tree = found.messages_list[0], _readable(lambda: found.message_object_trees[0])
    asked, run = _readable(partial(message_from_proto, head)), head.metadata.run_id
    try:
        if run not in kinds:
            kinds[run] = fleet.kind(run)
        if kinds[run] != SERVER_APP:
            raise ValueError(f"a run of the kind {kinds[run]!r}")
        content = unwrap(head, tree, partial(fleet.pull, run))
    except (LostError, RunEndedError, httpx.HTTPError):
        raise
    except Exception as error:  # nobody has signed this part
        log.warning("refused a message of run %s: %s", run, reason(error))
        return wrap_records(Message(Error(ErrorCode.INVALID_FAB, "refused"), reply_to=asked))
    return wrap(partial(Message, reply_to=asked), answer(content), is_short(head, tree))
