"""Sums of clients' replies: what an aggregation is, and those that a federation does not mask.

    PlainSum     replies are arrays of floats, added in the order of a fixed tree (`tree`)
    ClippedSum   fixed-point integers; each update counts up to a multiple of the median update norm

Under fixed-point encoding a client keeps a cumulative part (its whole contribution so far) in whole steps of 2^-bits,
and sends the difference to what was counted before. So after any number of rounds, in any order, the server's sum
equals the sum of the rounded contributions. A reply has an entry for every item: its length tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, Protocol, cast

import numpy as np

from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import NUMBER_BITS, STATEFUL_TASKS, Broadcast, Schema, Sums, Value, length
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.privacy import clipping
from fedmc.privacy.secagg.cohorts import Turn
from fedmc.training import tree
from fedmc.training.fixed_point import NOTHING, Encode, FixedPointState, decoded, fixed, flat, integers, split, unflat
from fedmc.training.tree import Piece
from fedmc.types import Array


class Combined(NamedTuple):
    """The sum of a round, and each client's clipping factor if updates are clipped."""

    total: Sums
    factors: dict[int, float]


class Aggregation(Protocol):
    """What engines need from an aggregation."""

    masked: bool  # a federation must hide each reply from the server

    def needs_session(self, task: str) -> bool:
        """Whether a node accepts this task only in a secure-aggregation session."""
        ...

    def participants(self, turn: Turn, joined: Set[int]) -> tuple[int, ...]:
        """The clients to ask in a round; `joined` are already part of the sum."""
        ...

    def groups(self, clients: int, active: int) -> Sequence[Sequence[int]]:
        """All clients, divided as they are asked for a measurement: one group, if sums may be over all of them."""
        ...

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        """A client's new state, and its reply, encoded for this aggregation."""
        ...

    def combine(self, replies: Iterable[Piece], broadcast: Broadcast, items: int) -> Combined:
        """The sum of all replies."""
        ...

    def condense(self, replies: Iterable[Piece], whole: range, broadcast: Broadcast, items: int) -> list[Piece]:
        """What `combine` needs of some replies, which hold all those of the blocks `whole`."""
        ...

    def commit(self, now: State | None, before: State | None, factor: float) -> State | None:
        """A client's state, once it knows the clipping factor of its update."""
        ...

    def can_spill(self) -> bool:
        """Whether the simulation may keep states on disk."""
        ...

    def can_batch(self) -> bool:
        """Whether replies of several clients may be computed, and added, together."""
        ...

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        """The same aggregation at a node, where numbers that do not fit must not show; `on_cut` is told of them."""
        ...

    def check_encoding(self, name: str, value: Value) -> None:
        """Refuse a part of a reply that is not encoded as this aggregation needs it."""
        ...

    def joined_value(self) -> int:
        """The encoded value of a newcomer's `joined`."""
        ...


class PlainSum(Aggregation):
    """Floats, added in the order of a fixed tree."""

    masked = False

    def needs_session(self, task: str) -> bool:
        return False

    def participants(self, turn: Turn, joined: Set[int]) -> tuple[int, ...]:
        return turn.drawn

    def groups(self, clients: int, active: int) -> Sequence[Sequence[int]]:
        return [range(clients)]

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        return respond(shard, state, broadcast)

    def combine(self, replies: Iterable[Piece], broadcast: Broadcast, items: int) -> Combined:
        return Combined(tree.total(replies), {})

    def condense(self, replies: Iterable[Piece], whole: range, broadcast: Broadcast, items: int) -> list[Piece]:
        return tree.condensed(replies, whole)

    def commit(self, now: State | None, before: State | None, factor: float) -> State | None:
        return now

    def can_spill(self) -> bool:
        return True

    def can_batch(self) -> bool:
        return True

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        return self

    def check_encoding(self, name: str, value: Value) -> None:
        """Every encoding is accepted; types are checked elsewhere."""

    def joined_value(self) -> int:
        return 1


class FixedPointSum(PlainSum):
    """Fixed-point integers, whose sum is exact in any order."""

    def __init__(self, encode: Encode = fixed) -> None:
        self._encode = encode

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        before = cast(FixedPointState | None, state) if isinstance(state, FixedPointState) else None
        after, sums = respond(shard, state if before is None else before.inner, broadcast)
        schema = schema_of(broadcast, shard.by_user.shape[1])
        stateful, words = broadcast.task in STATEFUL_TASKS, NOTHING if before is None else before.decoys
        whole, words = self._contribution(shard, after, words, broadcast) if stateful else ({}, words)
        if not whole:
            return after if stateful else state, integers(sums.parts, schema, broadcast, self._encode)
        steps = [self._encode(values, schema[name].bits, broadcast) for name, values in whole.items()]
        now = FixedPointState(cast(State, after), np.concatenate(steps), decoys=words)
        change = now.whole if before is None else now.whole - before.whole
        return cast(State, now), integers(sums.parts, schema, broadcast, self._encode, split(change, whole))

    def _contribution(
        self, shard: Shard, state: State | None, words: Array, broadcast: Broadcast
    ) -> tuple[dict[str, Array], Array]:
        """The client's whole contribution, and the words of its decoys."""
        return broadcast.settings.make_algorithm().contribution(shard, cast(State, state), broadcast), words

    def combine(self, replies: Iterable[Piece], broadcast: Broadcast, items: int) -> Combined:
        schema = schema_of(broadcast, items)
        total, sent = _whole(replies, schema)
        return Combined(decoded(total, schema, sent), {})

    def condense(self, replies: Iterable[Piece], whole: range, broadcast: Broadcast, items: int) -> list[Piece]:
        schema = schema_of(broadcast, items)
        total, sent = _whole(replies, schema)
        return [Piece(0, 0, Sums(dict(unflat(total, schema)), sent))]

    def can_spill(self) -> bool:
        return False

    def can_batch(self) -> bool:
        return False

    def check_encoding(self, name: str, value: Value) -> None:
        require(isinstance(value, np.ndarray) and value.dtype == np.int64, f"{name} must be integers")

    def joined_value(self) -> int:
        return 1 << NUMBER_BITS


class ClippedSum(FixedPointSum):
    """Each update counts up to `clip` times the median update norm of the round."""

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.clip = clip

    def condense(self, replies: Iterable[Piece], whole: range, broadcast: Broadcast, items: int) -> list[Piece]:
        if broadcast.task not in STATEFUL_TASKS:
            return super().condense(replies, whole, broadcast, items)
        return list(replies)  # the median update norm is one of all clients

    def combine(self, replies: Iterable[Piece], broadcast: Broadcast, items: int) -> Combined:
        if broadcast.task not in STATEFUL_TASKS:
            return super().combine(replies, broadcast, items)
        found, schema = list(replies), schema_of(broadcast, items)
        kept = {piece.client: piece.sums for piece in found}
        clipped = [name for name, part in schema.items() if part.cumulative]
        steps = {name: 2.0 ** -schema[name].bits for name in clipped}
        updates = {
            k: np.concatenate([reply[name].ravel() * step for name, step in steps.items()]) for k, reply in kept.items()
        }
        factors = clipping.factors(updates, self.clip)
        for client, reply in kept.items():  # `joined` is not clipped
            reply.parts.update({name: clipping.counted(reply[name], factors[client]) for name in clipped})
        return Combined(super().combine(found, broadcast, items).total, factors)

    def commit(self, now: State | None, before: State | None, factor: float) -> State | None:
        if factor == 1.0 or not isinstance(now, FixedPointState):
            return now
        previous = before.whole if isinstance(before, FixedPointState) else None
        return cast(State, now._replace(whole=clipping.committed(now.whole, previous, factor)))


def _whole(replies: Iterable[Piece], schema: Schema) -> tuple[Array, int]:
    """The sum of fixed-point replies as one vector, and the bytes that clients sent for it."""
    total, sent = np.zeros(length(schema), np.int64), 0
    for piece in replies:
        total += flat(piece.sums, schema)
        sent += piece.sums.sent
    return total, sent
