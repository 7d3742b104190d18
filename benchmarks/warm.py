"""Warm starts: weekly updates of a model of MovieLens 1M, beside training from scratch.

    FEDMC_DATA=FOLDER python benchmarks/warm.py [ROUNDS ...]      FOLDER holds ml-1m; OPENBLAS_NUM_THREADS=1 helps

The first 80 % of the time line are trained on, then four weeks are added one after the other. After each, the model
that goes on from the last one and a model from scratch predict the ratings of the following week, of the users and
items known by then. Times are those of whole fits, from ratings to a model with calibrated intervals; the two take
turns. All settings are defaults; ROUNDS are those of a warm start (the default if none are given).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from accuracy_common import SEEDS

from fedmc import FedMC, Model
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.training import warm
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from fedmc.types import Array

SHARE, WEEKS, WEEK = 0.8, 4, 7 * 86_400
WORSE, TIME = 0.3, 0.25  # percent of the RMSE, and share of the time: the marks


class TimeLine:
    """All ratings by time."""

    def __init__(self) -> None:
        path = Path(os.environ["FEDMC_DATA"]) / "ml-1m" / "ratings.dat"
        lines = np.array([line.split("::") for line in path.read_text().splitlines()], np.int64)
        self.users, self.items, ratings, times = lines.T
        self.ratings = ratings.astype(np.float64)
        order = np.argsort(times, kind="stable")
        self.weeks = np.floor((times - times[order[int(SHARE * len(times))]]) / WEEK).astype(int)

    def before(self, week: int) -> Ratings:
        some = self.weeks < week
        return Ratings.from_arrays(self.users[some], self.items[some], self.ratings[some])

    def rmse(self, model: Model, week: int) -> float:
        some = (self.weeks == week) & np.isin(self.users, model.users) & np.isin(self.items, model.items)
        found: Array = model.predict(self.users[some], self.items[some]) - self.ratings[some]
        return float(np.sqrt(np.mean(found**2)))


def fitted(ratings: Ratings, seed: int, rounds: int, start_from: Model | None = None) -> tuple[Model, float]:
    """A model and the seconds that it took."""
    defaults = FedMC(seed=seed)
    settings, began = defaults.settings(defaults.clients), time.perf_counter()
    shards = make_shards(ratings, assign_users(len(ratings.users), defaults.clients, seed), settings.dtype)
    found = train(Federation(shards, ratings.users, ratings.items), settings, Stop(rounds), start_from=start_from)
    return found.model, time.perf_counter() - began


def updates(line: TimeLine, seed: int, rounds: int) -> list[tuple[float, float, float, float]]:
    """RMSE and seconds of each week: from scratch, and warm."""
    model, _ = fitted(line.before(0), seed, FedMC().rounds)
    found = []
    for week in range(1, WEEKS + 1):
        ratings = line.before(week)
        scratch, seconds = fitted(ratings, seed, FedMC().rounds)
        model, warm_seconds = fitted(ratings, seed, rounds, model)
        found.append((line.rmse(scratch, week), seconds, line.rmse(model, week), warm_seconds))
    return found


def main() -> None:
    line = TimeLine()
    fitted(line.before(0), 0, 2)  # compile
    for rounds in [int(word) for word in sys.argv[1:]] or [warm.ROUNDS]:
        weeks = np.array([updates(line, seed, rounds) for seed in SEEDS])
        for week, (theirs, seconds, ours, warm_seconds) in enumerate(weeks.mean(axis=0), 1):
            worse = 100 * (ours / theirs - 1)
            print(
                f"{rounds} rounds, week {week}: RMSE {ours:.4f}, from scratch {theirs:.4f}, {worse:+.2f} % (at most "
                f"{WORSE:+.2f}): {'yes' if worse <= WORSE else 'NO'}; {warm_seconds:.2f} s of {seconds:.2f} s",
                flush=True,
            )
        share = weeks[..., 3].sum() / weeks[..., 1].sum()
        print(f"{rounds} rounds: {share:.2f} of the time (at most {TIME}): {'yes' if share <= TIME else 'NO'}")


if __name__ == "__main__":
    main()
