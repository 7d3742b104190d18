"""Federated collaborative filtering (FCF, Ammad-ud-din et al. 2019) on the objective of iALS: the server descends.

A round:

    client   u_i <- its minimiser given V, as in iALS, for each of its users
             send sum c (u'v_j - 1) u of each item it has events with, U'U, and the number of its users
    server   g_j <- 2 ( sum c (u'v_j - 1) u + alpha0 U'U v_j + share lambda_j v_j ) / number of users who took part
             V   <- a step of Adam along -g

U'U stands for the gradients of all pairs without events, which the paper sends one by one: the sums are the same. If
all clients take part, g is the gradient of the pooled objective, given the best U, over the number of users. `share` is
the share of the users who took part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.event_measures import COUNTS, USERS
from fedmc.algorithms.event_sums import BLOCK
from fedmc.algorithms.ials import ALPHA0, EXPONENT, IALS, SPREAD, WEIGHT
from fedmc.algorithms.leakage import GradientLeakage, Leakage, Observation, Pulls
from fedmc.algorithms.limits import MAX_RANK
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Rows, Schema, Shared, Sparse, Sums
from fedmc.algorithms.protocol import Start
from fedmc.algorithms.start import Ask, server_at
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.data.partition import Shard
from fedmc.kernels import weighted
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number

RATE = 0.05  # the length of a step, for each factor
DECAY = 0.9, 0.999  # of Adam's means of gradients and of their squares (Kingma and Ba 2015)
SMALL = 1e-8  # added to the root of the mean square


class Counts(NamedTuple):
    """What a client adds to the server's counts, once: events of each item, users, and itself."""

    counts: Sparse
    users: int
    joined: int


class EventBaseline(IALS):
    """A baseline on the objective of iALS. Its server knows V and the numbers of events and users, but no sums."""

    cumulative = False
    max_rank = MAX_RANK
    columns_kept = 0  # of the server's memory, beside counts: this many for each factor

    def __init__(self, alpha0: float = ALPHA0, weight: float = WEIGHT, exponent: float = EXPONENT) -> None:
        super().__init__(alpha0, weight, exponent)

    def can_batch(self, broadcast: Broadcast) -> bool:
        return False

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        return {}

    def counts_of(self, shard: Shard, state: State | None) -> Counts:
        """A client's counts at its first update, nothing later."""
        items = shard.by_user.shape[1]
        if state is not None:
            return Counts(Rows(np.empty(0, np.int32), np.empty(0, np.int32), items), 0, 0)
        return Counts(Rows(shard.rated, np.diff(shard.by_rated.indptr), items), len(shard.users), 1)

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        rank = broadcast.settings.rank
        V = broadcast.V * np.asarray(SPREAD / (0.3 * np.sqrt(rank)), broadcast.V.dtype)
        server = server_at(V, np.zeros((len(V) + 1, 1 + self.columns_kept * rank)))
        return Start(broadcast._replace(V=V, shared=self.shared(server, broadcast)), server)

    def counted(self, server: ServerState, total: Sums) -> ServerState:
        """The server's state with the counts of newcomers: events in its first column, users below them."""
        assert server.S is not None
        S = server.S.copy()
        S[:-1, 0] += total["counts"]
        S[-1, 0] += total.number("users")
        return ServerState(S, server.V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        assert server.S is not None
        return Shared({COUNTS: server.S[:-1, 0].copy(), USERS: server.S[-1, :1].copy()})

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        counts = Part((items,), bits=0, sparse=True, nonnegative=True)
        return {"counts": counts, "users": Part(bits=0, nonnegative=True), "joined": Part()}


class FCFLeakage(GradientLeakage):
    """As for FedMGS: the message is a gradient, without the part of pairs that have no event."""

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        return [Pulls(-one.parts["gradient"], one.broadcast.V) for one in seen]


class FCF(EventBaseline):
    """FCF; `rate` is the server's learning rate, the other numbers are those of iALS."""

    name = "fcf"
    label = "FCF"
    columns_kept = 2  # Adam's means
    leakage: Leakage = FCFLeakage()
    remedy = "lower the learning rate, the last number of fcf:ALPHA0,LAMBDA,NU,RATE"

    def __init__(
        self, alpha0: float = ALPHA0, weight: float = WEIGHT, exponent: float = EXPONENT, rate: float = RATE
    ) -> None:
        super().__init__(alpha0, weight, exponent)
        self.rate = number("the learning rate of fcf", rate, MIN_POSITIVE, MAX_NUMBER)

    def __str__(self) -> str:
        return f"{super().__str__()},{self.rate!r}"

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        U = self.new_users(shard.by_user, broadcast)
        slopes = event_slopes(shard.by_rated, broadcast.V[shard.rated], U)
        gradient, counts = Rows(shard.rated, slopes, len(broadcast.V)), self.counts_of(shard, state)
        sums = Sums.of(gradient=gradient, gram=weighted.gram_of(U), present=len(U), **counts._asdict())
        return LocalState(U), sums

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        after = self.counted(server, total)
        assert after.S is not None
        S, rank = after.S, broadcast.settings.rank
        slope = self.gradient(total, S, broadcast.V.astype(np.float64)) / max(total.number("present"), 1.0)
        S[-1, 1] += 1  # steps so far
        mean, square = S[:-1, 1 : rank + 1], S[:-1, rank + 1 :]
        for known, new, decay in ((mean, slope, DECAY[0]), (square, np.square(slope), DECAY[1])):
            known *= decay
            known += (1 - decay) * new
        unbiased = [known / (1 - decay ** S[-1, 1]) for known, decay in zip((mean, square), DECAY, strict=True)]
        return after._replace(V=broadcast.V - self.rate * unbiased[0] / (np.sqrt(unbiased[1]) + SMALL))

    def gradient(self, total: Sums, S: Array, V: Array) -> Array:
        """The gradient of the objective of the users who took part, and of their share of the items' penalty."""
        share = total.number("present") / max(float(S[-1, 0]), 1.0)
        ridge = self.ridges(np.maximum(S[:-1, 0], 0), max(float(S[-1, 0]), 0.0))
        return np.asarray(2 * (total["gradient"] + self.alpha0 * V @ total["gram"] + share * ridge[:, None] * V))

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        rank = broadcast.settings.rank
        gradient, gram = Part((items, rank), SUM_BITS, sparse=True), Part((rank, rank), SUM_BITS)
        own = {"gradient": gradient, "gram": gram, "present": Part(bits=0, nonnegative=True)}
        return own | super().schema(broadcast, items)


def event_slopes(events: sparse.csr_array, X: Array, F: Array) -> Array:
    """sum c (x'f - 1) f over the events of each row x of X with rows f of F: half a gradient of the loss of events."""
    rows, errors = np.repeat(np.arange(len(X)), np.diff(events.indptr)), np.empty(events.nnz, X.dtype)
    for start in range(0, events.nnz, BLOCK):
        some = slice(start, start + BLOCK)
        scores = np.einsum("kr,kr->k", X[rows[some]], F[events.indices[some]])
        errors[some] = np.maximum(events.data[some], 0) * (scores - 1)
    return np.asarray(sparse.csr_array((errors, events.indices, events.indptr), shape=events.shape) @ F)
