"""What a node has revealed under secure aggregation is final: no second sum may tell what the first one hides.

Two sums of nearly the same numbers over different members show, subtracted, what the other member sent. So a node binds
durably, before it reveals anything:

    (run, round, task)      to the request (V, settings, members) and to the survivors of the sum. The same request is
                            answered again over the same survivors; any other one is refused
    a round of a run        to being counted: a later round that leaves it out is refused, since its numbers would be
                            those of the revealed round again
    the reply itself        to the survivors, in any run
    the counts of ratings   to the survivors, in any run with the same ratings: they never change
    who rated or saw what   likewise: the reply is linear in the directions, so nearly the same ones would tell it again

The last two are known by what they are computed from alone: new features of users, say, do not free them.

Measurements hold counts of ratings as well: they are revealed among all members or not at all. A reply is known by what
it was computed from (the ratings, this request, and the run's earlier ones), not by its numbers: whether a node refuses
must not depend on anybody's ratings. A new run at other V is not bound by any of this. An organisation's policy limits
how many runs it takes part in.
"""

from __future__ import annotations

import hashlib

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast
from fedmc.data.partition import Shard
from fedmc.errors import DataError
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Final, Store
from fedmc.federation.wire import Request
from fedmc.privacy.secagg.serial import digest

ONCE = ("moments", "scale")  # asked for at the start of a run; what their round says means nothing
COUNTS = ("moments", "pattern")  # their replies hold numbers of ratings, which are the same in any run


def check_final(store: Store, request: Request) -> None:
    """Refuse a session that differs from one of the same run, round and task in which this node revealed a sum."""
    broadcast, run = request.broadcast, request.run
    found = store.final(run, *_place(broadcast))
    if found is not None and found.request != _content(request):
        asked = f"{broadcast.task} {broadcast.round} of run {run}"
        raise RefusedError("not-hidden", f"{asked} was revealed for another V, other settings or other members")
    last = store.last_final(run, STATEFUL_TASKS)
    if found is None and broadcast.task in STATEFUL_TASKS and request.counted < last:
        cure = "the server must count it, or ask for it again as before; else wait for a new run"
        raise RefusedError("not-hidden", f"round {last} was revealed, the server counted {request.counted}: {cure}")


class OnceAmong:
    """Keeps one reply out of sums over two different sets of survivors: their difference could reveal the reply."""

    def __init__(self, store: Store, request: Request, ratings: str, shard: Shard) -> None:
        self.store, self.run, self.place = store, request.run, _place(request.broadcast)
        self.content = _content(request)
        self.everybody = everybody(request)
        earlier = _earlier(store, request.run, self.place[0])
        self.names = [digest("reply", ratings, earlier, _asked(self.content)).hex()]
        if request.broadcast.task in COUNTS:
            tables = {_origin(matrix) for matrix in (shard.by_user, shard.incidence)}
            self.names += [f"counts of {known}" for known in (ratings, *sorted(tables))]

    def before_confirm(self, survivors: tuple[int, ...]) -> None:
        if self.everybody is not None and survivors != self.everybody:
            raise DataError(f"a measurement is revealed among all {len(self.everybody)} members, not {survivors}")
        found = self.store.final(self.run, *self.place)
        among = [self.store.revealed(name) for name in self.names] + ([] if found is None else [found.survivors])
        for before in among:
            if before is not None and before != survivors:
                raise DataError(
                    f"the same reply was in a sum over {before}: a second sum over {survivors} could reveal it"
                )

    def before_reveal(self, survivors: tuple[int, ...]) -> None:
        number, task = self.place
        self.store.reveal(self.names, Final(self.run, number, task, self.content, survivors))


def _origin(matrix: sparse.csr_array) -> str:
    """A hash of who rated what."""
    found = hashlib.sha256(digest(list(matrix.shape)))
    for part in (matrix.indptr, matrix.indices):  # not by `digest`, which would copy them
        found.update(digest(part.dtype.str, part.size))
        found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


def _earlier(store: Store, run: str, round: int) -> list[str]:
    """What was asked for in the run's rounds before this one whose sums were revealed, in order."""
    query = "SELECT request FROM final WHERE run = ? AND task IN (?, ?) AND round < ? ORDER BY round"
    with store.reading() as database:
        return [_asked(content) for (content,) in database.execute(query, (run, *STATEFUL_TASKS, round))]


def everybody(request: Request) -> tuple[int, ...] | None:
    """All members, if the sum may be revealed only among all of them."""
    return tuple(range(request.broadcast.clients)) if request.broadcast.task == "measure" else None


def _place(broadcast: Broadcast) -> tuple[int, str]:
    return 0 if broadcast.task in ONCE else broadcast.round, broadcast.task


def _content(request: Request) -> str:
    """Two hashes: of what a reply is computed from, whatever the run's name, and of the members it is hidden among.

    The shift of the ratings in `moments` is left out: their sums at one shift determine those at any other.
    """
    broadcast, invitation = request.broadcast, request.invitation
    assert invitation is not None
    asked = digest(
        list(_place(broadcast)), request.catalogue, broadcast.clients, broadcast.full,
        broadcast.settings.to_dict(), None if broadcast.task == "moments" else list(broadcast.scaling),
        broadcast.V, dict(broadcast.shared.arrays),
    )  # fmt: skip
    return f"{asked.hex()} {digest(list(invitation.cohort)).hex()}"


def _asked(content: str) -> str:
    return content.partition(" ")[0]
