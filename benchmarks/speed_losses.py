"""Section of `speed.py`: a fit with a loss other than square beside the same fit with the square loss."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from speed_common import movielens

from fedmc import FedMC, split
from fedmc.data.datasets import demo
from fedmc.data.ratings import Ratings
from fedmc.types import Array

LOSSES = ("huber", "huber:0.5", "huber:0.1")
CASES: dict[str, dict[str, object]] = {
    "fast": {"preset": "fast"},
    "fast, exact": {"preset": "fast", "update": "exact"},
    "paper": {"preset": "paper"},
    "fast, l1": {"preset": "fast", "penalty_users": "l1:3"},
    "fast, fedavg": {"preset": "fast", "method": "fedavg"},
}
REPEATS = 3


@dataclass(frozen=True)
class PseudoHuber:
    """A loss of one's own."""

    curvature: float = 1.0

    def value(self, x: Array, m: Array) -> Array:
        return np.asarray(np.sqrt(1 + np.square(x - m)) - 1)

    def gradient(self, x: Array, m: Array) -> Array:
        return np.asarray((x - m) / np.sqrt(1 + np.square(x - m)))

    def link(self, x: Array) -> Array:
        return x


def section_losses() -> None:
    """CPU time in one process, least of several, as a multiple of that with the square loss."""
    for name, ratings, rounds in (("demo", demo(), 20), ("MovieLens 1M", movielens(), 10)):
        train, test = split(ratings, 0.1, 0)
        for case, given in CASES.items():
            report(f"{name}, {case}", train, test, [*LOSSES, PseudoHuber()], {"rounds": rounds} | given)
        given = {"rounds": rounds, "preset": "fast", "normalise": "none"}
        report(f"{name}, likes", liked(train), liked(test), ["logistic"], given)


def liked(ratings: Ratings) -> Ratings:
    """1 for ratings of at least 4, else 0."""
    matrix = ratings.matrix.copy()
    matrix.data = (matrix.data >= 4).astype(float)
    return replace(ratings, matrix=matrix)


def report(name: str, train: Ratings, test: Ratings, losses: list[object], given: dict[str, object]) -> None:
    """The ratios of some losses, and the test RMSE of each."""
    best: dict[str, float] = {}
    rmse: dict[str, float] = {}
    for _ in range(1 + REPEATS):  # the first compiles
        for loss in ("square", *losses):
            start = time.process_time()
            model = FedMC(clients=20, loss=loss, **given).fit(train)
            best[str(loss)] = min(best.get(str(loss), np.inf), time.process_time() - start)
            rmse[str(loss)] = -model.score(test)
    square = best["square"]
    shown = ", ".join(f"{loss} {best[loss] / square:.1f} ({rmse[loss]:.4f})" for loss in best)
    print(f"{name}: square {square:.2f} s of CPU; times that, and test RMSE: {shown}", flush=True)
