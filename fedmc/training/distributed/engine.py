"""The engine of the simulation over workers, which hold the clients' shards and states, and add up replies.

The driver sends a broadcast once, and gets partial sums. It adds them by the tree that every engine uses
(`training.tree`), so the bits are those of the local engine, with any number of workers. A worker that is lost begins
anew from its checkpoints, on another machine if need be, and is asked again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import fedmc
from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.state import State
from fedmc.data import shared
from fedmc.data.partition import Shard
from fedmc.training.aggregation import aggregation_of
from fedmc.training.distributed.hosts import Hosts, LostError, Resources, WorkerError
from fedmc.training.distributed.messages import Answer, Question, looked_at, pack, pack_broadcast, unpack
from fedmc.training.distributed.worker import Work
from fedmc.training.members import Everybody, Members
from fedmc.training.tree import Piece, Share
from fedmc.types import Array

PER_MACHINE = 8  # workers, at most: each has the broadcast and a partial sum of its own
TRIES = 5  # of a call whose worker is lost
FETCHED = 64  # states that are fetched together


class Held(NamedTuple):
    """A worker, and the clients that it holds."""

    worker: Any
    clients: range


class Call(NamedTuple):
    worker: Any
    method: str
    arguments: tuple[Any, ...]


class DistributedEngine(Everybody):
    """Clients in workers. `states` are fetched when they are read."""

    def __init__(self, hosts: Hosts, shards: Sequence[Shard], item_features: Array | None = None) -> None:
        self._hosts, self.shards, self.item_features = hosts, shards, item_features
        self._objectives = Members(shards, {})
        self.workers: list[Held] = []
        self.joined: set[int] = set()
        self._known: set[int] = set()  # clients with a state
        self._before: dict[int, bool] = {}  # whether the clients of the last round had one
        self._number = 0

    @contextmanager
    def running(
        self, found: Resources, objectives: Mapping[int, Objective], workers: int | None = None
    ) -> Iterator[DistributedEngine]:
        """The engine with its workers, which are stopped afterwards."""
        self._objectives = Members(self.shards, {}, objectives)
        number = workers or sum(min(cpus, PER_MACHINE) for cpus in found.cpus)
        ranges = divided(self.shards, max(1, min(number, len(self.shards))))
        threads = max(1, sum(found.cpus) // len(ranges))
        try:
            for k, clients in enumerate(ranges):
                place = found.folder / f"worker-{k}.shards"
                shared.write(place, {client: self.shards[client] for client in clients})
                own = {client: one for client, one in objectives.items() if client in clients}
                work = Work(place, found.folder / f"worker-{k}", own, threads, self.items, fedmc.__version__)
                self.workers.append(Held(self._hosts.start(pack(work)), clients))
            yield self
        finally:
            for held in self.workers:
                self._hosts.stop(held.worker)

    @property
    def states(self) -> Sequence[State | None]:
        return States(self)

    def told(self, client: int, broadcast: Broadcast) -> Broadcast:
        return self._objectives.told(client, broadcast)

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of the clients' replies. All new states are kept or, if one client fails, none."""
        asked = sorted(clients)
        self._number += 1
        aggregation, message = aggregation_of(broadcast.settings.privacy), self._hosts.put(pack_broadcast(broadcast))
        questions = list(self._questions(asked))
        changed = False

        def pieces() -> Iterator[Piece]:
            nonlocal changed
            for packed in self._results([Call(held.worker, "reply", (one, message)) for held, one in questions]):
                answer: Answer = looked_at(packed)
                changed |= answer.changed
                yield from answer.pieces

        total, factors = aggregation.combine(pieces(), broadcast, self.items)
        if changed:
            commits = [Call(held.worker, "commit", (one, message, factors)) for held, one in questions]
            self._kept(broadcast.task, asked, {client for found in self._results(commits) for client in found})
        return replace(total, received=len(clients) * broadcast.nbytes)

    def rollback(self) -> None:
        """Restore the states that the clients of the last round had before it."""
        self._number += 1
        list(self._results([Call(held.worker, "rollback", (self._number,)) for held in self.workers]))
        new = {client for client, known in self._before.items() if not known}
        self.joined -= new
        self._known -= new

    def fetched(self, clients: range) -> list[State | None]:
        """The states of clients of one worker."""
        held = next(one for one in self.workers if clients.start in one.clients)
        (packed,) = self._results([Call(held.worker, "states", (list(clients),))])
        found: list[State | None] = unpack(packed)
        return found

    def _questions(self, asked: list[int]) -> Iterator[tuple[Held, Question]]:
        everybody = Share.all(len(asked))
        for held in self.workers:
            first, end = (bisect_left(asked, bound) for bound in (held.clients.start, held.clients.stop))
            if end > first:
                yield held, Question(self._number, asked[first:end], everybody.after(first))

    def _kept(self, task: str, clients: list[int], without: set[int]) -> None:
        if task in STATEFUL_TASKS:
            self._before = {}
            self.joined |= set(clients)
        if task in STATEFUL_TASKS or task == "users":
            self._before |= {client: client in self._known for client in clients}
        self._known = (self._known | set(clients)) - without

    def _results(self, calls: Sequence[Call]) -> Iterator[Any]:
        """The results of calls that run side by side, in their order."""
        references = [self._begun(call) for call in calls]
        for k, call in enumerate(calls):
            yield self._result(references[k], call)
            references[k] = None  # the store may forget it

    def _begun(self, call: Call) -> Any:
        return self._hosts.call(call.worker, call.method, *call.arguments)

    def _result(self, reference: Any, call: Call) -> Any:
        """A result; a call whose worker or result is lost is made again."""
        why = ""
        for _ in range(TRIES):
            try:
                return self._hosts.result(reference)
            except LostError as error:
                why, reference = str(error), self._begun(call)
        cure = "a process that is killed often lacks memory: use fewer workers, or larger machines"
        raise WorkerError(f"a worker was lost {TRIES} times ({why}): {cure}")


class States(Sequence[State | None]):
    """All clients' states, some of which are here at a time."""

    def __init__(self, engine: DistributedEngine) -> None:
        self._engine = engine

    def __len__(self) -> int:
        return self._engine.clients

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            raise TypeError("states are read one at a time")
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self._engine.fetched(range(client, client + 1))[0]

    def __iter__(self) -> Iterator[State | None]:
        for held in self._engine.workers:
            for start in range(held.clients.start, held.clients.stop, FETCHED):
                yield from self._engine.fetched(range(start, min(start + FETCHED, held.clients.stop)))


def divided(shards: Sequence[Shard], workers: int) -> list[range]:
    """The clients in consecutive parts with about equal numbers of ratings, at least one client each."""
    ends = np.cumsum([shard.by_user.nnz + len(shard.users) for shard in shards])
    bounds = [0]
    for k in range(1, workers):
        cut = int(np.searchsorted(ends, ends[-1] * k / workers)) + 1
        bounds.append(min(max(cut, bounds[-1] + 1), len(shards) - (workers - k)))
    return [range(first, end) for first, end in pairwise([*bounds, len(shards)])]
