"""iALS by blocks of coordinates, as in iALS++ (Rendle et al. 2021), for large ranks where all clients take part.

The sums of `ials` have rank^2 / 2 numbers for each item. Here a round changes only a block B of the items' coordinates,
and the blocks take turns:

    client   u_i <- as for `ials`
             send S       [sum c u_B u_B', sum c (1 - u'v) u_B, number of events] of each item
                  users   sum u u' over its users, and their number
    server   v_B <- v_B + (alpha0 U_B'U_B + sum c u_B u_B' + lambda_j)^-1 (sum c (1 - u'v) u_B
                                                                           - alpha0 U_B'U v - lambda_j v_B)

This is the minimum over the block, so the objective of `ials` never rises. The gradient is that at the current V, so
every client must take part in every round: a sum of another round would be a gradient at another V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmc.algorithms.curvature import parted
from fedmc.algorithms.event_sums import WEIGHTS, LazySums, line_length, shared_counts, user_change, user_sums
from fedmc.algorithms.ials import EXPONENT, IALS, SIZES
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Rows, Schema, Shared, Sums
from fedmc.algorithms.protocol import Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, server_at
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.data.partition import Shard, together
from fedmc.errors import require
from fedmc.kernels import weighted
from fedmc.types import MIN_POSITIVE, Array, whole

BLOCK = 32  # coordinates


class BlockIALS(IALS):
    """iALS by blocks of coordinates; `block` is their size."""

    name = "ials-blocks"
    label = "iALS by blocks"
    cumulative = False

    def __init__(
        self,
        alpha0: float | None = None,
        weight: float | None = None,
        exponent: float = EXPONENT,
        block: float = BLOCK,
    ) -> None:
        super().__init__(alpha0, weight, exponent)
        self.block = whole("the block of ials-blocks", int(block), 1, 256)

    def __str__(self) -> str:
        return super().__str__() if self.auto else f"{super().__str__()},{self.block}"

    def with_weights(self, alpha0: float, weight: float) -> BlockIALS:
        return type(self)(alpha0, weight, self.exponent, self.block)

    def check_rank(self, settings: Settings) -> None:
        pass  # any

    def of_round(self, broadcast: Broadcast) -> tuple[int, int]:
        """The coordinates of a round: the first, and one after the last."""
        rank = broadcast.settings.rank
        blocks = -(-rank // self.block)
        begin = (max(broadcast.round, 1) - 1) % blocks * self.block
        return begin, min(begin + self.block, rank)

    # --- the client

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        every = together(shards)
        U = self.new_users(every.by_user, broadcast)
        parts = parted(U, shards)
        users = [user_change(now, None) for now in parts]
        one = len(shards) == 1
        sums = Sums.of(
            S=BlockSums(every, U, broadcast.V, self.of_round(broadcast)),
            users=users[0][None] if one else Rows(np.zeros(len(users), np.int64), np.array(users), 1),
            joined=sum(state is None for state in states),
        )
        apart = sums["joined"].nbytes * (len(shards) - 1) - (0 if one else 8 * len(shards))
        return [LocalState(now) for now in parts], replace(sums, sent=sums.sent + apart)

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        return {}

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        clients = broadcast.clients
        require(
            len(first) == clients,
            f"algorithm={self.name!r} needs all {clients} clients in every round, got {len(first)}: set "
            f"active={clients} (--active {clients}), or algorithm='ials' with a rank of at most {IALS.max_rank}",
        )
        begun = super().start(ask, broadcast, first)
        return begun._replace(server=server_at(begun.broadcast.V, np.zeros(len(broadcast.V) + 1)))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        require(participants == broadcast.clients, f"{participants} of {broadcast.clients} clients took part")
        rank, (begin, end), V = broadcast.settings.rank, self.of_round(broadcast), broadcast.V.astype(np.float64)
        users, S, own = user_sums(total["users"], rank), total["S"], self.at(broadcast)
        ridge = np.maximum(own.ridges(np.maximum(S[:, -1], 0), max(users.number, 0)), MIN_POSITIVE)
        block, size = slice(begin, end), end - begin
        pull = weighted.times(V, own.alpha0 * users.gram[:, block]) + ridge[:, None] * V[:, block]
        corner = size * (size + 1) // 2
        lines = np.concatenate([S[:, :corner], S[:, corner : corner + size] - pull, S[:, -1:]], axis=1)
        V[:, block] += weighted.solve_event_sums(lines, own.alpha0 * users.gram[block, block], ridge)
        kept = np.append(S[:, -1], users.number)
        return ServerState(kept, V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        assert server.S is not None
        return shared_counts(server.S[:-1], float(server.S[-1]), broadcast.shared.arrays.get(WEIGHTS))

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        if broadcast.task == SIZES:
            return super().schema(broadcast, items)
        rank, (begin, end) = broadcast.settings.rank, self.of_round(broadcast)
        return {
            "S": Part((items, line_length(end - begin)), SUM_BITS, sparse=True),
            "users": Part((1, rank * (rank + 1) // 2 + 1), SUM_BITS),
            "joined": Part(),
        }


class BlockSums(LazySums):
    """A client's sums for a block of coordinates."""

    def __init__(self, shard: Shard, U: Array, V: Array, block: tuple[int, int]) -> None:
        super().__init__(shard, len(V), block[1] - block[0], U.dtype)
        self._factors = U, V, block

    def add(self, sums: Array, targets: Array) -> None:
        weighted.add_block_sums(sums, targets, self.rows, self.events, *self._factors)
