"""The simulation with an ear at the server: what some clients send, and what every cohort's messages add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedmc.algorithms.messages import CHANGING, Broadcast, Sums, add_up
from fedmc.algorithms.settings import Settings
from fedmc.audit.leakage import Seen
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.types import Array

MESSAGES = 3  # of each client that is looked at: more say nothing new


class Watched(LocalEngine):
    """The simulation, with an ear at the server: the messages of some clients, and the sum of every round."""

    def __init__(self, shards: Sequence[Shard], listen_to: Sequence[int]) -> None:
        super().__init__(shards)
        self.heard: dict[int, list[Seen]] = {client: [] for client in listen_to}
        self.sums: list[Seen] = []
        self.cohorts: list[tuple[int, ...]] = []
        self._sent: dict[int, Array] = {}

    def ask(self, cast: Broadcast, clients: Sequence[int]) -> Sums:
        if cast.task not in CHANGING:
            return super().ask(cast, clients)
        cohort = tuple(sorted(clients))
        apart = [client for client in cohort if client in self.heard]
        rest = [client for client in cohort if client not in self.heard]
        messages = [super(Watched, self).ask(cast, [client]) for client in apart]
        for client, message in zip(apart, messages, strict=True):
            if len(self.heard[client]) < MESSAGES:
                self.heard[client].append(Seen(cast, message.parts))
        total = add_up([*messages, super().ask(cast, rest)] if rest else messages)
        copy = {name: np.array(part) for name, part in total.parts.items()}
        self.sums.append(Seen(cast, copy, self._accounted_for(cast, cohort, copy)))
        self.cohorts.append(cohort)
        self._sent |= dict.fromkeys(cohort, cast.V)
        return total

    def _accounted_for(self, cast: Broadcast, cohort: tuple[int, ...], parts: dict[str, Array]) -> Array | float:
        """What the sum would be had nobody rated anything (and clients that do not step only go along with V)."""
        if "W" in parts and "control" not in parts:
            return np.asarray(parts.get("weight", len(cohort)) * cast.V)
        if "S" not in parts or cast.settings.update == "curvature":
            return 0.0
        moved = sum(cast.V - self._sent[client] if client in self._sent else cast.V for client in cohort)
        return np.asarray(cast.beta * moved)


@dataclass(frozen=True)
class Planned:
    """A sampler that does as it is told, and then goes on with the last cohort."""

    cohorts: tuple[tuple[int, ...], ...]
    independent = False

    def draw(self, round: int, clients: int, seed: int) -> Array:
        return np.array(sorted(self.cohorts[min(round, len(self.cohorts)) - 1]))

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / clients)


def watch(shards: Sequence[Shard], settings: Settings, listen_to: Sequence[int], number: int) -> Watched:
    """Run so many rounds and listen."""
    require(len(listen_to) > 0, "nobody takes part in the first round: raise active")
    engine = Watched(shards, listen_to)
    for _ in islice(rounds(engine, settings, measure_every=number + 1), number + 1):
        pass
    return engine
