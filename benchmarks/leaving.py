"""What an organisation leaves in the others' factors when it takes its part out of the sum: MovieLens 100K.

    FEDMC_DATA=FOLDER python benchmarks/leaving.py      FOLDER holds ml-100k; OPENBLAS_NUM_THREADS=1 helps

Four organisations with a quarter of the users each train under secure aggregation; one of them leaves, with its part or
without, and the others go on from that run for some rounds. The result is compared with a run over the three that never
had the fourth: predictions for their users and all items (RMS of the difference, in stars), and the RMSE on their
held-out ratings. Ordinary noise is the difference between two runs of the three whose first factors differ.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data.datasets import load_source
from fedmc.data.partition import Shard, assign_users, make_shards
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, rounds
from fedmc.training.warm import previous_run
from fedmc.training.withdrawal import without
from fedmc.types import Array

FURTHER, SEEDS, HELD_OUT, ROUNDS, ORGANISATIONS = (0, 1, 2, 3, 5, 10), (0, 1, 2), 0.1, 20, 4
KINDS = {"bayes, the default": ("bayes", None), "fast, exact updates": ("fast", "exact")}


class Found(NamedTuple):
    """Predictions of the three organisations' users for all items, and their RMSE on held-out ratings."""

    predictions: Array
    rmse: float


class Run(NamedTuple):
    engine: LocalEngine
    last: Checkpoint


def shards_of(folder: Path, seed: int) -> list[Shard]:
    ratings = load_source(str(folder / "ml-100k")).without_times()
    aside = np.random.default_rng(seed).random(len(ratings)) < HELD_OUT
    owner = assign_users(len(ratings.users), ORGANISATIONS, seed)
    return make_shards(ratings.with_entries(~aside), owner, np.float32, ratings.with_entries(aside))


def settings_of(kind: str, members: int, seed: int) -> Settings:
    preset, update = KINDS[kind]
    return Settings.preset(preset, rank=10, active=members, update=update, seed=seed, privacy="secagg", min_cohort=3)


def trained(shards: list[Shard], settings: Settings, number: int, previous: Checkpoint | None = None) -> Run:
    engine, states = LocalEngine(shards), list[Checkpoint]()
    items = np.arange(engine.items)
    before = None if previous is None else previous_run(previous.broadcast, items, items, settings)
    running = rounds(engine, settings, measure_every=number, on_checkpoint=states.append, previous=before)
    for _ in islice(running, number + 1):
        pass
    return Run(engine, states[-1])


def found(shards: list[Shard], last: Checkpoint) -> Found:
    broadcast, rows, errors = last.broadcast, [], []
    algorithm, (mean, scale) = broadcast.settings.make_algorithm(), broadcast.scaling
    for shard in shards:
        U = algorithm.users_at(shard, None, broadcast)
        scores = mean + scale * (np.asarray(U, np.float64) @ np.asarray(broadcast.V, np.float64).T)
        assert shard.test is not None
        pairs = shard.test.tocoo()
        errors.append(scores[pairs.coords] - pairs.data)
        rows.append(scores)
    return Found(np.concatenate(rows), float(np.sqrt(np.mean(np.concatenate(errors) ** 2))))


def study(kind: str, folder: Path, seed: int) -> dict[str, list[float]]:
    """By row of the table: after each of FURTHER, the difference from the run that never had the fourth."""
    shards, p = shards_of(folder, seed), ORGANISATIONS
    three, four = shards[:-1], settings_of(kind, p, seed)
    rest = settings_of(kind, p - 1, seed)
    had, never = trained(shards, four, ROUNDS), trained(three, rest, ROUNDS)
    ends = {"its part stays": had.last, "its part is taken out": without(had.engine, had.last, (p - 1,))}
    lines: dict[str, list[float]] = {}
    for further in FURTHER:
        goal = found(three, never.last if not further else trained(three, rest, further, never.last).last)
        for name, end in ends.items():
            now = found(three, end if not further else trained(three, rest, further, end).last)
            away = float(np.sqrt(np.mean((now.predictions - goal.predictions) ** 2)))
            lines.setdefault(f"{name}: predictions, stars", []).append(away)
            lines.setdefault(f"{name}: RMSE less that of the run without it", []).append(now.rmse - goal.rmse)
    other = found(three, trained(three, settings_of(kind, p - 1, seed + 100), ROUNDS).last)
    goal = found(three, never.last)
    noise = float(np.sqrt(np.mean((other.predictions - goal.predictions) ** 2)))
    return {
        name: [*values, noise if "predictions" in name else other.rmse - goal.rmse] for name, values in lines.items()
    }


def main() -> None:
    folder = Path(os.environ["FEDMC_DATA"])
    for kind in KINDS:
        print(f"\n{kind}\n\n| | {' | '.join(f'{k} rounds' for k in FURTHER)} | two seeds |")
        studies = [study(kind, folder, seed) for seed in SEEDS]
        for name in studies[0]:
            numbers = np.mean([one[name] for one in studies], axis=0)
            print(f"| {name} | {' | '.join(f'{value:.4f}' for value in numbers)} |", flush=True)


if __name__ == "__main__":
    main()
