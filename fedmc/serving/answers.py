"""From a request to an answer: what the model says, and why it cannot. No HTTP here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.given import scaled
from fedmc.data.ratings import Ratings
from fedmc.errors import FedmcError, quoted
from fedmc.model import Model, find_ids
from fedmc.serving import schema
from fedmc.serving.schema import Code
from fedmc.types import Array

Ids = Sequence[int | str]
FEW = 50  # items or pairs of an answer
QUICK = 200_000  # numbers in the factors of all items: a search among them takes about 0.1 ms
VISITOR = 0  # the id of a visitor in the model that is made for the request


class Unanswerable(FedmcError):  # noqa: N818
    """A request that is well-formed, but that this model cannot answer."""

    def __init__(self, message: str, where: str, code: Code = "invalid") -> None:
        super().__init__(message)
        self.where, self.code = where, code


class Served(NamedTuple):
    """A model in use, and how its run read events: the scale of amounts, and whether recent ones count more."""

    model: Model
    hash: str
    name: str
    loaded: float  # seconds since 1970
    scale: str | None = None
    recency: bool = True

    @property
    def of_events(self) -> bool:
        return self.model.settings.make_algorithm().of_events


def recommend(served: Served, ask: schema.Recommend) -> schema.Recommended:
    check_known(served.model.users, [ask.user], "user", ["user"])
    items, ignored = _recommended(served.model, ask.user, ask.n, ask)
    return schema.Recommended(model=served.hash, user=ask.user, items=items, ignored=ignored)


def predict(served: Served, ask: schema.Predict) -> schema.Predicted:
    users, items = [pair.user for pair in ask.pairs], [pair.item for pair in ask.pairs]
    if ask.unknown == "refuse":
        for side, ids in (("user", users), ("item", items)):
            places = [f"pairs[{k}].{side}" for k in range(len(ids))]
            check_known(getattr(served.model, f"{side}s"), ids, side, places)
    found = _predicted(served.model, users, items, ask.interval, ask.unknown)
    return schema.Predicted(
        model=served.hash,
        predictions=[one.model_copy(update={"user": user}) for one, user in zip(found, users, strict=True)],
    )


def fold_in(served: Served, ask: schema.FoldIn) -> schema.FoldedIn:
    model = served.model
    check_known(model.items, ask.predict, "item", [f"predict[{k}]" for k in range(len(ask.predict))])
    columns = find_ids(model.items, [one.item for one in ask.ratings], "item", "prior")
    folded = model.fold_in(_ratings(served, ask.ratings, columns))
    items, ignored = _recommended(folded, VISITOR, ask.n, ask) if ask.n else ([], [])
    lost = [one.item for one, column in zip(ask.ratings, columns.tolist(), strict=True) if column < 0]
    told = _predicted(folded, [VISITOR] * len(ask.predict), ask.predict, ask.interval) if ask.predict else []
    return schema.FoldedIn(model=served.hash, items=items, predictions=told, ignored=[*lost, *ignored])


def similar(served: Served, ask: schema.Similar) -> schema.SimilarItems:
    check_known(served.model.items, [ask.item], "item", ["item"])
    ids, cosines = served.model.similar([ask.item], ask.n)
    return schema.SimilarItems(model=served.hash, item=ask.item, items=_scored(served.model, ids[0], cosines[0]))


def find(served: Served, ask: schema.Find) -> schema.FoundItems:
    ids, titles = served.model.find(ask.text, ask.n)
    found = zip(ids.tolist(), titles.tolist(), strict=True)
    return schema.FoundItems(model=served.hash, items=[schema.Titled(item=item, title=title) for item, title in found])


def is_quick(served: Served, ask: object) -> bool:
    """Whether an answer takes so little work that another thread would take longer to begin."""
    if isinstance(ask, schema.Recommend):
        plain = not (ask.cautious or ask.only or ask.exclude) and ask.n <= FEW
        return plain and served.model.V.size <= QUICK
    return isinstance(ask, schema.Predict) and len(ask.pairs) <= FEW


def check_known(known: Array, ids: Ids, side: str, places: Sequence[str]) -> None:
    """Refuse ids that the model does not know."""
    lost = np.flatnonzero(find_ids(known, ids, side, "prior") < 0) if ids else np.empty(0, np.int64)
    if not len(lost):
        return
    cure = {
        "user": "POST the user's ratings to /v1/fold-in, or predict with unknown=prior",
        "item": "the model knows only items that it was trained on",
    }[side]
    first = int(lost[0])
    code: Code = "unknown_user" if side == "user" else "unknown_item"
    raise Unanswerable(f"the model has no {side} {quoted(ids[first])}: {cure}", places[first], code)


def _recommended(
    model: Model, user: int | str, n: int, ask: schema.Filtered
) -> tuple[list[schema.Scored], list[int | str]]:
    """The best items, and the ids of the filters that the model does not know."""
    only, lost = (None, []) if ask.only is None else _split(model, ask.only)
    if only is not None and not len(only):
        raise Unanswerable("the model has none of the items in only: leave it out, or name others", "only")
    exclude, more = _split(model, ask.exclude)
    ids, scores = model.recommend(
        [user], n, exclude_seen=ask.exclude_seen, cautious=ask.cautious, only=only,
        exclude=exclude if len(exclude) else None,
    )  # fmt: skip
    return _scored(model, ids[0], scores[0]), [*lost, *more]


def _split(model: Model, ids: Ids) -> tuple[Array, list[int | str]]:
    """Those of the ids that are the model's, and the others."""
    if not ids:
        return model.items[:0], []
    columns = find_ids(model.items, ids, "item", "prior")
    lost = [one for one, column in zip(ids, columns.tolist(), strict=True) if column < 0]
    return model.items[columns[columns >= 0]], lost


def _scored(model: Model, ids: Array, scores: Array) -> list[schema.Scored]:
    """Items with scores, without the places that are not filled."""
    there = np.isfinite(scores)
    rows = zip(ids[there].tolist(), scores[there].tolist(), _titles(model, ids[there]), strict=True)
    return [schema.Scored(item=item, score=score, title=title) for item, score, title in rows]


def _titles(model: Model, ids: Array | Ids) -> list[str | None]:
    if model.titles is None:
        return [None] * len(ids)
    return [title or None for title in model.title_of(ids).tolist()]


def _predicted(
    model: Model, users: Ids, items: Ids, level: float | None, unknown: schema.Unknown = "refuse"
) -> list[schema.Prediction]:
    if level is None:
        values, ends = model.predict(users, items, unknown=unknown).tolist(), None
    else:
        values, *ends = (part.tolist() for part in model.interval(users, items, level, unknown=unknown))
    low, high = ends or ([None] * len(items), [None] * len(items))
    rows = zip(items, values, low, high, _titles(model, items), strict=True)
    names = "item", "prediction", "low", "high", "title"
    return [schema.Prediction(**dict(zip(names, row, strict=True))) for row in rows]


def _ratings(served: Served, given: Sequence[schema.Rating], columns: Array) -> Ratings:
    """What a visitor rated or had, of the items that the model knows."""
    known = [(one, column) for one, column in zip(given, columns.tolist(), strict=True) if column >= 0]
    if not known:
        raise Unanswerable("the model has none of these items: send ratings of items that it was trained on", "ratings")
    values = [_value(served, k, one) for k, one in enumerate(given) if columns[k] >= 0]
    kept, places, counts = np.unique([column for _, column in known], return_inverse=True, return_counts=True)
    if not served.of_events and counts.max() > 1:
        twice = served.model.items[kept[np.argmax(counts)]]
        raise Unanswerable(
            f"item {quoted(twice.item())} is rated {counts.max()} times: send one rating of it", "ratings"
        )
    matrix = sparse.csr_array((np.bincount(places, values), np.arange(len(kept)), [0, len(kept)]), (1, len(kept)))
    times = _times(given, [one.time for one, _ in known], places)
    found = Ratings(np.array([VISITOR]), served.model.items[kept], matrix, times if served.recency else None)
    if served.of_events and served.scale is None and not all(value == 1 for value in values):
        raise Unanswerable("the run does not say how amounts count: leave them out", "ratings")
    return scaled(found, served.scale or "none") if served.of_events else found


def _value(served: Served, place: int, one: schema.Rating) -> float:
    where = f"ratings[{place}].rating"
    if not served.of_events:
        if one.rating is None:
            raise Unanswerable("a rating is missing: this model was trained on ratings, send a number", where)
        return one.rating
    if one.rating is not None and one.rating <= 0:
        raise Unanswerable(f"an amount of an event must be above 0, got {one.rating:g}: leave the event out", where)
    return 1.0 if one.rating is None else one.rating


def _times(given: Sequence[schema.Rating], known: Sequence[int | None], places: Array) -> Array | None:
    """The last time of each item; None if none has one."""
    timed = [one.time is not None for one in given]
    if not any(timed):
        return None
    if not all(timed):
        where = f"ratings[{timed.index(False)}].time"
        raise Unanswerable("some ratings have a time and some have none: give it to all or to none", where)
    last = np.zeros(int(places.max()) + 1, np.int64)
    np.maximum.at(last, places, np.array(known, np.int64))
    return last
