"""How many held-out ratings a Bayesian model's intervals hold, and how wide they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.days import SECONDS
from fedmc.data.partition import Federation
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError, require
from fedmc.model import Model
from fedmc.model.ids import Unknown
from fedmc.types import Array

LEVELS = tuple(k / 20 for k in range(1, 20))  # 0.05, 0.1, ..., 0.95
SHOWN = (0.5, 0.8, 0.9, 0.95)  # levels in the report's table
MOST = 200_000  # test ratings that a run's coverage is computed from, at most
FILE = "coverage.json"  # in a run folder


class HeldOut(NamedTuple):
    """Ratings that a model was not trained on: arrays of equal length."""

    users: Array
    items: Array
    ratings: Array
    times: Array | None = None

    def thinned(self, most: int = MOST) -> HeldOut:
        """At most so many of them, evenly spaced."""
        step = max(1, -(-len(self.ratings) // most))
        return self.some(slice(None, None, step))

    def some(self, chosen: Array | slice) -> HeldOut:
        times = None if self.times is None else self.times[chosen]
        return HeldOut(self.users[chosen], self.items[chosen], self.ratings[chosen], times)


class Coverage(NamedTuple):
    """The share of ratings inside the intervals of a level, and the mean width of these on the rating scale."""

    level: float
    coverage: float
    width: float

    def in_words(self) -> str:
        return f"{percent(self.level)} intervals hold {100 * self.coverage:.1f} % of the test ratings"


class Calibration(NamedTuple):
    """The coverage of a run's intervals at several levels, and the number of ratings it was computed from."""

    ratings: int
    levels: list[Coverage]

    def at(self, level: float) -> Coverage:
        """The coverage at one of the levels."""
        return next(one for one in self.levels if one.level == level)


def entries_of(ratings: Ratings) -> HeldOut:
    """Ratings as held-out ones."""
    users, items = ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]
    return HeldOut(users, items, ratings.matrix.data, ratings.times)


def held_out_of(federation: Federation, most: int = MOST) -> HeldOut:
    """Test ratings of all clients, at most so many; empty if they held out none."""
    tests = [(shard.users, shard.test) for shard in federation.shards if shard.test is not None]
    if not tests:
        return HeldOut(federation.users[:0], federation.items[:0], np.empty(0))
    rows = np.concatenate([np.repeat(users, np.diff(test.indptr)) for users, test in tests])
    columns, ratings = (np.concatenate([getattr(test, name) for _, test in tests]) for name in ("indices", "data"))
    some = HeldOut(rows, columns, ratings, _times_of(federation)).thinned(most)
    return HeldOut(federation.users[some.users], federation.items[some.items], some.ratings, some.times)


def _times_of(federation: Federation) -> Array | None:
    """A time on the day of each test rating, if clients know them; before 1970 where nothing is known of the day."""
    found = [shard.days for shard in federation.shards if shard.test is not None]
    if any(days is None or days.of_test is None for days in found):
        return None
    known = [np.append(days.numbers, -1)[days.of_test] for days in found if days is not None]
    return np.concatenate(known) * SECONDS


def coverage(model: Model, held_out: HeldOut, level: float, unknown: Unknown = "refuse") -> Coverage:
    """The coverage of the model's intervals of one level."""
    users, items, ratings, times = held_out
    _, low, high = model.interval(users, items, level, unknown=unknown, times=times)
    # Ratings are stored as float32: an interval that ends at the range of ratings must hold those at its end.
    x, below, above = (part.astype(np.float32) for part in (ratings, low, high))
    inside = (below <= x) & (x <= above)
    return Coverage(level, float(inside.mean()), float(np.mean(high - low, dtype=np.float64)))


def calibration(model: Model, held_out: HeldOut, levels: Sequence[float] = LEVELS) -> Calibration | None:
    """The coverage at all levels; None without ratings, or if the model has no posterior."""
    if model.posterior is None or not len(held_out.ratings):
        return None
    some = held_out.thinned()
    return Calibration(len(some.ratings), [coverage(model, some, level) for level in levels])


def save(found: Calibration, folder: Path) -> None:
    """Write the coverage into a run folder."""
    record = {"ratings": found.ratings, "levels": [one._asdict() for one in found.levels]}
    (folder / FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Calibration | None:
    """The coverage in a run folder; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = Calibration(int(record["ratings"]), [Coverage(**one) for one in record["levels"]])
        missing = {*SHOWN} - {one.level for one in found.levels}
        require(not missing, f"the levels {sorted(missing)} are missing")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged: {error}; remove it for a report without intervals") from None
    return found


def percent(level: float) -> str:
    """A level such as 0.9 as 90 %."""
    return f"{100 * level:g} %"
