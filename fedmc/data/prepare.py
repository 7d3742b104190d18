"""Prepare training data from a source: read, align with a catalogue, split, partition, write."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data import catalogue as catalogues
from fedmc.data import partition as partitions
from fedmc.data import prepared_events, side, splits
from fedmc.data.builder import Duplicates
from fedmc.data.catalogue import Catalogue, UnknownItems
from fedmc.data.datasets import load_source, titles_of
from fedmc.data.feedback import EventOptions, default_confidence
from fedmc.data.forms import Wide
from fedmc.data.given import scaled
from fedmc.data.partition import Federation, make_shards
from fedmc.data.prepared import Prepared, is_prepared, open_prepared, verify, writing
from fedmc.data.prepared_events import AUTO, SCALE, events_in_words
from fedmc.data.ratings import Ratings
from fedmc.data.recognition import check_explicit
from fedmc.data.side import Side, Sources
from fedmc.data.splits import NewUsers, Pairs
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
    user_features: str | Path | None = None
    items: str | Path | None = None  # a public table of features and titles
    also_seen: str | Path | None = None  # events without a rating
    categorical: tuple[str, ...] = ()  # columns of numbers in these tables that are categories
    titles_only: bool = False  # of the table of items: the model does not use features
    times: bool = False  # read the times of the ratings, for biases by user and day
    events: EventOptions | None = None  # read events such as purchases and clicks instead of ratings
    confidence_scale: str | None = None  # of events: how amounts become confidences; AUTO; None: they stay amounts
    reason: str = ""  # of events: what they were recognised by, in words
    wide: Wide | bool | None = None  # a row for each user, a column for each item
    before: Path | None = None  # shards of one client, made before: a random split leaves their pairs where they were

    @property
    def recency(self) -> bool:
        """Whether the order of events counts, if it is known."""
        return self.events is not None and self.events.recency

    @property
    def side(self) -> Sources:
        return Sources(self.user_features, self.items, self.also_seen, self.categorical, self.titles_only)

    @property
    def test_split(self) -> str | None:
        return splits.normalise(self.split)

    @property
    def held_out(self) -> list[str]:
        """The splits that are given."""
        return [split for split in (self.test_split, self.validation_split) if split is not None]

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
    side: Side = Side()
    events: EventOptions | None = None  # how they were read, if the ratings are confidences of events
    confidence_scale: str | None = None  # how amounts became these confidences
    new_users: NewUsers | None = None  # who take no part in training


def load_table(plan: Plan) -> Ratings:
    """The ratings of a plan's source, or the amounts of its events, before anything is aligned or split."""
    group = plan.partition.partition(":")[2] if plan.partition.startswith("column:") else None
    times = plan.times or any(map(splits.needs_times, plan.held_out))
    return load_source(
        plan.source, plan.columns, query=plan.query, times=times, group=group, duplicates=plan.duplicates,
        events=plan.events, wide=plan.wide,
    )  # fmt: skip


def read_parts(plan: Plan, ratings: Ratings | None = None) -> Parts:
    """Read, align, partition and split. Users are partitioned first, so a split of pairs never moves a user.

    Amounts of events become confidences by one scale, before they are split. Items that only occur in the table of
    items become columns without ratings. Events after the date of a `date:` split, or after a user's last training
    rating with `last:K`, are not used; those of held-out pairs never are. `ratings`: the table, if it was read before.
    """
    held_out = plan.held_out
    ratings = load_table(plan) if ratings is None else ratings
    scale, told = plan.confidence_scale, list[str]()
    if scale is not None:
        scale = default_confidence(ratings.matrix.data) if scale == AUTO else scale
        amounts, ratings = ratings, scaled(ratings, scale)
        told += events_in_words(amounts, ratings, scale, plan.reason, plan.recency)
    report, notes = None, (*told, *ratings.notes)
    tables = side.read(plan.side, any(map(splits.needs_times, held_out)))
    if plan.catalogue is not None:
        catalogue = catalogues.load(plan.catalogue)
        ratings, report = catalogues.align(ratings, catalogue, plan.unknown_items)
        tables = side.with_catalogue(tables, catalogue)
    else:
        ratings, tables = side.with_all_items(ratings, tables)
    new = _new_users(plan, ratings)
    ratings, test_split = (ratings, plan.test_split) if new is None else (new.train, None)
    owner = partitions.parse(plan.partition, ratings, plan.clients, plan.seed)
    train, test = _divided(plan, test_split, ratings) if test_split else (ratings, None)
    validation = None
    if plan.validation_split:
        train, validation = splits.parse(plan.validation_split, train, plan.seed + 1)
        require(
            len(validation) > 0, f"the split {plan.validation_split} leaves no rating to validate on: hold out more"
        )
    latest = None if tables.events is None else splits.last_times(train, held_out)
    more = side.side_of(tables, ratings, latest)
    more = more._replace(notes=(*notes, *more.notes))
    test = test if test is not None and len(test) else None
    if plan.events is not None and not plan.recency:  # splits may have needed them
        train, new = train.without_times(), None if new is None else new.without_times()
    return Parts(train, test, validation, owner, report, more, plan.events, scale, new)


def _divided(plan: Plan, test_split: str, ratings: Ratings) -> tuple[Ratings, Ratings]:
    """Training and test ratings; by a random split, those of before stay what they were."""
    found = splits.parse(test_split, ratings, plan.seed)
    if plan.before is None or not splits.is_random(test_split):
        return found
    known = open_prepared(plan.before)
    shard = known.shards[0]
    if shard.test is None:
        return found
    parts = (matrix.tocoo().coords for matrix in (shard.by_user, shard.test))
    return splits.as_before(found, ratings, *(Pairs(known.ids[0][u], known.catalogue.items[i]) for u, i in parts))


def _new_users(plan: Plan, ratings: Ratings) -> NewUsers | None:
    """The users that a split such as `users:0.1` holds out, who belong to no client; None if it is another split."""
    part = splits.parse_users(plan.test_split)
    if part is None:
        return None
    require(not plan.side.given, f"test={plan.split!r} folds users in by their ratings alone: leave out other tables")
    return splits.new_users(ratings, part, plan.seed)


def federation_of(plan: Plan, dtype: str, ratings: Ratings | None = None) -> Federation:
    """The clients of a source: those of prepared shards, after a check of their hashes, or new ones by the plan.

    Ratings that are all equal are refused, and a split that holds out nothing. `ratings`: the table, if it was read.
    """
    if is_prepared(Path(plan.source)):
        require(not plan.side.given, "prepared shards hold their features and events: give them to `fedmc prepare`")
        verify(plan.source)
        opened = open_prepared(plan.source)
        if plan.events is None:
            prepared_events.check_ratings(opened)
            return side.titled(opened_federation(opened), plan.side)
        opened = opened.as_events(plan.events)
        if plan.confidence_scale is None:
            return side.titled(opened_federation(opened), plan.side)
        weighed, scale, notes = prepared_events.weighed(opened, plan.confidence_scale)
        found = opened_federation(weighed)._replace(confidence_scale=scale, notes=notes)
        return side.titled(found, plan.side)
    ratings = load_table(plan) if ratings is None else ratings
    if plan.events is None:
        check_explicit(ratings)
    parts = read_parts(plan, ratings)
    if plan.test_split is not None:
        test = parts.test if parts.new_users is None else parts.new_users.hidden
        splits.check_held_out(plan.test_split, len(ratings), 0 if test is None else len(test))
    of_each = parts.train, parts.owner, dtype, parts.test, parts.validation
    found = side.federated(*of_each, parts.side, parts.report, plan.events is not None)
    groups = ratings.groups if plan.partition.startswith("column:") else None
    names = () if groups is None else tuple(map(str, groups[0]))
    times = ratings.times
    period = None if times is None or not len(times) else (int(times.min()), int(times.max()))
    titled = titles_of(plan.source) if found.item_table is None else found.item_table
    found = found._replace(period=period, client_names=names, item_table=titled)
    return found._replace(confidence_scale=parts.confidence_scale, new_users=parts.new_users)


def opened_federation(opened: Prepared) -> Federation:
    """The clients of prepared shards, with the features of their items and users."""
    catalogue, users = opened.catalogue, np.concatenate(opened.ids)
    about = catalogue.item_features, (), catalogue.features, opened.user_feature_names
    return Federation(opened.shards, users, catalogue.items, None, *about)


def write_prepared(path: Path, parts: Parts, overwrite: bool = False) -> None:
    """Write the parts as a folder of prepared shards."""
    require(parts.new_users is None, "prepared shards hold no users outside of training: users:SHARE is for `train`")
    found = parts.side
    more = found.user_features, found.also_seen
    shards = make_shards(parts.train, parts.owner, np.float32, parts.test, None, *more, parts.events is not None)
    with writing(path, Catalogue(parts.train.items, found.items), overwrite) as writer:
        for shard in shards:
            side_of_shard = shard.features, shard.also_seen, shard.days, shard.later
            writer.add(parts.train.users[shard.users], shard.by_user, shard.test, *side_of_shard)
        about: dict[str, object] = {"user_features": list(found.user_names)} if found.user_names else {}
        if parts.events is not None:
            about |= {"events": parts.events.to_dict()}
        if parts.confidence_scale is not None:
            about |= {SCALE: parts.confidence_scale}
        writer.finish(about)
