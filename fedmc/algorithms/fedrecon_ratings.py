"""Federated reconstruction (FedRecon, Singhal et al. 2021) on ratings: users begin anew in each round.

As federated averaging (`fedavg`), except that a client first sets U back to the values that it started with, and takes
its N steps from there: it needs no state. That there is one tells that the client has taken part. The paper
also splits a client's ratings into some for U and others for the item factors; here all serve both. `fedrecon` is the
same method for events.
"""

from __future__ import annotations

from fedmc.algorithms.fedavg import FedAvg
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard


class FedReconRatings(FedAvg):
    """Reconstruct U from its start by N steps, then run the W steps and the mean of federated averaging."""

    name = "fedrecon-ratings"
    label = "FedRecon"

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        return super().client_update(shard, None, broadcast)
