"""The server's side of a federation: it asks nodes, checks what they send, and aggregates it.

A node that does not answer in time, or whose reply is refused, is left out of the round and may take part in the next.
It rolls back its pending state, because the next request names its last counted round. A round needs only a quorum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.federation.server.asking import Asking
from fedmc.federation.server.direct import ask_directly, finish
from fedmc.federation.server.measurements import Measurements
from fedmc.federation.server.members import Absent, Members, Transport
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.server.secagg_session import ask_securely
from fedmc.federation.server.signing import Signer
from fedmc.federation.server.witness import Witness
from fedmc.training.aggregation import aggregation_of
from fedmc.types import Array


class FederatedEngine:
    """The engine that `training.rounds` runs on, over nodes that may be late, lost, wrong or hostile."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        members: Members,
        signer: Signer,
        witness: Witness | None = None,
        item_features: Array | None = None,
        record: SecAggRecord | None = None,
    ) -> None:
        self.item_features = item_features
        self.asking = Asking(transport, run, members, signer, witness, record)
        self._before: tuple[dict[int, int], dict[int, float]] = {}, {}

    @property
    def clients(self) -> int:
        return self.asking.members.clients

    @property
    def items(self) -> int:
        return self.asking.members.items

    @property
    def simulated(self) -> bool:
        return False

    @property
    def joined(self) -> Set[int]:
        return self.asking.counted.keys()

    @property
    def counted(self) -> dict[int, int]:
        """Each node's last round that is in the server's sum."""
        return self.asking.counted

    @property
    def factors(self) -> dict[int, float]:
        """The clipping factor of each node's last counted update."""
        return self.asking.factors

    @property
    def absent(self) -> list[Absent]:
        return self.asking.absent

    def visible(self, names: Sequence[str]) -> list[str]:
        """The organisations that accept that secure sums show their own part."""
        return [names[client] for client in sorted(self.asking.record.visible)]

    @property
    def measured(self) -> Array:
        """The running totals of measurements, under secure aggregation."""
        return self.asking.measurements.totals

    def restore(self, counted: Mapping[int, int], factors: Mapping[int, float], measured: Array | None = None) -> None:
        """Continue from a checkpoint's counted rounds, clipping factors and measurements."""
        self.asking.counted, self.asking.factors = dict(counted), dict(factors)
        self.asking.measurements = Measurements(measured)

    def measures_ride(self, settings: Settings) -> bool:
        masked = aggregation_of(settings.privacy).masked
        return masked and "measure" in settings.privacy.tasks  # mode: a session costs more than what rides in it

    def measured_in(self, settings: Settings) -> Sequence[Sequence[int]]:
        everybody = range(self.clients)
        if not self.measures_ride(settings):
            return [everybody]
        groups = aggregation_of(settings.privacy).groups(self.clients, settings.active)
        joined = [[client for client in group if client in self.joined] for group in groups]
        return [group for group in joined if group]

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum over the nodes that answered; its `clients` are these nodes."""
        asked, before = sorted(clients), (dict(self.counted), dict(self.factors))
        masked = aggregation_of(broadcast.settings.privacy).masked
        ask = ask_securely if masked else ask_directly  # mode: masked replies need a session of several exchanges
        self.asking.received = 0
        total = ask(self.asking, broadcast, asked)
        assert total.clients is not None
        if broadcast.task in STATEFUL_TASKS:
            self._before = before
            self.asking.counted |= dict.fromkeys(total.clients, broadcast.round)
        return replace(total, received=self.asking.received)

    def finish(self, broadcast: Broadcast, clients: Sequence[int]) -> tuple[int, ...]:
        """Send the final V to these nodes; returns those that confirmed it."""
        return finish(self.asking, broadcast, clients)

    def rollback(self) -> None:
        """Do not count the last round; the next requests tell the nodes to roll it back."""
        self.asking.counted, self.asking.factors = self._before
