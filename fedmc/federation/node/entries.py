"""A node's entries of a run: the committed state, the pending one, and which of them the server's word makes committed.

Under secure aggregation certificates decide that instead (`secagg_member`).
"""

from __future__ import annotations

from fedmc.algorithms.messages import STATEFUL_TASKS
from fedmc.algorithms.state import State
from fedmc.federation.node.final import check_known
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Entry, Kind, Store
from fedmc.federation.wire import Request
from fedmc.training.aggregation import aggregation_of


class Entries:
    """Reads the entries of a node's store, and commits or rolls back."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def entry(self, request: Request, kind: Kind) -> Entry:
        return self.store.get(request.run, kind, request.broadcast.settings.make_algorithm())

    def is_stale(self, request: Request, pending: Entry) -> bool:
        """Whether a newer request has overtaken this one, such as a repetition that arrived late."""
        committed, broadcast = self.entry(request, "committed").round, request.broadcast
        late = broadcast.task in STATEFUL_TASKS and broadcast.round <= max(committed, pending.round - 1)
        return request.counted < committed or late

    def counted(self, request: Request, pending: Entry) -> State | None:
        """The state that the organisation's model begins from, at the end of a run. Nothing is stored."""
        if self.is_stale(request, pending):
            raise RefusedError("wrong-round", f"the run is said to end after round {request.counted} of this node")
        committed = self.entry(request, "committed")
        check_known(request.counted, committed.round, pending.round)
        return pending.state if pending.state is not None and request.counted == pending.round else committed.state

    def committed(self, request: Request, pending: Entry) -> Entry:
        """The committed entry, after committing or rolling back the pending one as the request's `counted` says."""
        stateful = request.broadcast.task in STATEFUL_TASKS
        if self.is_stale(request, pending):
            asked = f"the request is for round {request.broadcast.round} and says that {request.counted} was counted"
            here = f"here round {self.entry(request, 'committed').round} is committed, {pending.round} is pending"
            raise RefusedError("wrong-round", f"{asked}; {here}")
        committed = self.entry(request, "committed")
        check_known(request.counted, committed.round, pending.round)
        if stateful and request.counted >= request.broadcast.round:
            raise RefusedError("wrong-round", f"round {request.counted} is committed already")
        if pending.state is not None and request.counted == pending.round:
            aggregation = aggregation_of(request.broadcast.settings.privacy)
            counted = aggregation.commit(pending.state, committed.state, request.factor)
            self.store.promote(request.run, None if counted is pending.state else counted)
        elif pending.state is not None and stateful:
            self.store.drop(request.run)
        return self.entry(request, "committed")
