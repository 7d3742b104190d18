"""The simulation as a curious server sees it: the messages of some clients, and the sum of every cohort."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from fedmc.algorithms.incidence import PATTERN
from fedmc.algorithms.leakage import Observation
from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums, add_up
from fedmc.algorithms.settings import Settings
from fedmc.audit.item_lists import ROWS
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.training.aggregation import aggregation_of
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.secure_sums import SecureSum
from fedmc.types import Array

MESSAGES = 3  # kept of each observed client: more add nothing new


class Observer(LocalEngine):
    """The simulation as a curious server sees it: the messages of some clients, and the sum of every round.

    Once its cohort has joined, each client misses `absences` of its rounds, one client at a time.
    """

    def __init__(self, shards: Sequence[Shard], listen_to: Sequence[int], absences: int = 0) -> None:
        super().__init__(shards)
        self.absences, self.missed = absences, 0
        self._turns: Counter[tuple[int, ...]] = Counter()
        self.heard: dict[int, list[Observation]] = {client: [] for client in listen_to}
        self.sums: list[Observation] = []
        self.cohorts: list[tuple[int, ...]] = []
        self._sent: dict[int, Array] = {}
        self.patterns: dict[int, list[Observation]] = {client: [] for client in listen_to}  # who rated what
        self.pattern_sums: list[Observation] = []

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        if broadcast.task == "pattern" and broadcast.shared.arrays:  # else only sizes are asked for
            return self._ask_pattern(broadcast, clients)
        if broadcast.task not in STATEFUL_TASKS:
            return super().ask(broadcast, clients)
        cohort = self._present(tuple(sorted(clients)))
        apart = [client for client in cohort if client in self.heard]
        rest = [client for client in cohort if client not in self.heard]
        messages = [super(Observer, self).ask(broadcast, [client]) for client in apart]
        for client, message in zip(apart, messages, strict=True):
            if len(self.heard[client]) < MESSAGES:
                self.heard[client].append(Observation(broadcast, parts_of(message)))
        total = add_up([*messages, super().ask(broadcast, rest)] if rest else messages)
        copy = {name: np.array(part) for name, part in parts_of(total).items()}
        leakage = broadcast.settings.make_algorithm().leakage
        accounted = leakage.accounted(broadcast, cohort, self._sent, copy)
        self.sums.append(Observation(broadcast, copy, accounted))
        self.cohorts.append(cohort)
        self._sent |= dict.fromkeys(cohort, broadcast.V)
        return replace(total, clients=cohort)

    def _ask_pattern(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of replies about who rated what, and each reply if the server sees them."""
        total = super().ask(broadcast, clients)
        self.pattern_sums.append(_lines(broadcast, total))
        if not isinstance(aggregation_of(broadcast.settings.privacy), SecureSum):  # mode: the server sees each reply
            for client in self.patterns:
                self.patterns[client].append(_lines(broadcast, super().ask(broadcast, [client])))
        return total

    def _present(self, cohort: tuple[int, ...]) -> tuple[int, ...]:
        """The cohort without the member whose turn it is to be absent."""
        turn = self._turns[cohort] - 1  # at the first one they join
        self._turns[cohort] += 1
        if not 0 <= turn < self.absences * len(cohort):
            return cohort
        self.missed += 1
        place = turn % len(cohort)
        return cohort[:place] + cohort[place + 1 :]


def _lines(broadcast: Broadcast, found: Sums) -> Observation:
    """The lines that are not zero."""
    rows = np.flatnonzero(found[PATTERN].any(axis=1))
    return Observation(broadcast, {ROWS: rows, PATTERN: found[PATTERN][rows]})


def parts_of(sums: Sums) -> dict[str, Array]:
    return {name: sums[name] for name in sums.parts}


@dataclass(frozen=True)
class Planned:
    """A sampler that returns the given cohorts, and then repeats the last one."""

    cohorts: tuple[tuple[int, ...], ...]
    independent = False

    def draw(self, round: int, clients: int, seed: int) -> Array:
        return np.array(sorted(self.cohorts[min(round, len(self.cohorts)) - 1]))

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / clients)


def watch(
    shards: Sequence[Shard], settings: Settings, listen_to: Sequence[int], number: int, absences: int = 0
) -> Observer:
    """Run `number` rounds and record what the server sees."""
    require(len(listen_to) > 0, "nobody takes part in the first round: raise active")
    engine = Observer(shards, listen_to, absences)
    for _ in islice(rounds(engine, settings, measure_every=number + 1), number + 1):
        pass
    return engine
