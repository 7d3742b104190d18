"""A node as one process of ours on Flower's Fleet API: it pulls messages, answers them, and runs nothing it was sent.

A stock SuperNode fetches the server's bundle and executes it. This one has no code that could: it never asks for the
bundle, and a message is bytes of our own protocol or refused. Everything here that Flower does not promise to keep is
imported in this file; the conformance test fails when it changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import Run
from flwr.supernode.fleet_http_connection import http_request_response

from fedmc.engines.flower.records import pack, unpack

log = logging.getLogger("fedmc.node")

SERVER_APP = "flwr-serverapp"


def serve(
    answer: Callable[[bytes], bytes],
    superlink: str,
    root_certificates: bytes | None,
    keys: Any,
    poll: float = 0.2,
    going_on: Callable[[], bool] = lambda: True,
) -> None:
    """Answer messages for as long as wanted. Without certificates the connection is open: for tests on loopback only.

    `answer` makes a reply's bytes of a request's; what it raises ends the node, and nothing is sent.
    """
    failed: list[BaseException] = []
    with http_request_response(superlink, root_certificates is None, root_certificates, keys) as connection:
        _, receive, send, get_run, _, pull_object, push_object, confirm = connection
        kinds: dict[int, str] = {}
        while going_on():
            found = receive()
            if found is None:
                time.sleep(poll)
                continue
            head, tree = found
            run = head.metadata.run_id
            if run not in kinds:
                kinds[run] = _kind(get_run(run))
            try:
                pull, received = partial(pull_object, run), partial(confirm, run)
                message = pull_and_inflate_object_from_tree(tree, pull, received, return_type=Message)
                message.metadata.__dict__.update(head.metadata.__dict__)
                reply = _reply(message, kinds[run], answer)
            except Exception as error:  # the connection would swallow it
                failed.append(error)
                break
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            push_objects(objects, partial(push_object, run, session), object_ids_to_push=wanted)
    if failed:
        raise failed[0]


def _kind(run: Run) -> str:
    return str(getattr(run, "primary_task_type", SERVER_APP))


def _reply(message: Message, kind: str, answer: Callable[[bytes], bytes]) -> Message:
    """Bytes of ours are answered; a run of another kind, or anything else, gets a refusal."""
    try:
        if kind != SERVER_APP:
            raise ValueError(f"a run of the kind {kind!r}")
        content = unpack(message.content)
    except (KeyError, ValueError, TypeError) as error:
        log.warning("refused a message of run %s: %s", message.metadata.run_id, error)
        return Message(Error(ErrorCode.INVALID_FAB, "refused"), reply_to=message)
    return Message(pack(answer(content)), reply_to=message)
