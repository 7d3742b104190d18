"""Aggregation: how clients' replies become one sum. The simulation and federations use the same objects.

    PlainSum     replies are arrays of floats, added in the order of the client numbers
    ClippedSum   fixed-point integers; each update counts up to a multiple of the median update norm
    SecureSum    fixed-point integers; a federation masks them, so that the server sees only sums over fixed groups

Under fixed-point encoding a client keeps a cumulative part (its whole contribution so far) in whole steps of 2^-bits,
and sends the difference to what was counted before. So after any number of rounds, in any order, the server's sum
equals the sum of the rounded contributions. A reply has an entry for every item: its length tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, Protocol, cast

import numpy as np

from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import NUMBER_BITS, STATEFUL_TASKS, Broadcast, Sums, Value, add_up, length
from fedmc.algorithms.schema import MEASURED, schema_of
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.privacy import clipping, modes
from fedmc.privacy.modes import DP, DPSecAgg, Plain, SecAgg
from fedmc.privacy.protocol import Privacy
from fedmc.privacy.secagg.cohorts import Group, Turn, cohort, groups
from fedmc.privacy.secagg.rules import smallest_group
from fedmc.training.fixed_point import (
    Encode,
    FixedPointState,
    cutting,
    decoded,
    fixed,
    flat,
    integers,
    split,
    unflat,
    with_measurement,
)  # fmt: skip
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
    """Floats, added in the order of the client numbers."""

    masked = False

    def needs_session(self, task: str) -> bool:
        return False

    def participants(self, turn: Turn, joined: Set[int]) -> tuple[int, ...]:
        return turn.drawn

    def groups(self, clients: int, active: int) -> Sequence[Sequence[int]]:
        return [range(clients)]

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
        whole = {} if broadcast.task not in STATEFUL_TASKS else self._contribution(shard, after, broadcast)
        if not whole:
            kept = after if broadcast.task in STATEFUL_TASKS else state
            return kept, integers(sums.parts, schema, broadcast, self._encode)
        steps = [self._encode(values, schema[name].bits, broadcast) for name, values in whole.items()]
        now = FixedPointState(cast(State, after), np.concatenate(steps))
        change = now.whole if before is None else now.whole - before.whole
        return cast(State, now), integers(sums.parts, schema, broadcast, self._encode, split(change, whole))

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
        super().__init__()
        self.clip = clip

    def combine(self, replies: Iterable[tuple[int, Sums]], broadcast: Broadcast, items: int) -> Combined:
        if broadcast.task not in STATEFUL_TASKS:
            return super().combine(replies, broadcast, items)
        kept, schema = dict(replies), schema_of(broadcast, items)
        clipped = [name for name, part in schema.items() if part.cumulative]
        steps = {name: 2.0 ** -schema[name].bits for name in clipped}
        updates = {
            k: np.concatenate([reply[name].ravel() * step for name, step in steps.items()]) for k, reply in kept.items()
        }
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
    """Sums over fixed groups with at least `min_cohort` honest clients.

    The simulation adds the same integers as a federation, without masks: they would cancel in the sum, and in one
    process there is nobody to hide from.
    """

    masked = True

    def __init__(self, min_cohort: int, encode: Encode = fixed) -> None:
        super().__init__(encode)
        self.min_cohort = min_cohort

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        return MaskedSum(self.min_cohort, cutting(on_cut))

    def needs_session(self, task: str) -> bool:
        return task != "finish"  # nodes get the final V and send nothing back

    def participants(self, turn: Turn, joined: Set[int]) -> tuple[int, ...]:
        """The group whose turn it is; of the draw, only an empty one counts."""
        least = smallest_group(turn.clients, self.min_cohort)
        return cohort(self.groups(turn.clients, turn.active), least, turn.number) if turn.drawn else ()

    def groups(self, clients: int, active: int) -> tuple[Group, ...]:
        return groups(clients, active, smallest_group(clients, self.min_cohort))


class MaskedSum(SecureSum):
    """SecureSum at a node: measurements are changes too, so that no sum over fewer members shows one member's.

    The server's total has the last measurement of every client that has joined.
    """

    def reply(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        alone = broadcast.task == "measure"
        if not alone and broadcast.task not in STATEFUL_TASKS:
            return super().reply(shard, state, broadcast)
        update = broadcast._replace(measured=False)
        after, sums = (state, Sums({})) if alone else super().reply(shard, state, update)
        before = state if isinstance(state, FixedPointState) else None
        counted = np.empty(0, np.int64) if before is None else before.measured
        if alone or broadcast.measured:
            counted, changes = self._measured(shard, state, broadcast, counted)
            named = {name if alone else MEASURED + name: part for name, part in changes.parts.items()}
            sums = Sums(sums.parts | named, sums.sent + changes.sent)
        return with_measurement(after, counted), sums

    def _measured(self, shard: Shard, state: State | None, broadcast: Broadcast, counted: Array) -> tuple[Array, Sums]:
        """The measurement at this V in whole steps, and its change."""
        measure = broadcast._replace(task="measure", measured=False)
        _, found = super().reply(shard, state, measure)
        schema = schema_of(measure, shard.by_user.shape[1])
        now = flat(found, schema)
        change = now - counted if len(counted) else now
        return now, Sums(dict(unflat(change, schema)), found.sent)


class NoisedSecureSum(SecureSum):
    """As SecureSum, for replies that contain noise: cutting them would cut the noise too, so they fail instead."""

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        return self


def aggregation_of(privacy: Privacy) -> Aggregation:
    """The aggregation that a privacy mode needs."""
    if isinstance(privacy, Plain):
        return ClippedSum(privacy.clip) if privacy.clip else PlainSum()
    if isinstance(privacy, SecAgg | DPSecAgg):
        return (SecureSum if isinstance(privacy, SecAgg) else NoisedSecureSum)(privacy.min_cohort)
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
