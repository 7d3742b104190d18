"""Which clients take part in a round. A draw depends on the seed and the round only, so a run can be resumed.

A sampler of one's own is any object with
    draw(round, clients, seed) -> the chosen client numbers, sorted
    probabilities(clients)     -> each client's chance to be in a round (the theory needs them above 0)
and, where a draw depends on earlier ones, `independent = False`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedmc.errors import require, unknown
from fedmc.types import Array

_SERVER, _CLIENT, _ROUND, _PASS, _GROUPS = range(5)


def server_rng(seed: int) -> np.random.Generator:
    """The generator of the server's starting point."""
    return np.random.default_rng([seed, _SERVER])


def client_rng(seed: int, client: int) -> np.random.Generator:
    """The generator of one client's starting point, the same wherever that client runs."""
    return np.random.default_rng([seed, _CLIENT, client])


@runtime_checkable
class Sampler(Protocol):
    def draw(self, round: int, clients: int, seed: int) -> Array: ...
    def probabilities(self, clients: int) -> Array: ...


@dataclass(frozen=True)
class Uniform:
    """Exactly `active` clients, without replacement, independently in every round."""

    active: int

    def draw(self, round: int, clients: int, seed: int) -> Array:
        _check_active(self.active, clients)
        rng = np.random.default_rng([seed, _ROUND, round])
        return np.sort(rng.choice(clients, self.active, replace=False))

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, self.active / clients)


@dataclass(frozen=True)
class CoinFlips:
    """Each client by its own coin, with one probability for all or one for each."""

    chances: float | tuple[float, ...]

    def draw(self, round: int, clients: int, seed: int) -> Array:
        rng = np.random.default_rng([seed, _ROUND, round])
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
        rng = np.random.default_rng([seed, _ROUND, round])
        return np.sort(groups[rng.integers(len(groups))])

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / len(self._groups(clients, 0)))

    def _groups(self, clients: int, seed: int) -> list[Array]:
        _check_active(self.active, clients)
        order = np.random.default_rng([seed, _GROUPS]).permutation(clients)
        return np.array_split(order, -(-clients // self.active))


@dataclass(frozen=True)
class Passes:
    """Shuffled passes: every client once in each pass of ceil(clients/active) rounds."""

    active: int
    independent = False

    def draw(self, round: int, clients: int, seed: int) -> Array:
        _check_active(self.active, clients)
        length = -(-clients // self.active)
        which, place = divmod(round - 1, length)
        order = np.random.default_rng([seed, _PASS, which]).permutation(clients)
        return np.sort(np.array_split(order, length)[place])

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, 1 / -(-clients // self.active))


def parse(name: str, active: int, clients: int) -> Sampler:
    """A sampler from words: `uniform`, `coins` (chance active/clients each), `groups` or `passes`."""
    _check_active(active, clients)
    made: dict[str, Sampler] = {
        "uniform": Uniform(active),
        "coins": CoinFlips(active / clients),
        "groups": Groups(active),
        "passes": Passes(active),
    }
    if name not in made:
        raise unknown("sampler", name, made)
    return made[name]


def _check_active(active: int, clients: int) -> None:
    require(1 <= active <= clients, f"active must lie in 1..{clients} (the number of clients), got {active}")
