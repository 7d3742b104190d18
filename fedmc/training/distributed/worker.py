"""A worker: some clients in a process of their own.

A call may be made twice, by a driver that heard no answer: the second has the effect and the answer of the first. A
worker that is started anew reads its checkpoints, and so continues with the bits of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fedmc
from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast
from fedmc.algorithms.objectives import Objective
from fedmc.data import shared
from fedmc.errors import require
from fedmc.kernels import threads
from fedmc.training.aggregation import aggregation_of
from fedmc.training.distributed.journal import Entry, Journal, apply
from fedmc.training.distributed.messages import Answer, Packed, Question, computed, pack, unpack
from fedmc.training.members import Members, Pending
from fedmc.training.sums import Aggregation
from fedmc.training.tree import Piece

KEPT = 1 << 30  # bytes of shards that stay mapped, about


class Work(NamedTuple):
    """What a worker needs to begin, or to begin anew."""

    shards: Path
    checkpoints: Path
    objectives: Mapping[int, Objective]
    threads: int
    items: int
    version: str


class Waiting(NamedTuple):
    """States that are computed, and not kept yet."""

    number: int
    task: str
    aggregation: Aggregation
    states: Pending


class Worker:
    """It opens its files at its first call, which can report what is wrong with them."""

    def __init__(self, packed: Packed) -> None:
        self._packed: Packed | None = packed

    def _open(self) -> None:
        if self._packed is None:
            return
        work: Work = unpack(self._packed)
        ours = f"the workers have fedmc {fedmc.__version__}, the driver {work.version}: install the same everywhere"
        require(work.version == fedmc.__version__, ours)
        self._work, self._journal = work, Journal(work.checkpoints)
        self._mapped = shared.read(work.shards)
        self._states: Pending = dict.fromkeys(self._mapped.shards)
        self._members = Members(self._mapped.shards, self._states, work.objectives)
        self._done = self._journal.replay(self._members)
        self._waiting: Waiting | None = None
        self._packed = None

    def reply(self, question: Question, broadcast: Packed) -> Packed:
        """The clients' replies, added up as far as they can be; their new states wait for `commit`."""
        self._open()
        return pack(self._reply(question, unpack(broadcast)))

    def _reply(self, question: Question, broadcast: Broadcast) -> Answer:
        aggregation, pending = aggregation_of(broadcast.settings.privacy), Pending()
        whole = question.share.whole(len(question.clients))
        with threads.limited(self._work.threads):
            replies = self._members.replies(broadcast, question.clients, question.share, aggregation, pending)
            pieces = aggregation.condense(self._released(replies), whole, broadcast, self._work.items)
            found = [computed(piece) for piece in pieces]
        self._waiting = Waiting(question.number, broadcast.task, aggregation, pending)
        changed = any(state is not self._states[client] for client, state in pending.items())
        return Answer(found, changed or broadcast.task in STATEFUL_TASKS)

    def _released(self, replies: Iterator[Piece]) -> Iterator[Piece]:
        """The replies; what was read of the shards for them leaves memory now and then."""
        read = 0
        for piece in replies:
            yield piece
            read += shared.nbytes(self._mapped.shards[piece.client])
            if read > KEPT:
                self._mapped.release()
                read = 0

    def commit(self, question: Question, broadcast: Packed, factors: Mapping[int, float]) -> list[int]:
        """Keep the states of this question's replies; returns the clients that have none then."""
        self._open()
        if question.number > self._done:
            if self._waiting is None or self._waiting.number != question.number:
                self._reply(question, unpack(broadcast))
            waiting = self._waiting
            assert waiting is not None
            for client in factors.keys() & waiting.states.keys():
                found = waiting.aggregation.commit(waiting.states[client], self._states[client], factors[client])
                waiting.states[client] = found
            self._keep(Entry(question.number, waiting.task, waiting.states))
        return [client for client in question.clients if self._states[client] is None]

    def rollback(self, number: int) -> None:
        """Restore the states before the last round."""
        self._open()
        if number > self._done:
            self._keep(Entry(number, None, {}))

    def states(self, clients: list[int]) -> Packed:
        self._open()
        return pack([self._states[client] for client in clients])

    def _keep(self, entry: Entry) -> None:
        self._journal.append(entry, self._states)
        apply(entry, self._members)
        self._done, self._waiting = entry.number, None
