"""The O(1/K) theorem on a problem small enough to reach its rate: the smallest dist(0, dPhi)^2 and its bound by K.

    python benchmarks/rate.py [ROUNDS] [SEEDS]

40 users and 4 items of rank 1, all ratings known, 4 clients, N = 1. beta is what runs suggest, until
one is certified. With 3 of 4 clients a round: means over seeds, and the largest bound.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.training.diagnostics import Diagnostics
from fedmc.training.local import LocalEngine
from fedmc.training.rate import slope
from fedmc.training.rounds import rounds

CLIENTS = 4


def small() -> Ratings:
    rng = np.random.default_rng(0)
    full = np.outer(rng.uniform(0.5, 1, 40), rng.uniform(0.5, 1, 4)) + 0.05 * rng.normal(size=(40, 4))
    rows, columns = np.indices(full.shape)
    return Ratings.from_arrays(rows.ravel(), columns.ravel(), full.ravel())


def history(number: int, active: int, beta: float, seed: int = 0) -> list[Diagnostics]:
    """The diagnostics of rounds 1 to `number`."""
    settings = Settings.preset(
        "paper", rank=1, active=active, beta=beta, inner_steps=1, penalty_users="l2:0.1", penalty_items="l2:0.1",
        seed=seed,
    )  # fmt: skip
    engine = LocalEngine(make_shards(small(), np.arange(40) % CLIENTS, "float64"))
    run = rounds(engine, settings, full=True)
    return [round.diagnostics for round in itertools.islice(run, 1, number + 1)]


def main(number: int, seeds: int) -> None:
    for active in (4, 3):
        beta, last = 1.0, history(200, active, 1.0)[-1]
        print(f"\n{active} of {CLIENTS} clients a round; beta = 1: smallest after 200 rounds {last.min_dist2:.2g}")
        while not last.certified:
            beta = last.beta_suggested
            last = history(200, active, beta)[-1]
        runs = [history(number, active, beta, seed) for seed in range(seeds if active < CLIENTS else 1)]
        assert all(one.certified for run in runs for one in run)
        smallest = np.mean([[one.min_dist2 for one in run] for run in runs], axis=0)
        bound = np.max([[one.dist2_bound for one in run] for run in runs], axis=0)
        print(f"beta = {beta:g}; below the bound at every K: {(smallest <= bound).all()}")
        print("K, smallest, bound, slope over the last decade")
        for K in (k for k in (10, 30, 100, 300, 1000, 3000, 10000, 30000) if k <= number):
            print(f"{K}, {smallest[K - 1]:.3g}, {bound[K - 1]:.3g}, {slope(list(range(1, K + 1)), smallest[:K]):.2f}")


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["10000", "5"][len(sys.argv) - 1 :])))
