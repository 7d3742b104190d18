"""What a forgotten user leaves in the factors of items: MovieLens 100K, after further rounds without the user.

    FEDMC_DATA=FOLDER python benchmarks/forget.py       FOLDER holds ml-100k; OPENBLAS_NUM_THREADS=1 helps

Two models with all settings at their defaults: one trained with the user, one that never had the user. Both go on
without the user for some rounds, as `fedmc federation train --from RUN` does. Then they are compared: predictions for
all other users and all items (RMS of the difference, in stars), and V after the best linear map from one to the other,
since only that is determined. Ordinary noise is the same between two models that never had the user and differ in the
seed of their first factors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc import FedMC, Model, Ratings
from fedmc.data.datasets import load_source
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from fedmc.types import Array

ROUNDS, SEEDS, HELD_OUT = (0, 1, 2, 3, 5), (0, 1, 2), 0.1
WHO = {"most ratings": 1.0, "median": 0.5, "few ratings": 0.05}  # quantiles of the number of ratings


class Data(NamedTuple):
    """Training ratings, with the same client of each user in all runs, and held-out ratings."""

    train: Ratings
    owner: Array
    test: tuple[Array, Array, Array]  # users, items, ratings

    def without(self, row: int) -> Data:
        keep = np.arange(len(self.owner)) != row
        return self._replace(train=self.train.with_users(np.flatnonzero(keep)), owner=self.owner[keep])


class Difference(NamedTuple):
    predictions: float  # RMS, in stars
    factors: float  # of V, relative
    rmse: float  # of the first model, on held-out ratings of the other users


def read() -> Data:
    ratings = load_source(str(Path(os.environ["FEDMC_DATA"]) / "ml-100k"))
    aside = np.random.default_rng(0).random(len(ratings)) < HELD_OUT
    held_out = ratings.with_entries(aside)
    test = ratings.users[held_out.rows()], ratings.items[held_out.matrix.indices], held_out.matrix.data
    owner = assign_users(len(ratings.users), FedMC().clients, 0)
    return Data(ratings.with_entries(~aside).without_times(), owner, test)


def fitted(data: Data, seed: int, rounds: int, start_from: Model | None = None) -> Model:
    defaults = FedMC(seed=seed)
    settings = defaults.settings(defaults.clients)
    federation = Federation(make_shards(data.train, data.owner, settings.dtype), data.train.users, data.train.items)
    return train(federation, settings, Stop(rounds), start_from=start_from).model


def difference(one: Model, other: Model, test: tuple[Array, Array, Array]) -> Difference:
    """How two models differ, over the users that both know."""
    users, items = np.intersect1d(one.users, other.users), one.items
    pairs = np.repeat(users, len(items)), np.tile(items, len(users))
    away = one.predict(*pairs) - other.predict(*pairs)
    mapped = one.V @ np.linalg.lstsq(one.V, other.V, rcond=None)[0]
    known = np.isin(test[0], users)
    errors = one.predict(test[0][known], test[1][known]) - test[2][known]
    relative = np.linalg.norm(mapped - other.V) / np.linalg.norm(other.V)
    return Difference(float(np.sqrt(np.mean(away**2))), float(relative), float(np.sqrt(np.mean(errors**2))))


def study(data: Data, row: int, seed: int) -> list[Difference]:
    """After each of ROUNDS; the last entry is the ordinary noise."""
    rounds, less = FedMC().rounds, data.without(row)
    had, never = fitted(data, seed, rounds), fitted(less, seed, rounds)
    found = [difference(had, never, data.test)]
    for further in ROUNDS[1:]:
        found.append(difference(*(fitted(less, seed, further, one) for one in (had, never)), data.test))
    return [*found, difference(fitted(less, seed + 100, rounds), never, data.test)]


def main() -> None:
    data = read()
    counts = np.diff(data.train.matrix.indptr)
    order = np.argsort(counts, kind="stable")
    print(f"| forgotten user | | {' | '.join(f'{k} rounds' for k in ROUNDS)} | two seeds |")
    for name, part in WHO.items():
        row = int(order[round(part * (len(order) - 1))])
        found = np.mean([study(data, row, seed) for seed in SEEDS], axis=0)
        for column, what in enumerate(("predictions, stars", "V, relative", "RMSE of the others")):
            numbers = " | ".join(f"{value:.4f}" for value in found[:, column])
            print(f"| {name} ({counts[row]}) | {what} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
