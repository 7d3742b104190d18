"""Side information: features of users, a table of items, and events without a rating, aligned with the ratings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from fedmc.data import catalogue as catalogues
from fedmc.data import events, features
from fedmc.data.catalogue import Catalogue
from fedmc.data.events import Events
from fedmc.data.feature_rows import Features, What
from fedmc.data.features import Source
from fedmc.data.ids import places
from fedmc.data.partition import Federation, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.readers.tables import Table
from fedmc.errors import DataError, require
from fedmc.types import Array

UNUSED = "other columns are not used for training, which takes preset bayes"


class Sources(NamedTuple):
    """Where side information comes from: files or DataFrames."""

    user_features: Source | None = None
    items: Source | None = None
    also_seen: Source | None = None
    categorical: tuple[str, ...] = ()  # columns of numbers that are categories
    titles_only: bool = False  # of the table of items: the model does not use features

    @property
    def given(self) -> list[str]:
        """What is given that a model can learn from, in words."""
        named = {
            "user features": self.user_features,
            "item features": None if self.titles_only else self.items,
            "events without a rating": self.also_seen,
            "columns of categories": self.categorical or None,
        }
        return [name for name, source in named.items() if source is not None]


class Tables(NamedTuple):
    """Side information as it was read, with the ids of its tables."""

    users: Features | None = None
    items: Features | None = None
    events: Events | None = None
    notes: tuple[str, ...] = ()
    titles_only: bool = False  # of the items


class Side(NamedTuple):
    """Side information with a row for each user or item of the ratings."""

    user_features: Array | None = None
    user_names: tuple[str, ...] = ()  # of these features
    item_features: Array | None = None
    items: Features | None = None  # the table that they come from
    also_seen: sparse.csr_array | None = None
    notes: tuple[str, ...] = ()  # what was read and what was left out


def read(sources: Sources, times: bool) -> Tables:
    """Read what is given; `times`: the events need their times."""
    user_table = None if sources.user_features is None else features.open_table(sources.user_features, "user")
    item_table = None if sources.items is None else features.open_table(sources.items, "item")
    opened = [table for table in (user_table, item_table) if table is not None]
    if sources.categorical:
        require(bool(opened), "columns of categories are those of user features or items: give a table", DataError)
        features.check_columns(sources.categorical, *opened)

    def encoded(table: Table | None, what: What) -> Features | None:
        if table is None:
            return None
        if what == "item" and sources.titles_only:
            return features.only_titles(table)
        names = {column.name for column in table.columns}
        return features.encode(table, what, [name for name in sources.categorical if name in names])

    seen = None if sources.also_seen is None else events.read_pairs(sources.also_seen, times)
    return Tables(encoded(user_table, "user"), encoded(item_table, "item"), seen, (), sources.titles_only)


def with_catalogue(tables: Tables, catalogue: Catalogue) -> Tables:
    """The tables with the catalogue's own features, or without the rows of items outside of the catalogue."""
    if tables.items is None:
        return tables._replace(items=catalogue.features)
    if tables.titles_only:
        return _titles(tables, catalogue.items)
    twice = "the catalogue has a table of items already: leave out the other one"
    require(catalogue.features is None, twice, DataError)
    inside = tables.items.within(catalogue.items)
    outside = len(tables.items) - len(inside)
    notes = (f"items: {outside:,} rows of items outside of the catalogue are left out",) if outside else ()
    return tables._replace(items=inside, notes=(*tables.notes, *notes))


def with_all_items(ratings: Ratings, tables: Tables) -> tuple[Ratings, Tables]:
    """The ratings with a column for each item of the table too, in the order of all ids."""
    if tables.items is None:
        return ratings, tables
    if tables.titles_only:
        return ratings, _titles(tables, ratings.items)
    catalogue = Catalogue(ratings.items).with_table(tables.items)
    return catalogues.align(ratings, catalogue)[0], tables._replace(items=catalogue.features)


def titled(federation: Federation, sources: Sources) -> Federation:
    """Clients that were prepared before, with the titles of a table of items if there is one."""
    if sources.items is None:
        return federation
    tables = _titles(read(sources._replace(titles_only=True), times=False), federation.items)
    return federation._replace(item_table=tables.items, notes=(*federation.notes, *tables.notes))


def _titles(tables: Tables, items: Array) -> Tables:
    """The table of titles with the rows of these items alone: the model has no others."""
    assert tables.items is not None
    table = tables.items.like(items)
    features.aligned(table, items, "item")  # refuses a table of other items
    inside = table.within(items)
    known = sum(title != "" for title in inside.titles or ())
    told = f"titles of {known:,} of {len(items):,} items" if known else "no titles (a column called title or name)"
    return tables._replace(items=inside, notes=(*tables.notes, f"items: {told}; {UNUSED}"))


def side_of(tables: Tables, ratings: Ratings, latest: Array | None = None) -> Side:
    """The side information of these ratings; with `latest`, without events after that time of each user."""
    notes = list(tables.notes)
    of_users = of_items = pattern = None
    if tables.users is not None:
        of_users, found = features.aligned(tables.users, ratings.users, "user")
        have = f"{found:,} of {len(ratings.users):,} users have a row"
        notes += _told("user features", tables.users, have)
    if tables.items is not None and not tables.titles_only:
        rated = np.bincount(ratings.matrix.indices, minlength=len(ratings.items)) > 0
        _, found = features.aligned(tables.items, ratings.items[rated], "item")
        new = int((~rated[places(ratings.items, tables.items.ids)]).sum())
        have = f"{found:,} of {int(rated.sum()):,} rated items have a row, {new:,} without ratings"
        notes += _told("items", tables.items, have)
        of_items = features.aligned(tables.items, ratings.items, "item").values if tables.items.names else None
    if tables.events is not None:
        pattern, unknown, late = events.known_pairs(tables.events, ratings, latest)
        out = {"of unknown users or items": unknown, "later than the training ratings": late}
        left = ", ".join(f"{count:,} {why}" for why, count in out.items() if count)
        total = f"also seen: {len(tables.events.rows):,} events, {pattern.nnz:,} pairs of a known user and item"
        notes.append(f"{total}; left out: {left}" if left else total)
    names = tables.users.names if tables.users is not None else ()
    return Side(of_users, names, of_items, tables.items, pattern, tuple(notes))


def side_of_ratings(sources: Sources, ratings: Ratings) -> tuple[Ratings, Side]:
    """The ratings, with a column for each item of the table too, and their side information."""
    ratings, tables = with_all_items(ratings, read(sources, times=False))
    return ratings, side_of(tables, ratings)


def federated(
    train: Ratings,
    owner: Array,
    dtype: DTypeLike,
    test: Ratings | None,
    validation: Ratings | None,
    side: Side,
    report: str | None = None,
    events: bool = False,
) -> Federation:
    """Simulated clients with their side information."""
    shards = make_shards(train, owner, dtype, test, validation, side.user_features, side.also_seen, events)
    about = side.item_features, side.notes, side.items, side.user_names
    return Federation(shards, train.users, train.items, report, *about)


def _told(name: str, table: Features, have: str) -> list[str]:
    """What was read, and what was left out."""
    left = [f"{name}: left out {'; '.join(table.notes)}"] if table.notes else []
    return [f"{name}: {table.summary()}; {have}", *left]
