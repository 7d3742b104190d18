"""Bounds on what answering a request may cost a node: the bytes of its reply, what it stores, and what it works in.

State and reply of a contribution are one row of the node's database, in which SQLite allows 1,000,000,000 bytes.
"""

from __future__ import annotations

from fedmc.algorithms.messages import Broadcast, Schema, length
from fedmc.algorithms.protocol import Sizes
from fedmc.algorithms.schema import schema_of
from fedmc.data.partition import Shard
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.wire import Request
from fedmc.problem import subproblem

NUMBER = 8  # bytes
MAX_REPLY = 400_000_000  # bytes
MAX_STORED = 900_000_000  # bytes of state and reply
MAX_WORK = 2**32  # bytes of the matrices of all users, where a penalty needs them at once


def check_sizes(shard: Shard, request: Request) -> None:
    """Refuse a small request for a huge reply, or for a state that cannot be stored with its reply."""
    broadcast, settings = request.broadcast, request.broadcast.settings
    schema = schema_of(broadcast, len(broadcast.V))
    reply = NUMBER * length(schema)
    cure = "lower the rank, or choose an algorithm with smaller messages"
    if reply > MAX_REPLY:
        raise RefusedError("wrong-settings", f"the reply would have {reply} bytes, at most {MAX_REPLY}: {cure}")
    if request.leaving:  # nothing is computed
        return
    stored = reply + _state_bytes(len(shard.users), broadcast, schema)
    if broadcast.task != "moments" and stored > MAX_STORED:  # what is measured takes as much memory
        reason = f"state and reply would have {stored} bytes, at most {MAX_STORED}: {cure}"
        raise RefusedError("wrong-settings", reason)
    penalty, _ = settings.penalties(broadcast.clients)
    work = NUMBER * len(shard.users) * settings.width**2
    if work > MAX_WORK and subproblem.solvable(settings.make_loss(), penalty, settings.width) is None:
        cure = "lower the rank, or choose a separable penalty such as l2"
        raise RefusedError("wrong-settings", f"{penalty} would take {work} bytes here, at most {MAX_WORK}: {cure}")


def _state_bytes(users: int, broadcast: Broadcast, schema: Schema) -> int:
    """The most that a client's state takes: as if it had rated every item, which must not show.

    Beside what the algorithm counts it holds the users' factors, V, item numbers and, in whole steps, a contribution.
    """
    settings, items = broadcast.settings, len(broadcast.V)
    of_users, of_items = settings.make_algorithm().columns(settings, items)
    own = settings.make_algorithm().state_numbers(Sizes(1, users, items, items, settings.width))
    contribution = length({name: part for name, part in schema.items() if part.cumulative})
    return NUMBER * (users * of_users + own + items * (of_items + 1) + contribution)
