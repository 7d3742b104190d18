"""Aggregation: how clients' replies become one sum. The simulation and federations use the same objects.

    PlainSum     replies are arrays of floats, added in the order of the client numbers
    ClippedSum   fixed-point integers; each update counts up to a multiple of the median update norm
    SecureSum    fixed-point integers; a federation masks them, so that the server sees only their sum

Under fixed-point encoding a client keeps a cumulative part (its whole contribution so far) in whole steps of 2^-bits,
and sends the difference to what was counted before. So after any number of rounds, in any order, the server's sum
equals the sum of the rounded contributions. A reply has an entry for every item: its length does not reveal which
items a client rated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple, Protocol, cast

import numpy as np

from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import NUMBER_BITS, STATEFUL_TASKS, Broadcast, Schema, Sums, Value, add_up, dense, length
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, InputError, require
from fedmc.privacy import clipping, modes
from fedmc.privacy.modes import DP, DPSecAgg, Plain, SecAgg
from fedmc.privacy.protocol import Privacy
from fedmc.privacy.secagg.cohorts import cohort
from fedmc.privacy.secagg.fixed import from_fixed, limit_of, to_fixed
from fedmc.types import Array


class FixedPointState(NamedTuple):
    """A client's state, and its contribution to the server's running sum, in whole steps."""

    inner: State
    whole: Array

    @property
    def U(self) -> Array:
        return np.asarray(self.inner.U)


def taken_apart(state: State) -> tuple[State, Array | None]:
    """The algorithm's own state, and the contribution in whole steps if there is one, for a node's store."""
    return (state.inner, state.whole) if isinstance(state, FixedPointState) else (state, None)


def put_together(inner: State, whole: Array | None) -> State:
    """Inverse of `taken_apart`; earlier versions stored the contribution in the shape of the sum."""
    return inner if whole is None else cast(State, FixedPointState(inner, whole.ravel()))


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

    def participants(self, drawn: tuple[int, ...], joined: Set[int], clients: int, number: int) -> tuple[int, ...]:
        """The clients to ask in round `number`, given those drawn; `joined` are already part of the sum."""
        ...

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        """A client's new state, and its reply, encoded for this aggregation."""
        ...

    def combine(self, replies: Iterable[tuple[int, Sums]], broadcast: Broadcast, items: int) -> Combined:
        """The sum of the replies of one or more clients."""
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

    def check_encoding(self, name: str, value: Value) -> None:
        """Refuse a part of a reply that is not encoded as this aggregation needs it."""
        ...

    def joined_value(self) -> int:
        """The encoded value of a newcomer's `joined`."""
        ...


class PlainSum(Aggregation):
    """Floats, added in the order of the client numbers."""

    masked = False

    def needs_session(self, task: str) -> bool:
        return False

    def participants(self, drawn: tuple[int, ...], joined: Set[int], clients: int, number: int) -> tuple[int, ...]:
        return drawn

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        return respond(shard, state, broadcast)

    def combine(self, replies: Iterable[tuple[int, Sums]], broadcast: Broadcast, items: int) -> Combined:
        return Combined(add_up(reply for _, reply in replies), {})

    def commit(self, now: State | None, before: State | None, factor: float) -> State | None:
        return now

    def can_spill(self) -> bool:
        return True

    def can_batch(self) -> bool:
        return True

    def check_encoding(self, name: str, value: Value) -> None:
        """Every encoding is accepted; types are checked elsewhere."""

    def joined_value(self) -> int:
        return 1


class FixedPointSum(PlainSum):
    """Fixed-point integers, whose sum is exact in any order."""

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        before = cast(FixedPointState | None, state) if isinstance(state, FixedPointState) else None
        after, sums = respond(shard, state if before is None else before.inner, broadcast)
        schema = schema_of(broadcast, shard.by_user.shape[1])
        whole = {} if broadcast.task not in STATEFUL_TASKS else self._contribution(shard, after, broadcast)
        if not whole:
            return (after if broadcast.task in STATEFUL_TASKS else state), _integers(sums.parts, schema, broadcast)
        steps = [fixed(values, schema[name].bits, broadcast) for name, values in whole.items()]
        now = FixedPointState(cast(State, after), np.concatenate(steps))
        change = now.whole if before is None else now.whole - before.whole
        return cast(State, now), _integers(sums.parts, schema, broadcast, _split(change, whole))

    def _contribution(self, shard: Shard, state: State | None, broadcast: Broadcast) -> dict[str, Array]:
        return broadcast.settings.make_algorithm().contribution(shard, cast(State, state), broadcast)

    def combine(self, replies: Iterable[tuple[int, Sums]], broadcast: Broadcast, items: int) -> Combined:
        schema, sent = schema_of(broadcast, items), 0
        total = np.zeros(length(schema), np.int64)
        for _, reply in replies:
            total += flat(reply, schema)
            sent += reply.sent
        return Combined(decoded(total, schema, sent), {})

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
        self.clip = clip

    def combine(self, replies: Iterable[tuple[int, Sums]], broadcast: Broadcast, items: int) -> Combined:
        if broadcast.task not in STATEFUL_TASKS:
            return super().combine(replies, broadcast, items)
        kept, schema = dict(replies), schema_of(broadcast, items)
        clipped = [name for name, part in schema.items() if part.cumulative]
        updates = {k: np.concatenate([reply[name].ravel() for name in clipped]) for k, reply in kept.items()}
        factors = clipping.factors(updates, self.clip)
        for client, reply in kept.items():  # `joined` is not clipped
            reply.parts.update({name: clipping.counted(reply[name], factors[client]) for name in clipped})
        return Combined(super().combine(kept.items(), broadcast, items).total, factors)

    def commit(self, now: State | None, before: State | None, factor: float) -> State | None:
        if factor == 1.0 or not isinstance(now, FixedPointState):
            return now
        previous = before.whole if isinstance(before, FixedPointState) else None
        return cast(State, now._replace(whole=clipping.committed(now.whole, previous, factor)))


class SecureSum(FixedPointSum):
    """Sums over cohorts of at least `min_cohort` clients, with no newcomers or at least as many of them.

    The simulation adds the same integers as a federation, without masks: they would cancel in the sum, and in one
    process there is nobody to hide from.
    """

    masked = True

    def __init__(self, min_cohort: int) -> None:
        self.min_cohort = min_cohort

    def needs_session(self, task: str) -> bool:
        return task != "finish"  # nodes get the final V and send nothing back

    def participants(self, drawn: tuple[int, ...], joined: Set[int], clients: int, number: int) -> tuple[int, ...]:
        return cohort(drawn, joined, clients, self.min_cohort, number) if drawn else drawn


def aggregation_of(privacy: Privacy) -> Aggregation:
    """The aggregation that a privacy mode needs."""
    if isinstance(privacy, Plain):
        return ClippedSum(privacy.clip) if privacy.clip else PlainSum()
    if isinstance(privacy, SecAgg | DPSecAgg):
        return SecureSum(privacy.min_cohort)
    assert isinstance(privacy, DP)
    return PlainSum()


def is_masked(mode: str) -> bool:
    """Whether this privacy mode masks replies, so that nodes need an identity."""
    return aggregation_of(modes.parse(mode, {})).masked


def check_run(settings: Settings, clients: int, rounds: int | None, full: bool) -> None:
    """Before the first round, refuse a run that the privacy mode or the algorithm does not support."""
    settings.privacy.check_run(clients, settings.active, rounds, full)
    algorithm = settings.make_algorithm()
    require(
        algorithm.theory is not None or not full,
        f"full diagnostics exist for FedMC only, not for {algorithm}: leave them out",
    )


def flat(reply: Sums, schema: Schema) -> Array:
    """A fixed-point reply as one vector, in the order of the schema."""
    return np.concatenate([reply[name].ravel() for name in schema])


def unflat(words: Array, schema: Schema) -> dict[str, Array]:
    """Inverse of `flat`: the integers by name."""
    parts, start = {}, 0
    for name, part in schema.items():
        parts[name] = words[start : start + part.size].reshape(part.shape)
        start += part.size
    return parts


def decoded(total: Array, schema: Schema, sent: int) -> Sums:
    """The sums that a flat vector of integers encodes."""
    parts: dict[str, Value] = {
        name: from_fixed(part, schema[name].bits) for name, part in unflat(total, schema).items()
    }
    return Sums(parts, sent)


def fixed(values: Array, bits: int, broadcast: Broadcast) -> Array:
    """Encode in whole steps of 2^-bits; a number that is too large raises Diverged."""
    try:
        return to_fixed(values, bits, limit_of(broadcast.clients, bits)).ravel()
    except InputError as error:
        raise Diverged(broadcast.round, str(error), "rescale the ratings, or raise the penalties or beta") from None


def _split(change: Array, whole: Mapping[str, Array]) -> dict[str, Array]:
    ends = np.cumsum([values.size for values in whole.values()])[:-1]
    return dict(zip(whole, np.split(change, ends), strict=True))


def _integers(
    parts: Mapping[str, Value], schema: Schema, broadcast: Broadcast, changes: Mapping[str, Array] | None = None
) -> Sums:
    """A reply in whole steps; `changes` holds the cumulative parts, already encoded."""
    found: dict[str, Value] = {}
    for name, part in schema.items():
        change = (changes or {}).get(name)
        steps = fixed(dense(parts[name], part.shape), part.bits, broadcast) if change is None else change
        found[name] = steps.reshape(part.shape)
    return Sums(found, 8 * length(schema))
