"""Aggregation: how clients' replies become one sum. The simulation and federations use the same objects.

    PlainSum     replies are arrays of floats, added in the order of the client numbers
    ClippedSum   fixed-point integers; each update counts up to a multiple of the median update norm
    SecureSum    fixed-point integers; a federation masks them, so that the server sees only sums over fixed groups

Under fixed-point encoding a client keeps a cumulative part (its whole contribution so far) in whole steps of 2^-bits,
and sends the difference to what was counted before. So after any number of rounds, in any order, the server's sum
equals the sum of the rounded contributions. A reply has an entry for every item: its length does not reveal which
items a client rated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple, Protocol, cast

import numpy as np

from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import NUMBER_BITS, STATEFUL_TASKS, Broadcast, Sums, Value, add_up, length
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.privacy import clipping, modes
from fedmc.privacy.modes import DP, DPSecAgg, Plain, SecAgg
from fedmc.privacy.protocol import Privacy
from fedmc.privacy.secagg.cohorts import Turn, cohort, groups
from fedmc.training import decoys
from fedmc.training.decoys import Secret
from fedmc.training.fixed_point import Encode, cutting, decoded, fixed, flat, integers, split
from fedmc.types import Array


class FixedPointState(NamedTuple):
    """A client's state, and its contribution to the server's running sum, in whole steps."""

    inner: State
    whole: Array
    decoys: Array = decoys.NOTHING  # the client's secret, and the values of its decoys

    @property
    def U(self) -> Array:
        return np.asarray(self.inner.U)


def taken_apart(state: State) -> tuple[State, Array | None]:
    """The algorithm's own state, and the contribution in whole steps if there is one, for a node's store."""
    if not isinstance(state, FixedPointState):
        return state, None
    return state.inner, decoys.packed(state.whole, state.decoys)


def put_together(inner: State, whole: Array | None) -> State:
    """Inverse of `taken_apart`; earlier versions stored the contribution in the shape of the sum."""
    return inner if whole is None else cast(State, FixedPointState(inner, *decoys.unpacked(whole.ravel())))


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
        stateful, words = broadcast.task in STATEFUL_TASKS, decoys.NOTHING if before is None else before.decoys
        whole, words = self._contribution(shard, after, words, broadcast) if stateful else ({}, words)
        if not whole:
            return after if stateful else state, integers(sums.parts, schema, broadcast, self._encode)
        steps = [self._encode(values, schema[name].bits, broadcast) for name, values in whole.items()]
        now = FixedPointState(cast(State, after), np.concatenate(steps), words)
        change = now.whole if before is None else now.whole - before.whole
        return cast(State, now), integers(sums.parts, schema, broadcast, self._encode, split(change, whole))

    def _contribution(
        self, shard: Shard, state: State | None, words: Array, broadcast: Broadcast
    ) -> tuple[dict[str, Array], Array]:
        """The client's whole contribution, and the words of its decoys."""
        return broadcast.settings.make_algorithm().contribution(shard, cast(State, state), broadcast), words

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
    """Sums over fixed groups of at least `min_cohort` clients, with no newcomers or at least as many of them.

    The simulation adds the same integers as a federation, without masks: they would cancel in the sum, and in one
    process there is nobody to hide from.
    """

    masked = True

    def __init__(
        self, min_cohort: int, rate: float = 0.0, encode: Encode = fixed, secret: Secret = decoys.simulated
    ) -> None:
        super().__init__(encode)
        self.min_cohort, self.rate, self._secret = min_cohort, rate, secret

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        return SecureSum(self.min_cohort, self.rate, cutting(on_cut), decoys.at_home)

    def _contribution(
        self, shard: Shard, state: State | None, words: Array, broadcast: Broadcast
    ) -> tuple[dict[str, Array], Array]:
        """The contribution, with decoys in a part `rate` of the rows that it would leave empty."""
        whole, words = super()._contribution(shard, state, words, broadcast)
        if not whole or not self.rate:
            return whole, words
        known, algorithm = cast(State, state), broadcast.settings.make_algorithm()
        words = words if len(words) else self._secret(broadcast.settings, shard.client)
        more, words = decoys.with_decoys(shard, self.rate, words, known.U, broadcast)
        added = algorithm.decoy_sums(more, known, broadcast)
        return {name: values + added.get(name, 0.0) for name, values in whole.items()}, words

    def needs_session(self, task: str) -> bool:
        return task != "finish"  # nodes get the final V and send nothing back

    def participants(self, turn: Turn, joined: Set[int]) -> tuple[int, ...]:
        """The group whose turn it is; of the draw, only an empty one counts."""
        fixed = groups(turn.clients, turn.active, self.min_cohort)
        return cohort(fixed, joined, self.min_cohort, turn.number) if turn.drawn else ()


class NoisedSecureSum(SecureSum):
    """As SecureSum, for replies that contain noise: cutting them would cut the noise too, so they fail instead."""

    def quietly(self, on_cut: Callable[[str], None]) -> Aggregation:
        return self


def aggregation_of(privacy: Privacy) -> Aggregation:
    """The aggregation that a privacy mode needs."""
    if isinstance(privacy, Plain):
        return ClippedSum(privacy.clip) if privacy.clip else PlainSum()
    if isinstance(privacy, SecAgg):
        return SecureSum(privacy.min_cohort, privacy.decoys)
    if isinstance(privacy, DPSecAgg):
        return NoisedSecureSum(privacy.min_cohort)
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
