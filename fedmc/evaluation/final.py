"""How a trained model ranks what was held out: of users who trained, or of new users who are folded in.

Models of events are measured in training. Models of ratings are ranked here, once, at the end; so are new users.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedmc.data.partition import Federation
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.evaluation.ranked import Ranked, popularity_of, ranked
from fedmc.model import Model
from fedmc.types import Array

FILE = "ranking.json"  # in a run folder
MOST = 50_000  # users with held-out ratings that are ranked, at most


def final_ranking(model: Model, federation: Federation, most: int = MOST) -> dict[str, float]:
    """The metrics by name, such as "test_ndcg_20" and "test_popular_ndcg_20"; none if nothing was held out."""
    new = federation.new_users
    if new is not None:
        if not len(new.hidden):
            return {}
        folded = model.fold_in(new.known)
        return _record(ranked(folded, *_pairs_of(new.hidden), popularity=popularity_of(model)))
    users, items = _held_out(federation, most)
    return _record(ranked(model, users, items)) if len(users) else {}


def save(found: dict[str, float], folder: Path) -> None:
    """Write the metrics into a run folder."""
    (folder / FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> dict[str, float]:
    """The metrics in a run folder; none if there are none."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}; remove it for a report without it") from None


def _record(found: Ranked) -> dict[str, float]:
    named = {"test_users": float(found.users)}
    for before, metrics in (("test_", found.model), ("test_popular_", found.popularity)):
        for cutoff, one in metrics.items():
            named |= {f"{before}{name}_{cutoff}": float(value) for name, value in one._asdict().items()}
    return named


def _pairs_of(ratings: Ratings) -> tuple[Array, Array]:
    return ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]


def _held_out(federation: Federation, most: int) -> tuple[Array, Array]:
    """(users, items) of the clients' test pairs, of at most so many users, evenly spaced."""
    tests = [(shard.users, shard.test) for shard in federation.shards if shard.test is not None]
    numbers = np.concatenate([np.repeat(rows, np.diff(test.indptr)) for rows, test in tests] or [np.empty(0, int)])
    items = np.concatenate([test.indices for _, test in tests] or [np.empty(0, int)])
    there = np.unique(numbers)
    chosen = np.isin(numbers, there[:: max(1, -(-len(there) // most))])
    return federation.users[numbers[chosen]], federation.items[items[chosen]]
