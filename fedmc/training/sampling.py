"""Samplers draw the clients of a round. A draw depends only on the seed and the round, so a run can be resumed.

A user's own sampler is any object with::

    draw(round, clients, seed) -> the chosen client numbers, sorted
    probabilities(clients)     -> each client's probability of being in a round (the theory needs them above 0)

and, if a draw depends on earlier ones, `independent = False`.

The paper assumes that client i is drawn with a probability p_i > 0 in every round, independently of the past. So do
`uniform`, `coins`, `groups` (non-overlapping uniform sampling) and `doubly-uniform`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedmc.algorithms.protocol import Sampler
from fedmc.algorithms.settings import Settings
from fedmc.errors import InputError, quoted, require, unknown
from fedmc.problem import plugins
from fedmc.problem.rng import GROUPS, PASS, ROUND
from fedmc.types import MAX_CLIENTS, Array, number, whole

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

    def __str__(self) -> str:
        """The spec that `parse` reads."""
        chances = self.chances if isinstance(self.chances, tuple) else (self.chances,)
        return "coins:" + ",".join(repr(float(chance)) for chance in chances)

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
class DoublyUniform:
    """A random number of clients, and all sets of this size equally likely: `chances` are (size, probability) pairs."""

    chances: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        sizes, probabilities = self._columns()
        require(len(set(sizes.tolist())) == len(sizes), f"each size once, got {sizes.tolist()}")
        require(bool((sizes >= 0).all() and (probabilities >= 0).all()), "sizes and probabilities must be at least 0")
        total = float(probabilities.sum())
        require(abs(total - 1) <= 1e-9, f"the probabilities of the sizes must add up to 1, got {total:g}")
        require(float(sizes @ probabilities) > 0, "a size above 0 needs a probability above 0: nobody would take part")

    def __str__(self) -> str:
        return "doubly-uniform:" + ",".join(f"{size}={chance!r}" for size, chance in self.chances)

    def draw(self, round: int, clients: int, seed: int) -> Array:
        sizes, probabilities = self._checked(clients)
        rng = np.random.default_rng([seed, ROUND, round])
        size = rng.choice(sizes, p=probabilities / probabilities.sum())
        return np.sort(rng.choice(clients, size, replace=False))

    def probabilities(self, clients: int) -> Array:
        sizes, probabilities = self._checked(clients)
        return np.full(clients, float(sizes @ probabilities) / clients)

    def _checked(self, clients: int) -> tuple[Array, Array]:
        sizes, probabilities = self._columns()
        require(int(sizes.max()) <= clients, f"a round of {sizes.max()} needs as many clients, got {clients}")
        return sizes, probabilities

    def _columns(self) -> tuple[Array, Array]:
        sizes, probabilities = zip(*self.chances, strict=True)
        return np.asarray(sizes, int), np.asarray(probabilities, float)


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


def _coins(numbers: str) -> CoinFlips:
    """`coins:0.1` for all clients, `coins:0.5,0.1` for each of two, `coins:0.5x2,0.1x8` for each of ten."""
    chances: list[float] = []
    for part in numbers.split(","):
        chance, repeated, times = part.partition("x")
        chances += [_number(chance)] * (_whole(times) if repeated else 1)
        require(len(chances) <= MAX_CLIENTS, f"at most {MAX_CLIENTS} chances")
    return CoinFlips(chances[0] if len(chances) == 1 else tuple(chances))


def _doubly_uniform(numbers: str) -> DoublyUniform:
    """`doubly-uniform:0=0.1,5=0.5,20=0.4`: a round of 5 clients with probability 0.5, and so on."""
    pairs = [part.partition("=") for part in numbers.split(",")]
    return DoublyUniform(tuple((_whole(size), _number(chance)) for size, _, chance in pairs))


WITH_NUMBERS: dict[str, Callable[[str], Sampler]] = {"coins": _coins, "doubly-uniform": _doubly_uniform}
SPECS = "coins:P, coins:P1,P2,... (PxK for K clients alike), doubly-uniform:SIZE=PROBABILITY,..."


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise InputError(f"a sampler's probability is a number from 0 to 1, got {quoted(text)}: {SPECS}") from None
    return number("a sampler's probability", found, 0, 1)


def _whole(text: str) -> int:
    require(text.isascii() and text.isdigit(), f"a number of clients is a whole number, got {quoted(text)}: {SPECS}")
    return whole("a number of clients", int(text), 0, MAX_CLIENTS)


def names() -> list[str]:
    """The names of all samplers, built in or installed."""
    return [*BUILT_IN, "doubly-uniform", *plugins.names(GROUP)]


def parse(name: str, active: int, clients: int) -> Sampler:
    """A sampler by name: `uniform`, `coins` (chance active/clients each), `groups`, `passes`, or a plug-in's.

    A plug-in is called with (active, clients), as the built-in ones are. `SPECS` have numbers of their own instead of
    `active`.
    """
    _check_active(active, clients)
    kind, given, numbers = name.partition(":")
    if kind in WITH_NUMBERS and (given or kind not in BUILT_IN):
        made_of = WITH_NUMBERS[kind](numbers)
        made_of.probabilities(clients)  # refuses what does not fit the number of clients
        return made_of
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
