"""The server's side of a federation: it asks nodes, checks what they send, and adds it up in order of their numbers.

A node that does not answer in time, or sends what cannot be right, is left out of the round and welcome in the next;
its state stays as it was, because the next request says what was counted. A round goes on with a quorum.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedmc.algorithms.messages import CHANGING, Broadcast, Sparse, Sums, add_up
from fedmc.algorithms.schema import largest, shapes
from fedmc.errors import DataError, Diverged, TooFewError
from fedmc.federation.wire import (
    NEVER,
    OK,
    STATUS,
    Invitation,
    Reply,
    Request,
    decode_reply,
    encode,
    from_bytes,
    to_bytes,
)
from fedmc.training import clipping
from fedmc.training.fixed_point import STEP_OF_NUMBERS, to_sums, to_words

log = logging.getLogger("fedmc.training.rounds")

NEVER_NEGATIVE = {"count", "squares", "items", "users", "loss", "nonzeros", "entries"} | {
    f"{part}_{what}" for part in ("train", "test", "validation") for what in ("count", "error")
}


class Transport(Protocol):
    def exchange(self, contents: dict[int, bytes], most_bytes: int, needed: int) -> dict[int, bytes]:
        """Ask these nodes, `needed` of which must answer; the answers that came in time and are not too large."""
        ...


class Absent(NamedTuple):
    """A node that did not count in a round, and why."""

    client: int
    round: int
    why: str


class FederatedEngine:
    """What `server.rounds` needs of a transport, over nodes that may be late, lost, wrong or hostile."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        clients: int,
        items: int,
        catalogue: str,
        quorum: int,
        counted: dict[int, int] | None = None,
        pinned: Mapping[int, Any] | None = None,
    ) -> None:
        self.transport, self.run, self.catalogue, self.quorum = transport, run, catalogue, quorum
        self._clients, self._items = clients, items
        self.counted: dict[int, int] = dict(counted or {})  # each node's last round that is in the server's sum
        self.factors: dict[int, float] = {}  # how much of that round's change counted, where changes are clipped
        self.pinned = pinned or {}  # the nodes' public identities, for secure aggregation
        self.absent: list[Absent] = []
        self._diverged = 0  # nodes that said so in this exchange
        self._before = self.counted, self.factors

    @property
    def clients(self) -> int:
        return self._clients

    @property
    def items(self) -> int:
        return self._items

    @property
    def simulated(self) -> bool:
        return False

    @property
    def joined(self) -> Set[int]:
        return self.counted.keys()

    def ask(self, cast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum over the nodes that answered, and who they are."""
        asked, before = sorted(clients), (dict(self.counted), dict(self.factors))
        total = self._ask_in_hiding(cast, asked) if cast.settings.hidden else self._ask(cast, asked)
        assert total.clients is not None
        if cast.task in CHANGING:
            self._before = before
            self.counted |= dict.fromkeys(total.clients, cast.round)
        return total

    def asking(self, client: int, cast: Broadcast, invitation: Invitation | None = None) -> Request:
        counted, factor = self.counted.get(client, NEVER), self.factors.get(client, 1.0)
        return Request(self.run, client, cast, counted, self.catalogue, factor=factor, invitation=invitation)

    def request(self, client: int, cast: Broadcast, invitation: Invitation | None = None) -> bytes:
        return to_bytes(*encode(self.asking(client, cast, invitation)))

    def _ask(self, cast: Broadcast, asked: list[int]) -> Sums:
        contents = {client: self.request(client, cast) for client in asked}
        needed = len(asked) if cast.task == "start" else min(self.quorum, len(asked))
        answers = self.transport.exchange(contents, largest(cast, self._items), needed)
        counted: dict[int, Sums] = {}
        self._diverged = 0
        for client in asked:
            sums = self._read(client, cast, answers.get(client))
            if sums is not None:
                counted[client] = sums
        self.stop_if_diverged(self._diverged, asked, cast)
        if len(counted) < needed:
            missing = self.reasons(len(asked) - len(counted))
            raise TooFewError(
                f"round {cast.round}: {len(counted)} of {len(asked)} nodes took part, {needed} must ({missing})"
            )
        clients = tuple(sorted(counted))
        total = self._clipped(counted, cast) if cast.settings.clip else add_up(counted[client] for client in clients)
        return Sums(total.parts, total.sent, clients)

    def _clipped(self, messages: dict[int, Sums], cast: Broadcast) -> Sums:
        """The sum of what counts of whole numbers."""
        sent = sum(message.sent for message in messages.values())
        if cast.task in CHANGING:
            self.factors |= clipping.factors({k: message["S"] for k, message in messages.items()}, cast.settings.clip)
            for client, message in messages.items():
                message.parts["S"] = clipping.counted(message["S"], self.factors[client])
        total = sum(
            to_words({name: message[name] for name in shapes(cast, self._items)}) for message in messages.values()
        )
        return to_sums(np.asarray(total), cast, self._items, sent)

    def _ask_in_hiding(self, cast: Broadcast, asked: list[int]) -> Sums:
        """By secure aggregation; a session in which too many were lost is begun anew, with new keys."""
        from fedmc.federation.server.secagg_session import SESSIONS, collect
        from fedmc.privacy.secagg.protocol import AbortedError

        why = ""
        for _ in range(SESSIONS):
            try:
                return collect(self, cast, asked)
            except AbortedError as error:
                why = str(error)
                log.warning("round %s, %s: %s", cast.round, cast.task, why)
        raise TooFewError(f"round {cast.round}: {why} ({self.reasons(len(asked))})")

    def reasons(self, last: int) -> str:
        return "; ".join(f"node {one.client}: {one.why}" for one in self.absent[len(self.absent) - last :])

    def finish(self, cast: Broadcast, clients: Sequence[int]) -> tuple[int, ...]:
        """Give these nodes the last V; those that took it."""
        last = cast._replace(task="finish")
        contents = {client: self.request(client, last) for client in clients}
        answers = self.transport.exchange(contents, largest(last, self._items), 0)
        return tuple(k for k in clients if self._read(k, last, answers.get(k)) is not None)

    def undo(self) -> None:
        """The last round cannot be counted: the nodes will hear so."""
        self.counted, self.factors = self._before

    def _read(self, client: int, cast: Broadcast, answer: bytes | None) -> Sums | None:
        """A node's sums, or None and a line in the log."""
        if answer is None:
            self.leave_out(client, cast, "no answer in time")
            return None
        try:
            reply = decode_reply(*from_bytes(answer))
            self._diverged += reply.status == "diverged"
            if reply.status != OK:
                self.leave_out(client, cast, STATUS.get(reply.status, "an unknown status"))
                return None
            check(reply, client, self.run, cast, self._items, client in self.counted)
        except Exception as error:  # whatever a stranger's bytes can bring about
            self.leave_out(client, cast, f"refused: {error}")
            return None
        return reply.sums

    def stop_if_diverged(self, saying_so: int, asked: list[int], cast: Broadcast) -> None:
        """One node that says so is left out; where half of them do, the numbers are to blame."""
        if 2 * saying_so >= len(asked) and saying_so:
            cause = f"{saying_so} of {len(asked)} nodes have numbers that are not finite or too large"
            raise Diverged(cast.round, cause, "raise the penalties")

    def leave_out(self, client: int, cast: Broadcast, why: str) -> None:
        self.absent.append(Absent(client, cast.round, why))
        log.warning("round %s, %s: node %s is left out: %s", cast.round, cast.task, client, why)


def check(reply: Reply, client: int, run: str, cast: Broadcast, items: int, known: bool) -> None:
    """Refuse an update that cannot be right: another's, another round's, of a wrong shape or type, not finite."""
    expected = (run, client, cast.round, cast.task)
    if (reply.run, reply.client, reply.round, reply.task) != expected:
        raise DataError(f"it says it is {(reply.run, reply.client, reply.round, reply.task)}, expected {expected}")
    assert reply.sums is not None
    wanted = shapes(cast, items)
    if reply.sums.parts.keys() != wanted.keys():
        raise DataError(f"it holds {sorted(reply.sums.parts)}, expected {sorted(wanted)}")
    for name, shape in wanted.items():
        part: Any = reply.sums.parts[name]
        values = part.values if isinstance(part, Sparse) else part
        if cast.settings.clip and (isinstance(part, Sparse) or part.dtype != np.int64):
            raise DataError(f"{name} must be whole numbers")
        if values.dtype.name not in ("float32", "float64", "int32", "int64") or not values.dtype.isnative:
            raise DataError(f"{name} is of type {values.dtype}")
        if isinstance(part, Sparse):
            _check_rows(name, part, shape)
        elif part.shape != shape:
            raise DataError(f"{name} has shape {part.shape}, expected {shape}")
        if not np.isfinite(values).all():
            raise DataError(f"{name} is not finite")
        if name in NEVER_NEGATIVE and len(np.atleast_1d(values)) and float(np.min(values)) < 0:
            raise DataError(f"{name} is negative")
    one = 1 << STEP_OF_NUMBERS if cast.settings.clip else 1
    if "joined" in wanted and reply.sums.number("joined") != (0 if known else one):
        raise DataError("it joins twice" if known else "it never joined")


def _check_rows(name: str, part: Sparse, shape: tuple[int, ...]) -> None:
    rows = part.rows
    if (part.height, *part.values.shape[1:]) != shape or rows.ndim != 1 or len(rows) != len(part.values):
        raise DataError(f"{name} has shape {(part.height, *part.values.shape[1:])}, expected {shape}")
    if rows.dtype.kind not in "iu" or (len(rows) and (rows[0] < 0 or rows[-1] >= shape[0])):
        raise DataError(f"{name} speaks of items that are not there")
    if (np.diff(rows.astype(np.int64)) <= 0).any():
        raise DataError(f"{name} names its items out of order, or twice")
