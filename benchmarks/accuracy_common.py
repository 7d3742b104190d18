"""What the sections of `accuracy.py` share: data, clients, pooled marks and gaps to them."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data import datasets, partition
from fedmc.data.partition import Shard, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.evaluation.pooled import als
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round, rounds

SEEDS = (1, 2, 3)
STANDSTILL = 100  # rounds of one client with all data, after which variational Bayes stands still
Owners = Callable[[Ratings, int], np.ndarray]  # (ratings, seed) -> the client of each user


@functools.cache
def movielens(name: str) -> Ratings:
    files = {"ml-1m": "ml-1m/ratings.dat", "ml-100k": "ml-100k/u.data"}
    path = Path(os.environ.get("FEDMC_DATA", "")) / files[name]
    if not path.is_file():
        sys.exit(f"no {path}: set FEDMC_DATA to a folder that holds {files[name]}")
    return datasets.load_source(str(path))


def spread(clients: int, words: str = "uniform") -> Owners:
    return lambda ratings, seed: partition.parse(words, ratings, clients, seed)


def whole(train: Ratings, test: Ratings) -> Shard:
    return make_shards(train, np.zeros(len(train.users), np.int64), "float64", test)[0]


@functools.cache
def pooled(ratings: Ratings, rank: int, seed: int, preset: str = "fast") -> float:
    """Test RMSE of the preset's model on the pooled table, run until it stands still."""
    table = whole(*at_random(ratings, 0.2, seed))
    settings = Settings.preset(preset, rank=rank, active=1, seed=seed)
    if preset == "bayes":
        history, _ = federated([table], settings, (STANDSTILL,))
        return history[-1].diagnostics.test_rmse
    fit = als(table, *settings.penalties(1), settings.width, sweeps=200, tolerance=1e-5, seed=seed)
    return float(np.sqrt(fit.squared_error(table.test) / table.test.nnz))


def federated(shards: list[Shard], settings: Settings, at: Sequence[int]) -> tuple[list[Round], LocalEngine]:
    """The rounds `at` these numbers, measured."""
    engine = LocalEngine(shards)
    every = int(np.gcd.reduce(at))
    running = itertools.islice(rounds(engine, settings, measure_every=every), max(at) + 1)
    return [round for round in running if round.number in at], engine


def gaps(
    ratings: Ratings, rank: int, owners: Owners, active: int, at: Sequence[int], preset: str = "fast", **settings
) -> np.ndarray:
    """[seed, round]: gap in percent; the last column is the RMSE at the end."""
    lines = []
    for seed in SEEDS:
        train, test = at_random(ratings, 0.2, seed)
        chosen = Settings.preset(preset, rank=rank, active=active, seed=seed, **settings)
        mark = pooled(ratings, rank, seed, preset)
        owner = owners(ratings, seed)
        history, _ = federated(make_shards(train, owner, "float64", test), chosen, at)
        errors = [round.diagnostics.test_rmse for round in history]
        lines.append([100 * (error / mark - 1) for error in errors] + [errors[-1]])
    return np.array(lines)


def show(label: str, found: np.ndarray, at: Sequence[int]) -> None:
    cells = [
        f"{number:>4}: {line.mean():6.2f} ({line.min():5.2f} to {line.max():5.2f})"
        for number, line in zip(at, found.T, strict=False)
    ]
    print(f"{label:44} {'  '.join(cells)}   RMSE {found[:, -1].mean():.4f}", flush=True)


def scale(preset: str) -> None:
    """Gaps of MovieLens 1M at rank 10 after ten updates a client, however they are drawn."""
    ratings = movielens("ml-1m")
    plan = [(5, 1), (5, 5), (20, 2), (20, 20), (100, 2), (100, 10), (100, 100), (1000, 20), (1000, 100), (1000, 1000)]
    means = []
    for words, (clients, active) in itertools.product(("uniform", "power:1"), plan):
        at = (10 * clients // active,)
        found = gaps(ratings, 10, spread(clients, words), active, at, preset)
        show(f"{active} of {clients} clients, sizes {words}", found, at)
        means.append(found[:, 0].mean())
    print(f"gaps of {min(means):.2f} to {max(means):.2f} (at most 0.10)")
    for active in (121, 604):
        at = tuple(passes * -(-6040 // active) for passes in (2, 4, 10))
        found = gaps(ratings, 10, spread(6040, "one-user"), active, at, preset)
        show(f"{active} of 6040 clients of one user each", found, at)
    print("(at most 0.50 / 0.17 / 0.01 for 121 of 6040)")
