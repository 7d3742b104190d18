"""A node's replies that are not masked, and how its log names what was asked."""

from __future__ import annotations

from fedmc.algorithms.messages import Sums
from fedmc.federation.logs import Field
from fedmc.federation.wire import Reply, Request, encode_reply, to_bytes


def about(request: Request) -> str:
    """What was asked, for the log."""
    return f"{request.broadcast.task} {request.broadcast.round} of run {request.run}"


def fields_of(request: Request) -> dict[str, Field]:
    """The same as fields of a log line."""
    return {"run": request.run, "round": request.broadcast.round, "task": request.broadcast.task}


def reply_to(request: Request, status: str, sums: Sums | None = None) -> bytes:
    broadcast = request.broadcast
    return to_bytes(*encode_reply(Reply(request.run, request.client, broadcast.round, broadcast.task, status, sums)))
