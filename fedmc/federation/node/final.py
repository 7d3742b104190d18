"""What a node answers under secure aggregation is final: each task of a round has one request in a run.

A second request for the same round and task, with another V, would measure the same data again. Most of all this binds
the five steps that ask who rated what: their replies are linear in what the server sends, so that further ones would
tell more. The members of a session are bound by the protocol itself (`privacy.secagg.member`).
"""

from __future__ import annotations

from fedmc.algorithms.messages import Broadcast
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Store
from fedmc.federation.wire import Request

ONCE = ("moments", "scale")  # asked for at the start of a run; what their round says means nothing


def bind(store: Store, request: Request) -> None:
    """Refuse another request for a round and task that was answered; note a new one, before it is answered."""
    broadcast, content = request.broadcast, request.common
    number, task = _place(broadcast)
    found = store.bound(request.run, number, task, content)
    if found != content:
        asked = f"{broadcast.task} {broadcast.round} of run {request.run}"
        raise RefusedError("not-hidden", f"{asked} was answered for another V or other settings")


def _place(broadcast: Broadcast) -> tuple[int, str]:
    return 0 if broadcast.task in ONCE else broadcast.round, broadcast.task


def check_known(counted: int, committed: int, pending: int) -> None:
    """Refuse a round that the server counted and this node has no state of."""
    if counted not in (committed, pending):
        cure = "restore the state folder from a backup, or ask for a new run"
        here = f"the server counted round {counted} of this node, but its own state is of round {committed}"
        raise RefusedError("lost-state", f"{here}: {cure}")
