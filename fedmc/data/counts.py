"""What a model is trained on, in counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.files import write_whole
from fedmc.data.partition import Federation
from fedmc.errors import InputError

FILE = "data.json"  # in a run folder


class Counts(NamedTuple):
    """Users and items with training data, the ratings or events, and those held out."""

    users: int
    items: int
    ratings: int  # or pairs of a user and an item with events, for training
    test: int
    validation: int
    clients: int
    events: bool = False  # rather than ratings
    lowest: float | None = None  # rating
    highest: float | None = None
    first: int | None = None  # seconds since 1970, if times were read
    last: int | None = None

    @property
    def held_out(self) -> float:
        """The share of all ratings or events that the model was not trained on."""
        aside = self.test + self.validation
        return aside / max(self.ratings + aside, 1)


def of(federation: Federation, events: bool) -> Counts:
    """The counts of simulated clients; users who are folded in after training count as held out with all they have."""
    shards, new = federation.shards, federation.new_users
    rated = np.zeros(len(federation.items), bool)
    for shard in shards:
        rated[shard.rated] = True
    test = sum(0 if shard.test is None else int(shard.test.nnz) for shard in shards)
    test += 0 if new is None else len(new.known) + len(new.hidden)
    validation = sum(0 if shard.validation is None else int(shard.validation.nnz) for shard in shards)
    total = sum(int(shard.by_user.nnz) for shard in shards)
    ends: tuple[float | None, float | None] = (None, None)
    if not events:
        values = [shard.by_user.data for shard in shards]
        ends = float(min(one.min() for one in values)), float(max(one.max() for one in values))
    users = sum(len(shard.users) for shard in shards)
    period = federation.period or (None, None)
    return Counts(users, int(rated.sum()), total, test, validation, len(shards), events, *ends, *period)


def save(found: Counts, folder: Path) -> None:
    """Write the counts into a run folder, whole or not at all."""
    write_whole(folder / FILE, (json.dumps(found._asdict(), indent=1) + "\n").encode())


def load(folder: Path) -> Counts | None:
    """The counts in a run folder; None if there are none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        found = Counts(**json.loads(path.read_text(encoding="utf-8")))
        if not all(isinstance(one, int | float | None) for one in found):
            raise ValueError("a count is not a number")
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}; remove it for a report without it") from None
    return found
