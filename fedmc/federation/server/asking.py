"""What direct replies and secure-aggregation sessions have in common: how the server asks nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast
from fedmc.errors import Diverged
from fedmc.federation.server.members import Absent, Members, Transport
from fedmc.federation.server.witness import Witness
from fedmc.federation.wire import NEVER, Invitation, Request, encode, to_bytes

log = logging.getLogger("fedmc.server")


class Asking:
    """A run's nodes, the last counted round of each, and the nodes that were left out."""

    def __init__(self, transport: Transport, run: str, members: Members, witness: Witness | None = None) -> None:
        self.transport, self.run, self.members, self.witness = transport, run, members, witness
        self.counted: dict[int, int] = {}
        self.factors: dict[int, float] = {}
        self.absent: list[Absent] = []
        self.received = 0  # bytes that nodes received for the last broadcast

    def request(self, client: int, broadcast: Broadcast, invitation: Invitation | None = None) -> Request:
        counted, factor = self.counted.get(client, NEVER), self.factors.get(client, 1.0)
        request = Request(self.run, client, broadcast, counted, self.members.catalogue)
        witness = self._witness_of(broadcast)
        seen = None if witness is None else witness.seen(self.members.name(client))
        return request._replace(factor=factor, invitation=invitation, witnessed=seen)

    def witness_releases(self, clients: Iterable[int], broadcast: Broadcast) -> None:
        """Remember that these nodes have answered with a noised release, before anything else is done with it."""
        witness = self._witness_of(broadcast)
        if witness is not None:
            names = {client: self.members.name(client) for client in clients}
            witness.record({name: self.request(client, broadcast).release for client, name in names.items()})

    def _witness_of(self, broadcast: Broadcast) -> Witness | None:
        """The witness, if the answer to this broadcast is a noised release."""
        if self.witness is None or broadcast.task not in STATEFUL_TASKS:
            return None
        multiplier = broadcast.settings.make_algorithm().noise_multiplier(broadcast)
        return None if multiplier is None else self.witness

    def encoded(self, client: int, broadcast: Broadcast, invitation: Invitation | None = None) -> bytes:
        return to_bytes(*encode(self.request(client, broadcast, invitation)))

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        self.received += sum(len(content) for content in contents.values())
        return self.transport.exchange(contents, max_bytes, needed)

    def leave_out(self, client: int, broadcast: Broadcast, why: str) -> None:
        self.absent.append(Absent(client, broadcast.round, why))
        name = self.members.name(client)
        log.warning("round %s, %s: %s is left out: %s", broadcast.round, broadcast.task, name, why)

    def reasons(self, last: int) -> str:
        """Why each of the nodes that were left out last was."""
        latest = {one.client: one.why for one in self.absent[len(self.absent) - last :]}
        return "; ".join(f"{self.members.name(client)}: {why}" for client, why in latest.items())

    def stop_if_diverged(self, saying_so: int, asked: list[int], broadcast: Broadcast) -> None:
        """Raise Diverged if at least half of the nodes report it; fewer nodes are only left out."""
        if 2 * saying_so >= len(asked) and saying_so:
            cause = f"{saying_so} of {len(asked)} nodes have numbers that are not finite or too large"
            raise Diverged(broadcast.round, cause, "raise the penalties")
