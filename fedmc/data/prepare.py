"""Prepare training data from a source: read, align with a catalogue, split, partition, write."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data import catalogue as catalogues
from fedmc.data import partition as partitions
from fedmc.data import splits
from fedmc.data.builder import Duplicates
from fedmc.data.catalogue import Catalogue, UnknownItems
from fedmc.data.datasets import load_source
from fedmc.data.partition import Federation, make_shards
from fedmc.data.prepared import is_prepared, open_prepared, verify, writing
from fedmc.data.ratings import Ratings
from fedmc.errors import require
from fedmc.types import Array


class Plan(NamedTuple):
    """How to read a source, split it and partition it."""

    source: str
    columns: tuple[str, ...] | None = None
    query: str | None = None
    duplicates: Duplicates = "refuse"
    catalogue: Path | None = None
    unknown_items: UnknownItems = "refuse"
    split: str | float | None = None  # for the test ratings
    validation: str | float | None = None  # for the validation ratings, out of the rest
    partition: str = "uniform"
    clients: int = 1
    seed: int = 0

    @property
    def test_split(self) -> str | None:
        return splits.normalise(self.split)

    @property
    def validation_split(self) -> str | None:
        return splits.normalise(self.validation)


class Parts(NamedTuple):
    """Training, test and validation ratings, and the client of each user."""

    train: Ratings
    test: Ratings | None
    validation: Ratings | None
    owner: Array
    report: str | None  # about items that were dropped


def read_parts(plan: Plan) -> Parts:
    """Read, align, partition and split. Users are partitioned first, so a split never moves a user."""
    held_out = [split for split in (plan.test_split, plan.validation_split) if split is not None]
    group = plan.partition.partition(":")[2] if plan.partition.startswith("column:") else None
    times = any(map(splits.needs_times, held_out))
    ratings = load_source(
        plan.source, plan.columns, query=plan.query, times=times, group=group, duplicates=plan.duplicates
    )
    report = None
    if plan.catalogue is not None:
        ratings, report = catalogues.align(ratings, catalogues.load(plan.catalogue), plan.unknown_items)
    owner = partitions.parse(plan.partition, ratings, plan.clients, plan.seed)
    train, test = splits.parse(plan.test_split, ratings, plan.seed) if plan.test_split else (ratings, None)
    validation = None
    if plan.validation_split:
        train, validation = splits.parse(plan.validation_split, train, plan.seed + 1)
        require(
            len(validation) > 0, f"the split {plan.validation_split} leaves no rating to validate on: hold out more"
        )
    return Parts(train, test if test is not None and len(test) else None, validation, owner, report)


def federation_of(plan: Plan, dtype: str) -> Federation:
    """The clients of a source: those of prepared shards, after a check of their hashes, or new ones by the plan."""
    if is_prepared(Path(plan.source)):
        verify(plan.source)
        opened = open_prepared(plan.source)
        return Federation(opened.shards, np.concatenate(opened.ids), opened.catalogue.items)
    parts = read_parts(plan)
    shards = make_shards(parts.train, parts.owner, dtype, parts.test, parts.validation)
    return Federation(shards, parts.train.users, parts.train.items, parts.report)


def write_prepared(path: Path, parts: Parts, overwrite: bool = False) -> None:
    """Write the parts as a folder of prepared shards."""
    with writing(path, Catalogue(parts.train.items), overwrite) as writer:
        for shard in make_shards(parts.train, parts.owner, np.float32, parts.test):
            writer.add(parts.train.users[shard.users], shard.by_user, shard.test)
        writer.finish({})
