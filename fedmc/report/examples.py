"""Example recommendations: of made-up visitors, who are folded in, and of users who agreed to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.data.ratings import Ratings
from fedmc.errors import FedmcError, InputError
from fedmc.model import Model, find_ids
from fedmc.report import html
from fedmc.types import Array

VISITORS, GIVEN, SHOWN = 3, 3, 5  # made-up visitors, what each one likes, and recommendations
POPULAR, SEEDS = 200, 50  # the most popular items that visitors may like, and that the first of them is one of
MADE_UP = "These visitors are made up. Their lists follow from the model; nothing about a user is shown."
UNUSUAL = "A user is shown only if that was asked for (`fedmc report --example-user`): make sure that they agreed."


class Example(NamedTuple):
    """A list of recommendations: for whom, item ids, and predicted ratings (of events: no ratings)."""

    who: str
    items: Array
    scores: Array


def section(model: Model | None, unit: str, users: Sequence[str] = ()) -> list[str]:
    """Example recommendations by title; nothing if the model is not there, or knows too few items."""
    if model is None:
        return []
    try:
        made_up = visitors(model, unit)
    except FedmcError:  # an item without factors, or an algorithm that folds in nobody
        made_up = []
    real = [_of_user(model, user) for user in users]
    if not made_up and not real:
        return []
    parts = [_shown(model, one, unit) for one in (*made_up, *real)]
    notes = ([MADE_UP] if made_up else []) + ([UNUSUAL] if real else [])
    return [html.section("Example recommendations", html.cards(parts), *map(html.paragraph, notes))]


def visitors(model: Model, unit: str) -> list[Example]:
    """Made-up visitors with different tastes: each likes a popular item, and the popular ones most similar to it."""
    counts = np.bincount(model.seen.indices, minlength=len(model.items))
    popular = np.argsort(-counts, kind="stable")[:POPULAR]
    popular = popular[counts[popular] > 0]
    if len(popular) < GIVEN + 1 or (model.rating_range is None and not _of_events(model)):
        return []
    try:
        liked = _tastes(model, popular)
    except InputError:  # a model of biases alone, as of a small privacy budget, knows no tastes
        liked = [popular[:GIVEN]]
    names = [f"visitor {k}" for k in range(1, len(liked) + 1)]
    highest = 1.0 if _of_events(model) or model.rating_range is None else model.rating_range[1]
    columns = np.concatenate(liked)
    given = Ratings.from_arrays(np.repeat(names, GIVEN), model.items[columns], np.full(len(columns), highest))
    items, scores = model.fold_in(given).recommend(names, min(SHOWN, len(model.items) - GIVEN))
    told = "has" if _of_events(model) else f"gave {highest:g} {unit} to"
    return [
        Example(f"A visitor who {told} {_and(names_of(model, model.items[some]))}", *found)
        for some, found in zip(liked, zip(items, scores, strict=True), strict=True)
    ]


def names_of(model: Model, items: Array) -> list[str]:
    """The titles of items, or else their ids."""
    titles = model.title_of(items).tolist()
    return [title or f"item {item}" for title, item in zip(titles, items.tolist(), strict=True)]


def _tastes(model: Model, popular: Array) -> list[Array]:
    """For each visitor the items that it likes; the first of each is unlike those of the visitors before."""
    cosines = np.array([_cosines(model, column)[popular] for column in popular[:SEEDS]])
    seeds, found = [0], list[Array]()
    while len(seeds) < min(VISITORS, len(cosines)):
        nearest = cosines[seeds][:, : len(cosines)].max(axis=0)
        nearest[seeds] = np.inf
        seeds.append(int(np.argmin(nearest)))
    taken: set[int] = set()
    for seed in seeds:
        order = [seed, *(place for place in np.argsort(-cosines[seed], kind="stable").tolist() if place != seed)]
        mine = [place for place in order if place not in taken][:GIVEN]
        if len(mine) == GIVEN:
            taken.update(mine)
            found.append(popular[mine])
    return found


def _cosines(model: Model, column: int) -> Array:
    """The similarity of an item to all items, by their columns."""
    ids, values = model.similar(model.items[column], len(model.items))
    found = np.full(len(model.items), -1.0)
    there = ~np.isnan(values) & np.isfinite(values)
    found[find_ids(model.items, ids[there], "item")] = values[there]
    return found


def _of_user(model: Model, user: str) -> Example:
    (ids,), (scores,) = model.recommend(np.array([user]), min(SHOWN, len(model.items)))
    return Example(f"User {user}, shown because it was asked for", ids, scores)


def _shown(model: Model, one: Example, unit: str) -> str:
    there = ~np.isnan(one.scores)
    texts = names_of(model, one.items[there])
    if not _of_events(model):
        texts = [f"{text}: {score:.1f} {unit}" for text, score in zip(texts, one.scores[there].tolist(), strict=True)]
    return html.heading(f"{one.who}") + html.ordered(texts)


def _of_events(model: Model) -> bool:
    return model.settings.make_algorithm().of_events


def _and(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
