"""What direct replies and secure-aggregation sessions have in common: how the server asks nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast
from fedmc.errors import Diverged, printable
from fedmc.federation.logs import with_fields
from fedmc.federation.protocol import mismatch
from fedmc.federation.server.measurements import Measurements
from fedmc.federation.server.members import Absent, Members, Transport
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.server.signing import Signer
from fedmc.federation.server.witness import Witness
from fedmc.federation.statuses import WRONG_VERSION, explain
from fedmc.federation.wire import NEVER, Invitation, Reply, Request, encode, to_bytes

log = logging.getLogger("fedmc.server")

MAX_WHY = 1_000  # characters


class Asking:
    """A run's nodes, the last counted round of each, and the nodes that were left out."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        members: Members,
        signer: Signer,
        witness: Witness | None = None,
        record: SecAggRecord | None = None,
    ) -> None:
        self.transport, self.run, self.members = transport, run, members
        self.signer, self.witness, self.record = signer, witness, record or SecAggRecord()
        self.counted: dict[int, int] = {}
        self.factors: dict[int, float] = {}
        self.absent: list[Absent] = []
        self.measurements = Measurements()
        self.received = 0  # bytes that nodes received for the last broadcast
        self.leaving: tuple[int, ...] = ()  # whose part is taken out of the sum in this round

    def request(self, client: int, broadcast: Broadcast, invitation: Invitation | None = None) -> Request:
        counted, factor = self.counted.get(client, NEVER), self.factors.get(client, 1.0)
        catalogue, version = self.members.catalogue, self.members.served.version
        listed, leaving = self.members.listed, self.leaving
        request = Request(
            self.run, client, broadcast, counted, catalogue, version, factor, invitation, None, listed, leaving
        )
        witness = self._witness_of(broadcast)
        return request if witness is None else request._replace(witnessed=witness.seen(self.members.name(client)))

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
        """Send each node its message, signed and addressed to it, and return the answers."""
        members = self.members
        sealed = {k: self.signer.seal(content, members.name(k), members.served) for k, content in contents.items()}
        self.received += sum(len(content) for content in sealed.values())
        return self.transport.exchange(sealed, max_bytes, needed)

    def leave_out(self, client: int, broadcast: Broadcast, why: str) -> None:
        why = printable(why[:MAX_WHY])  # it may quote what the node sent
        self.absent.append(Absent(client, broadcast.round, why))
        name = self.members.name(client)
        fields = with_fields(round=broadcast.round, task=broadcast.task, organisation=name)
        log.warning("round %s, %s: %s is left out: %s", broadcast.round, broadcast.task, name, why, extra=fields)

    def explain(self, reply: Reply) -> str:
        """What a node's refusal means; with another protocol, both numbers."""
        if reply.status == WRONG_VERSION:
            return f"{reply.status}: {mismatch(reply.protocol, self.members.served)}"
        return explain(reply.status)

    def reasons(self, last: int) -> str:
        """Why each of the nodes that were left out last was."""
        latest = {one.client: one.why for one in self.absent[len(self.absent) - last :]}
        return "; ".join(f"{self.members.name(client)}: {why}" for client, why in latest.items())

    def stop_if_diverged(self, saying_so: int, asked: list[int], broadcast: Broadcast) -> None:
        """Raise Diverged if at least half of the nodes report it; fewer nodes are only left out."""
        if 2 * saying_so >= len(asked) and saying_so:
            cause = f"{saying_so} of {len(asked)} nodes have numbers that are not finite or too large"
            raise Diverged(broadcast.round, cause, "raise the penalties")
