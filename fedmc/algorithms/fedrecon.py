"""Federated reconstruction (FedRecon, Singhal et al. 2021) on the objective of iALS: users begin anew in each round.

A round, with N = `settings.inner_steps`:

    client   u_i <- N gradient steps from 0 at the server's V, for each of its users
             W   <- N gradient steps from V on the objective of its users, and its share of the items' penalty
             send (W - V) times its number of events, and that number
    server   V <- V + mean of W - V, weighted by events

Each row has its own step, 1 / L with a bound L of the curvature in this row, so no learning rate is to be chosen. Users
are fitted exactly for measurements and for the model, as in iALS. A client's state holds its last U, which is not used
again: that there is one tells that the client was counted.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.algorithms.descent import factors_part, largest_eigenvalue
from fedmc.algorithms.event_measures import popularity_of
from fedmc.algorithms.fcf import EventBaseline, event_slopes
from fedmc.algorithms.ials import IALS
from fedmc.algorithms.leakage import ChangeLeakage, Leakage
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.data.partition import Shard
from fedmc.kernels import weighted
from fedmc.types import Array


class FedRecon(EventBaseline):
    """FedRecon; its numbers are those of iALS."""

    name = "fedrecon"
    label = "FedRecon"
    unused_settings = IALS.unused_settings - {"inner_steps"}
    leakage: Leakage = ChangeLeakage("change")
    remedy = "raise lambda, the second number of fedrecon:ALPHA0,LAMBDA"

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        V, N = broadcast.V, broadcast.settings.inner_steps
        ridge = self.ridges(np.diff(shard.by_user.indptr), len(V))
        U = self.steps(shard.by_user, np.zeros((len(shard.users), V.shape[1]), V.dtype), V, ridge, N)
        W = self.steps(shard.by_item, V, U, self.own_ridges(shard, state, broadcast), N)
        weight = shard.by_user.nnz
        sums = Sums.of(change=weight * (W - V), weight=weight, **self.counts_of(shard, state)._asdict())
        return LocalState(U), sums

    def steps(self, events: sparse.csr_array, X: Array, F: Array, ridge: Array, number: int) -> Array:
        """Gradient steps on the rows of X, given those of F."""
        gram = weighted.gram_of(F)
        sizes = sparse.csr_array((np.maximum(events.data, 0), events.indices, events.indptr), shape=events.shape)
        curvature = self.alpha0 * largest_eigenvalue(F) + sizes @ np.square(F, dtype=np.float64).sum(axis=1) + ridge
        step, ridge = (np.asarray(numbers, X.dtype)[:, None] for numbers in (1 / curvature, ridge))
        common = np.asarray(self.alpha0 * gram, X.dtype)
        for _ in range(number):
            X = X - step * (event_slopes(events, X, F) + weighted.times(X, common) + ridge * X)
        return X

    def own_ridges(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        """A client's share of the weights of the items' penalty: lambda_j, divided as n_j + alpha0 users is.

        The server's counts include this client's, unless it is new.
        """
        counts, users = popularity_of(broadcast)
        own = np.diff(shard.by_item.indptr) + self.alpha0 * len(shard.users)
        others = np.maximum(counts, 0) + self.alpha0 * max(users, 0)
        whole = np.maximum(others + own if state is None else others, own)
        return np.asarray(self.weight * own * whole ** (self.exponent - 1))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        V = broadcast.V + total["change"] / max(total.number("weight"), 1.0)
        return self.counted(server, total)._replace(V=V)

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        own = {"change": factors_part(broadcast, items), "weight": Part(nonnegative=True)}
        return own | super().schema(broadcast, items)
