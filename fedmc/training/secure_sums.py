"""Secure sums: fixed-point integers, which a federation masks, so that the server sees only sums over fixed groups."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import cast

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.schema import MEASURED, schema_of
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.privacy.secagg.cohorts import Group, Turn, cohort, groups
from fedmc.privacy.secagg.rules import smallest_group
from fedmc.training import decoys
from fedmc.training.decoys import Secret
from fedmc.training.fixed_point import Encode, FixedPointState, cutting, fixed, flat, unflat, with_measurement
from fedmc.training.sums import Aggregation, FixedPointSum
from fedmc.types import Array


class SecureSum(FixedPointSum):
    """Sums over fixed groups with at least `min_cohort` honest clients.

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
        return MaskedSum(self.min_cohort, self.rate, cutting(on_cut), decoys.at_home)

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
