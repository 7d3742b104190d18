"""A penalty, a loss, a sampler and an algorithm, each found by its name once this package is installed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmc.algorithms.fedavg import FedAvg
from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.algorithms.state import ServerState
from fedmc.types import Array


@dataclass(frozen=True)
class Ball:
    """Every row inside of a ball around 0: `ball:2`."""

    radius: float

    def value(self, X: Array) -> float:
        inside = np.linalg.norm(X, axis=1) <= self.radius * (1 + 1e-9)
        return 0.0 if inside.all() else np.inf

    def prox(self, Z: Array, step: float | Array) -> Array:
        norms = np.linalg.norm(Z, axis=1, keepdims=True)
        return np.asarray(Z * np.minimum(1, self.radius / np.maximum(norms, 1e-300)), Z.dtype)

    def __str__(self) -> str:
        return f"ball:{self.radius!r}"


@dataclass(frozen=True)
class PseudoHuber:
    """delta^2 (sqrt(1 + (e/delta)^2) - 1), e = x - m: `pseudo-huber:0.5`."""

    delta: float = 1.0
    curvature: float = 1.0

    def value(self, x: Array, m: Array) -> Array:
        return np.asarray(self.delta**2 * (np.sqrt(1 + np.square((x - m) / self.delta)) - 1))

    def gradient(self, x: Array, m: Array) -> Array:
        return np.asarray((x - m) / np.sqrt(1 + np.square((x - m) / self.delta)))

    def link(self, x: Array) -> Array:
        return x

    def __str__(self) -> str:
        return f"pseudo-huber:{self.delta!r}"


@dataclass(frozen=True)
class RoundRobin:
    """`active` clients one after the other, whoever is next."""

    active: int
    clients: int
    independent = False  # a draw depends on the round before: the theorem does not cover it

    def draw(self, round: int, clients: int, seed: int) -> Array:
        return np.sort((np.arange(self.active) + (round - 1) * self.active) % clients)

    def probabilities(self, clients: int) -> Array:
        return np.full(clients, self.active / clients)


class Momentum(FedAvg):
    """Federated averaging with momentum at the server; the velocity is what the server remembers."""

    name = "momentum"
    label = "FedAvg with momentum"
    friction = 0.7

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        step = total["W"] / total.number("weight") - broadcast.V
        velocity = step if server.S is None else self.friction * server.S + step
        return ServerState(velocity, broadcast.V + velocity, 0)

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        return broadcast.shared  # clients need V only
