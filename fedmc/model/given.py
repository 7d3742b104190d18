"""What is known at home of a user and an item besides the model, from the tables that the model was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmc.data.events import Events
from fedmc.data.feature_rows import Features
from fedmc.data.features import Source
from fedmc.data.ids import as_ids, places
from fedmc.data.prepared import Prepared
from fedmc.data.prepared_events import SCALE
from fedmc.data.ratings import Ratings
from fedmc.data.side import Sources, Tables, read
from fedmc.errors import InputError
from fedmc.model import titles
from fedmc.model.explain import Effect, Id, Names
from fedmc.model.model import Model
from fedmc.types import Array


class Given(NamedTuple):
    """The keyword arguments of `Model.explain`."""

    ratings: Ratings | None = None
    also_seen: Array | None = None
    user_features: Array | None = None
    item_features: Array | None = None
    names: Names | None = None


def explain_from(
    model: Model,
    user: Id,
    item: Id,
    ratings: Ratings | None = None,
    user_features: Source | None = None,
    items: Source | None = None,
    also_seen: Source | None = None,
) -> list[Effect]:
    """`Model.explain` with what these sources say, which must be those of training."""
    tables = read(Sources(user_features, items, also_seen), times=False)
    return explain_with(model, user, item, ratings, tables)


def explain_with(model: Model, user: Id, item: Id, ratings: Ratings | None, tables: Tables) -> list[Effect]:
    """`Model.explain` with the rows of these tables, which must be those of training: they are standardised alike."""
    user_features = None if tables.users is None else row_of(tables.users, user, "user")
    item_features = None if tables.items is None or not tables.items.names else row_of(tables.items, item, "item")
    also_seen = None if tables.events is None else seen_by(tables.events, user, model.items)
    names = Names(*(() if table is None else table.names for table in (tables.users, tables.items)))
    given = Given(ratings, also_seen, user_features, item_features, names)
    return model.explain(user, item, **given._asdict())


def explain_at_home(model: Model, user: Id, item: Id, prepared: Prepared) -> list[Effect]:
    """`Model.explain` with what prepared shards hold of the user and the item."""
    wanted = as_ids([user], "user")
    rows = [int(places(ids, wanted)[0]) for ids in prepared.ids]
    client = next((client for client, row in enumerate(rows) if row >= 0), None)
    if client is None:
        raise InputError(f"the prepared shards have no ratings of user {user}")
    if model.settings.make_algorithm().of_events:
        return model.explain(user, item, ratings=_events_of(prepared, client))
    known = model.bayesian("an explanation")
    shard, row, table = prepared.shards[client], rows[client], prepared.catalogue.features
    items = prepared.catalogue.items
    given = Given(
        Ratings(prepared.ids[client], items, shard.by_user),
        None if shard.also_seen is None else items[shard.also_seen[[row]].indices],
        None if shard.features is None or known.home is None else shard.features[row],
        None if table is None or known.item_weights is None else row_of(table, item, "item"),
        Names(prepared.user_feature_names, () if table is None else table.names),
    )
    return model.explain(user, item, **given._asdict())


def _events_of(prepared: Prepared, client: int) -> Ratings:
    """A client's events, 1 each if the shards hold amounts, in their order if it is known: as times that rise."""
    shard = prepared.shards[client]
    times = None if shard.later is None else -shard.later.astype(np.int64)
    matrix = shard.by_user if SCALE in prepared.about else shard.pattern()
    return Ratings(prepared.ids[client], prepared.catalogue.items, matrix, times)


def titled(model: Model, table: Features | None) -> Model:
    """The model with the titles of a table; where it has none, those of before stay."""
    return replace(model, titles=titles.of_items(model.items, table, (model.items, model.titles)))


def row_of(table: Features, wanted: Id, role: str) -> Array:
    """The features of a user or an item, zeros (the means) if the table lacks it."""
    place = int(places(table.ids, as_ids([wanted], role))[0])
    return table.values[place] if place >= 0 else np.zeros(len(table.names))


def seen_by(events: Events, user: Id, items: Array) -> Array:
    """The known items that a user saw."""
    place = int(places(events.users, as_ids([user], "user"))[0])
    found = places(items, events.items)[np.unique(events.columns[events.rows == place])]
    known: Array = items[found[found >= 0]]
    return known
