"""Samplers draw the clients of a round. A draw depends only on the seed and the round, so a run can be resumed.

A user's own sampler is any object with::

    draw(round, clients, seed) -> the chosen client numbers, sorted
    probabilities(clients)     -> each client's probability of being in a round (the theory needs them above 0)

and, if a draw depends on earlier ones, `independent = False`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedmc.algorithms.protocol import Sampler
from fedmc.algorithms.settings import Settings
from fedmc.errors import require, unknown
from fedmc.problem import plugins
from fedmc.problem.rng import GROUPS, PASS, ROUND
from fedmc.types import Array

GROUP = "fedmc.samplers"


@dataclass(frozen=True)
class Uniform:
    """Exactly `active` clients, without replacement, independently in every round."""

    active: int

    def draw(self, round: int, clients: int, seed: int) -> Array:
        _check_active(self.active, clients)
        rng = np.random.default_rng([seed, ROUND, round])
        return np.sort(rng.choice(clients, self.active, replace=False))

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, self.active / clients)


@dataclass(frozen=True)
class CoinFlips:
    """Each client takes part independently, with one probability for all clients or one for each."""

    chances: float | tuple[float, ...]

    def draw(self, round: int, clients: int, seed: int) -> Array:
        rng = np.random.default_rng([seed, ROUND, round])
        return np.flatnonzero(rng.random(clients) < self.probabilities(clients))

    def probabilities(self, clients: int) -> Array:
        chances = np.asarray(self.chances, float)
        if chances.ndim == 0:
            chances = np.full(clients, chances)
        require(len(chances) == clients, f"give one chance per client ({clients}), got {len(chances)}")
        require(
            bool(((chances > 0) & (chances <= 1)).all()),
            f"chances must be above 0 and at most 1, got {self.chances}",
        )
        return chances


@dataclass(frozen=True)
class Groups:
    """Fixed non-overlapping groups of about `active` clients; one group, drawn uniformly, takes part."""

    active: int

    def draw(self, round: int, clients: int, seed: int) -> Array:
        groups = self._groups(clients, seed)
        rng = np.random.default_rng([seed, ROUND, round])
        return np.sort(groups[rng.integers(len(groups))])

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / len(self._groups(clients, 0)))

    def _groups(self, clients: int, seed: int) -> list[Array]:
        _check_active(self.active, clients)
        order = np.random.default_rng([seed, GROUPS]).permutation(clients)
        return np.array_split(order, -(-clients // self.active))


@dataclass(frozen=True)
class Passes:
    """Shuffled passes: every client takes part once in each pass of ceil(clients/active) rounds."""

    active: int
    independent = False

    def draw(self, round: int, clients: int, seed: int) -> Array:
        _check_active(self.active, clients)
        length = -(-clients // self.active)
        which, place = divmod(round - 1, length)
        order = np.random.default_rng([seed, PASS, which]).permutation(clients)
        return np.sort(np.array_split(order, length)[place])

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / -(-clients // self.active))


BUILT_IN: dict[str, Callable[[int, int], Sampler]] = {
    "uniform": lambda active, clients: Uniform(active),
    "coins": lambda active, clients: CoinFlips(active / clients),
    "groups": lambda active, clients: Groups(active),
    "passes": lambda active, clients: Passes(active),
}


def names() -> list[str]:
    """The names of all samplers, built in or installed."""
    return [*BUILT_IN, *plugins.names(GROUP)]


def parse(name: str, active: int, clients: int) -> Sampler:
    """A sampler by name: `uniform`, `coins` (chance active/clients each), `groups`, `passes`, or a plug-in's.

    A plug-in is called with (active, clients), as the built-in ones are.
    """
    _check_active(active, clients)
    make = BUILT_IN.get(name) or plugins.find(GROUP, name)
    if make is None:
        raise unknown("sampler", name, names())
    made: object = make(active, clients) if callable(make) else make
    require(isinstance(made, Sampler), f"a sampler needs draw and probabilities, got {type(made).__name__}")
    return cast(Sampler, made)


def sampler_of(settings: Settings, clients: int) -> Sampler:
    """The sampler of a run over `clients` clients."""
    if isinstance(settings.sampler, str):
        return parse(settings.sampler, settings.active, clients)
    return settings.sampler


def _check_active(active: int, clients: int) -> None:
    require(1 <= active <= clients, f"active must lie in 1..{clients} (the number of clients), got {active}")
