"""The server's side of a federation: it asks nodes, checks what they send, and aggregates it.

A node that does not answer in time, or sends what cannot be right, is left out of the round and welcome in the next;
its state stays as it was, because the next request says what was counted. A round goes on with a quorum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.federation.server.asking import Asking
from fedmc.federation.server.direct import ask_directly, finish
from fedmc.federation.server.members import Absent, Members, Transport
from fedmc.federation.server.secagg_session import ask_securely
from fedmc.training.aggregation import aggregation_of


class FederatedEngine:
    """What `training.rounds` needs of a transport, over nodes that may be late, lost, wrong or hostile."""

    def __init__(self, transport: Transport, run: str, members: Members) -> None:
        self.asking = Asking(transport, run, members)
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
        """How much of that round's update counted, where updates are clipped."""
        return self.asking.factors

    @property
    def absent(self) -> list[Absent]:
        return self.asking.absent

    def restore(self, counted: Mapping[int, int], factors: Mapping[int, float]) -> None:
        """Continue where a checkpoint says the nodes stand."""
        self.asking.counted, self.asking.factors = dict(counted), dict(factors)

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum over the nodes that answered, and who they are."""
        asked, before = sorted(clients), (dict(self.counted), dict(self.factors))
        masked = aggregation_of(broadcast.settings.privacy).masked
        ask = ask_securely if masked else ask_directly  # mode: masked replies take a session of several exchanges
        self.asking.received = 0
        total = ask(self.asking, broadcast, asked)
        assert total.clients is not None
        if broadcast.task in STATEFUL_TASKS:
            self._before = before
            self.asking.counted |= dict.fromkeys(total.clients, broadcast.round)
        return replace(total, received=self.asking.received)

    def finish(self, broadcast: Broadcast, clients: Sequence[int]) -> tuple[int, ...]:
        """Give these nodes the last V; those that took it."""
        return finish(self.asking, broadcast, clients)

    def rollback(self) -> None:
        """The last round cannot be counted: the nodes will hear so."""
        self.asking.counted, self.asking.factors = self._before
