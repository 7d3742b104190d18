"""A node reads what the server signed: whatever it holds, the outcome is a request, a stage, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedmc.errors import DataError, InputError, UnknownNameError
from fedmc.federation.node.checks import check_name
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.secagg_messages import Stage, decode_stage
from fedmc.federation.wire import NEVER, Arrays, Header, Reply, Request, decode, encode_reply, from_bytes, to_bytes

T = TypeVar("T")


def read(content: bytes) -> tuple[Arrays, Header]:
    """Arrays and header of a message."""
    return _refused(lambda: from_bytes(content), f"{len(content)} bytes, ")


def read_request(arrays: Arrays, header: Header) -> Request:
    try:
        request = _refused(lambda: decode(arrays, header))
    except UnknownNameError as error:
        cure = "ask the run's operator for the plug-in's package, install it here and restart the node"
        raise RefusedError("missing-plugin", f"{error}; {cure}") from None
    except InputError as error:
        raise RefusedError("wrong-settings", str(error)) from None
    check_name(request.run)
    return request


def read_stage(arrays: Arrays, header: Header) -> Stage:
    return _refused(lambda: decode_stage(arrays, header))


def refusal(refused: RefusedError, header: Header) -> bytes:
    """The answer to a message that is not fulfilled, with as much of its header as can be read; logged."""
    refused.log(f"a message of run {header.get('run')!r}, round {header.get('round')!r}" if header else "a message")
    try:
        run, client, round, task = (header[name] for name in ("run", "client", "round", "task"))
        reply = Reply(str(run), int(client), int(round), str(task), refused.status)
    except (KeyError, TypeError, ValueError, OverflowError):
        reply = Reply("", NEVER, NEVER, "", refused.status)
    return to_bytes(*encode_reply(reply))


def _refused(read: Callable[[], T], what: str = "") -> T:
    """What `read` returns. Any error of it but an InputError is a refusal: a server can write anything."""
    try:
        return read()
    except InputError:
        raise
    except DataError as error:
        raise RefusedError("malformed", f"{what}{error}") from None
    except Exception as error:
        raise RefusedError("malformed", f"{what}{type(error).__name__}: {error}") from None
