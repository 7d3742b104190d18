"""What the sections of `speed.py` share: data, settings and timed rounds."""

from __future__ import annotations

import itertools
import os
from functools import cache
from pathlib import Path

from fedmc.algorithms.settings import Settings
from fedmc.data import synthetic
from fedmc.data.loading import read_source
from fedmc.data.ratings import Ratings
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import warm_up

FOREVER = 10**9
CLIENTS, ACTIVE, BETA, WEIGHT = 100, 10, 0.3, 1e-6


@cache
def movielens() -> Ratings:
    path = Path(os.environ.get("FEDMC_DATA", "")) / "ml-1m" / "ratings.dat"
    return read_source(str(path)) if path.is_file() else synthetic.make_ratings(synthetic.like("ml-1m"))


def settings_of(preset: str, rank: int, **given) -> Settings:
    more = {"beta": BETA} if preset == "paper" else {}
    return Settings.preset(preset, rank=rank, **({"active": ACTIVE} | more | given))


def seconds_of_rounds(shards, settings: Settings, number: int, skip: int = 2) -> list[float]:
    """Seconds of updates, without the first rounds, which also allocate memory."""
    warm_up(settings, shards[0].by_user.data.dtype)
    run = rounds(LocalEngine(shards), settings, measure_every=FOREVER)
    return [round.seconds for round in itertools.islice(run, 1 + skip + number)][1 + skip :]
