"""How a run read its events, from its settings.toml, so that the events to test it on are read alike."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmc.cli.echo import echo
from fedmc.data.datasets import header_of
from fedmc.data.feedback import EventOptions, parse_weights
from fedmc.data.readers.usual import COLUMN_NAMES, EVENT_NAMES, find_usual
from fedmc.errors import DataError, InputError

THIRD = "column 3"  # of a text file without a header
MATRIX = ("user", "item", "rating")  # what the rows of a wide matrix become


def settings_beside(model: Path) -> Mapping[str, object]:
    """The settings.toml of a run folder, or beside a model file; nothing if there is none."""
    path = model / "settings.toml" if model.is_dir() else model.with_name("settings.toml")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def scale_of(settings: Mapping[str, object]) -> str | None:
    """How amounts became confidences in training; None if the settings do not tell."""
    found = settings.get("confidence_scale")
    return None if found is None else str(found)


def recency_of(settings: Mapping[str, object]) -> bool:
    """Whether recent events counted more in training, if it knew their order."""
    return str(settings.get("recency", True)) == str(True)


def as_trained(
    given: EventOptions, settings: Mapping[str, object], source: str, columns: Sequence[str] | None
) -> EventOptions:
    """The given options or, if none says which rows count, those of training for the columns that the source has.

    What is taken from training is told on stderr. A table of pairs alone has no types and no ratings: each row counts.
    """
    if given.weights or given.event is not None or given.min_rating is not None:
        return given
    try:
        weights, least = parse_weights(str(settings["weights"])) if "weights" in settings else {}, _least(settings)
        names = () if len(columns or ()) == 2 and not weights else header_of(source).names
    except (DataError, InputError):
        return given
    event = None if "event" not in settings else str(settings["event"])
    if weights and (event in names if event is not None else find_usual(names, EVENT_NAMES) is not None):
        column = "" if event is None else f"--event {event} "
        echo(f"events are read as in training: {column}--event-weights {settings['weights']}", err=True)
        return EventOptions(given.confidence, event, weights)
    rated = len(columns or ()) > 2 or (not columns and (not names or _rated(names)))
    if least is not None and given.confidence is None and rated:
        echo(f"events are read as in training: --min-rating {least:g}", err=True)
        return EventOptions(min_rating=least)
    return given


def _rated(names: Sequence[str]) -> bool:
    return THIRD in names or find_usual(names, COLUMN_NAMES["rating"]) is not None


def _least(settings: Mapping[str, object]) -> float | None:
    return float(str(settings["min_rating"])) if "min_rating" in settings else None
