"""What identifies a split: SHA-256 of its training part, its held-out part and its clients.

Each is over the bytes of a file of lines, in the order of users and items: `train` and `test` over `user,item,rating`,
`clients` over `user,client`. Users, items and clients are numbered from 0, in the order of their ids or names.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.evaluation.harness import Parts
from fedmc.types import Array

PUBLISHED = Path(__file__).with_name("hashes.json")
Hashes = dict[str, str]


def lines_of(ratings: Ratings, values: bool = True) -> str:
    """A line for each entry: user, item and, unless left out, rating; ratings with nine digits are exact."""
    users, items = ratings.rows().tolist(), ratings.matrix.indices.tolist()
    if not values:
        return "".join(f"{user},{item}\n" for user, item in zip(users, items, strict=True))
    data = ratings.matrix.data.tolist()
    return "".join(f"{user},{item},{value:.9g}\n" for user, item, value in zip(users, items, data, strict=True))


def hashes_of(parts: Parts) -> Hashes:
    """The three hashes of a split."""
    texts = {
        "train": lines_of(_ordered(parts.train)),
        "test": lines_of(_ordered(parts.test)),
        "clients": _owners(parts.owner),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def published(task: str, seed: int) -> Hashes | None:
    """The hashes that a task has with this seed; None if none are published."""
    known: dict[str, dict[str, Hashes]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return known.get(task, {}).get(str(seed))


def check(task: str, seed: int, found: Hashes) -> None:
    """Refuse a split that is not the published one: its results could not be compared."""
    known = published(task, seed)
    wrong = [name for name in found if known is not None and found[name] != known[name]]
    require(
        not wrong,
        lambda: (
            f"the {wrong[0]} part of {task} with seed {seed} has SHA-256 {found[wrong[0]]}, not the published "
            f"{(known or {})[wrong[0]]}: the data set has another version; install the one that `fedmc benchmark show "
            f"{task}` names"
        ),
        DataError,
    )


def _owners(owner: Array) -> str:
    return "".join(f"{user},{client}\n" for user, client in enumerate(owner.tolist()))


def _ordered(ratings: Ratings) -> Ratings:
    """Entries of each user in the order of items; those of all readers are already."""
    order = np.lexsort((ratings.matrix.indices, ratings.rows()))
    require(bool((order == np.arange(len(order))).all()), "the entries of a split must be in order", DataError)
    return ratings
