"""Read what a server sent: a request, a later stage of a session, news, or none of them, which is refused.

Whatever the bytes are, reading them has one of these outcomes. An error of any other kind would end the node.
"""

from __future__ import annotations

import re

from fedmc.algorithms.messages import TASKS
from fedmc.errors import DataError, InputError, UnknownNameError, quoted, reason
from fedmc.federation.news import NEWS, News, decode_news
from fedmc.federation.node.checks import check_name
from fedmc.federation.node.refusals import Refusals, RefusedError
from fedmc.federation.secagg_messages import Stage, decode_stage
from fedmc.federation.wire import (
    INVITATION,
    NEVER,
    RUN,
    SHARED,
    Arrays,
    Header,
    Reply,
    Request,
    decode,
    encode_reply,
    from_bytes,
    to_bytes,
)
from fedmc.types import MAX_CLIENTS, MAX_ROUND, whole

PLUGIN = "ask the run's operator for the plug-in's package, install it here and restart the node"


def read(content: bytes, refusals: Refusals) -> Request | Stage | News | bytes:
    """The request, stage or news that the bytes hold; bytes: the refusal to send instead."""
    header: Header = {}
    try:
        arrays, header = from_bytes(content)
        if NEWS in header:
            return decode_news(arrays, header)
        return decode_stage(arrays, header) if "stage" in header else _request(arrays, header)
    except RefusedError as refused:
        return refusal(refused, header, refusals)
    except UnknownNameError as error:
        return refusal(RefusedError("missing-plugin", f"{error}; {PLUGIN}"), header, refusals)
    except InputError as error:
        return refusal(RefusedError("wrong-settings", str(error)), header, refusals)
    except Exception as error:  # strange bytes can raise anything
        return refusal(RefusedError("malformed", f"{len(content)} bytes, {reason(error)}"), header, refusals)


def _request(arrays: Arrays, header: Header) -> Request:
    unknown = [name for name in arrays if name not in ("V", INVITATION) and not name.startswith(SHARED)]
    if unknown:
        raise DataError(f"a request has no array {quoted(unknown[0])}")
    request = decode(arrays, header)
    check_name(request.run)
    return request


def refusal(refused: RefusedError, header: Header, refusals: Refusals) -> bytes:
    """The answer to a message that could not be read; it repeats only names and numbers that a request may have."""
    run, round = header.get("run"), header.get("round")
    what = f"a message of run {quoted(run)}, round {quoted(round)}" if header else "a message"
    refusals.add(refused, what, run if isinstance(run, str) else "")
    known = isinstance(run, str) and re.fullmatch(RUN, run) and header.get("task") in TASKS
    try:
        number = whole("round", round, NEVER, MAX_ROUND)
        client = whole("client", header.get("client"), NEVER, MAX_CLIENTS)
    except InputError:
        known = False
    reply = Reply("", NEVER, NEVER, "", refused.status)
    if known:
        reply = Reply(str(run), client, number, str(header["task"]), refused.status)
    return to_bytes(*encode_reply(reply))
