"""`fedmc explain`: what moved a prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmc.cli import options
from fedmc.cli.as_trained import MATRIX, as_trained, scale_of, settings_beside
from fedmc.cli.display import print_table
from fedmc.cli.echo import tell
from fedmc.cli.groups import Form, Side
from fedmc.cli.model import AsJson, ModelPath, check_explained, of_events
from fedmc.cli.parsing import parse_names
from fedmc.cli.runs import model_path
from fedmc.cli.titles import item_ids, with_titles
from fedmc.data.datasets import load_source
from fedmc.data.feedback import EventOptions, default_confidence
from fedmc.data.given import scaled
from fedmc.data.loading import ReadOptions
from fedmc.data.prepared import is_prepared, open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.side import Sources, read
from fedmc.errors import require
from fedmc.model import Model, load
from fedmc.model.explain import Effect
from fedmc.model.given import explain_at_home, explain_with, titled

User = Annotated[str, typer.Argument(help="A user id.")]
Item = Annotated[str, typer.Argument(help="An item id, or words of its title.")]
Number = Annotated[int, typer.Option("-n", "--number", help="Number of effects to show; --json prints all.")]
TEXTS = {
    "mean": "the mean of all ratings",
    "item": "{}, for anyone",
    "item feature": "feature of the item: {}",
    "user feature": "feature of the user: {}",
    "seen": "rated or saw {}",
    "rating": "the rating of {}",
    "ratings": "all ratings of the user (--ratings tells them apart)",
    "rest": "the rest, which model and given tables do not tell",
}
TEXTS_OF_EVENTS = {
    "seen": "had {}",
    "rest": "how much each event counts, which the model does not hold (--ratings SOURCE, as in training, tells it)",
}
OTHERS = {
    "item feature": "{:,} other features of the item",
    "user feature": "{:,} other features of the user",
    "seen": "{:,} other items that the user rated, saw or had",
    "rating": "{:,} other ratings",
}  # of the kinds that occur more than once
OF_ITEMS = ("item", "seen", "rating")  # the kinds whose name is an item's id


def explain(
    model: ModelPath,
    user: User,
    item: Item,
    ratings: Annotated[
        str | None,
        typer.Option(
            help="The ratings or events that the model was trained on, which it does not hold, with or without those "
            "held out: whatever `train` takes. With them, the effect of each rating is told; that of events is exact.",
            metavar="SOURCE",
        ),
    ] = None,
    number: Number = 10,
    columns: options.Columns = None,
    duplicates: options.Duplicates = "refuse",
    as_json: AsJson = False,
    *,
    form: Form,
    side: Side,
) -> None:
    """Show what moved a prediction: ratings, items that the user rated, saw or had, and features.

    For Bayesian models and models of events. The effects are in units of the ratings, or of the scores of events, and
    add up to the prediction. Give the tables that the model was trained on.
    """
    fitted = load(model_path(model))
    check_explained(fitted)
    sources = Sources(side.user_features, side.items, side.also_seen, side.names)
    if ratings is not None and is_prepared(Path(ratings)):
        require(not sources.given, "prepared shards hold their features and events: leave out the other tables")
        prepared = open_prepared(ratings)
        fitted = titled(fitted, prepared.catalogue.features)
        (item,) = item_ids(fitted, [item])
        found = explain_at_home(fitted, user, item, prepared)
    else:
        read_as: ReadOptions = {"duplicates": duplicates, "wide": form.chosen()}
        rated = None if ratings is None else _given(fitted, model, ratings, parse_names(columns), read_as)
        tables = read(sources, times=False)
        fitted = with_titles(fitted, None, model) if tables.items is None else titled(fitted, tables.items)
        (item,) = item_ids(fitted, [item])
        found = explain_with(fitted, user, item, rated, tables)
    show(fitted, (user, item), found, None if as_json else number)


def _given(fitted: Model, model: Path, source: str, columns: tuple[str, ...] | None, read_as: ReadOptions) -> Ratings:
    """The ratings of training, or its events as confidences, read as in training."""
    if not of_events(fitted):
        found = load_source(source, columns, **read_as)
        tell(found.notes)
        return found
    settings = settings_beside(model)
    column = settings.get("confidence")
    given = EventOptions(None if column is None else str(column))
    read_as["events"] = as_trained(given, settings, source, MATRIX if read_as["wide"] else columns)
    amounts = load_source(source, columns, **read_as)
    tell(amounts.notes)
    return scaled(amounts, scale_of(settings) or default_confidence(amounts.matrix.data))


def show(fitted: Model, pair: tuple[str, str], found: Sequence[Effect], number: int | None) -> None:
    """Print the effects: so many as a table, or all as JSON."""
    total = sum(one.effect for one in found)
    prediction = float(total if fitted.rating_range is None else np.clip(total, *fitted.rating_range))
    if number is None:
        record = {"user": pair[0], "item": pair[1], **_title(fitted, pair[1])}
        effects = [one._asdict() | (_title(fitted, one.name) if one.kind in OF_ITEMS else {}) for one in found]
        typer.echo(json.dumps(record | {"prediction": prediction, "sum": total, "effects": effects}))
        return
    require(number >= 1, f"--number must be at least 1, got {number}")
    texts = TEXTS | (TEXTS_OF_EVENTS if of_events(fitted) else {})
    rows = [(f"{one.effect:+.4f}", _text(one, fitted, texts)) for one in found[:number]]
    rows += _others(found[number:], fitted, texts)
    clipped = "" if prediction == total else f", clipped to {prediction:.4f}"
    title = f"prediction of user {pair[0]} for {_named(pair[1], fitted)}"
    print_table(title, ("effect", "of"), [*rows, (f"{total:.4f}", f"prediction{clipped}")], bold=len(rows))


def _others(found: Sequence[Effect], fitted: Model, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The smaller effects, added up by kind."""
    kinds: dict[str, list[Effect]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    said = {
        kind: _text(some[0], fitted, texts) if len(some) == 1 else OTHERS[kind].format(len(some))
        for kind, some in kinds.items()
    }
    return [(f"{sum(one.effect for one in some):+.4f}", said[kind]) for kind, some in kinds.items()]


def _text(one: Effect, fitted: Model, texts: Mapping[str, str]) -> str:
    return texts[one.kind].format(_named(one.name, fitted) if one.kind in OF_ITEMS else one.name)


def _named(item: object, fitted: Model) -> str:
    """An item with its title, if it is known."""
    title = fitted.title_of(item)
    return f"item {item} ({title})" if title else f"item {item}"


def _title(fitted: Model, item: object) -> dict[str, object]:
    """The title of an item for JSON, if the model has titles."""
    return {} if fitted.titles is None else {"title": fitted.title_of(item)}
