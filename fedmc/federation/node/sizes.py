"""Bounds on what answering a request may cost a node: the bytes of its reply, and those it works in."""

from __future__ import annotations

from fedmc.algorithms.messages import length
from fedmc.algorithms.schema import schema_of
from fedmc.data.partition import Shard
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.wire import Request
from fedmc.problem import subproblem

NUMBER = 8  # bytes
MAX_REPLY = 2**30  # bytes
MAX_WORK = 2**32  # bytes of the matrices of all users, where a penalty needs them at once


def check_sizes(shard: Shard, request: Request) -> None:
    """Refuse a small request for a huge reply."""
    broadcast, settings = request.broadcast, request.broadcast.settings
    reply = NUMBER * length(schema_of(broadcast, len(broadcast.V)))
    if reply > MAX_REPLY:
        cure = "lower the rank, or choose an algorithm with smaller messages"
        raise RefusedError("wrong-settings", f"the reply would have {reply} bytes, at most {MAX_REPLY}: {cure}")
    penalty, _ = settings.penalties(broadcast.clients)
    work = NUMBER * len(shard.users) * settings.width**2
    if work > MAX_WORK and subproblem.solvable(settings.make_loss(), penalty, settings.width) is None:
        cure = "lower the rank, or choose a separable penalty such as l2"
        raise RefusedError("wrong-settings", f"{penalty} would take {work} bytes here, at most {MAX_WORK}: {cure}")
