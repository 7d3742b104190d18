"""Before training: does a source hold ratings or events, and why?"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedmc.data.datasets import header_of
from fedmc.data.feedback import EventOptions
from fedmc.data.prepare import Plan, load_table
from fedmc.data.prepared import is_prepared, open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columns import Header
from fedmc.data.readers.shapes import WideError
from fedmc.data.readers.storage import StorageError
from fedmc.data.recognition import Understanding, recognise
from fedmc.errors import DataError, quoted

NO_RATINGS = "there is no column of ratings"  # the reader's error says so too, and how to name one


class Understood(NamedTuple):
    """What a source holds, and its ratings, if they could be read as such."""

    what: Understanding
    event_types: tuple[str, ...] = ()
    ratings: Ratings | None = None


def understand(plan: Plan) -> Understood:
    """Read a source as ratings, and tell whether it holds ratings or events.

    A source that cannot be read as ratings, and does not look like events either, is refused with the reader's error.
    """
    if is_prepared(Path(plan.source)):
        return Understood(_of_shards(plan))
    try:
        ratings = load_table(plan._replace(events=None))
    except (WideError, StorageError):
        raise
    except DataError:
        try:
            found = _by_header(plan)
        except DataError:
            found = None
        if found is None or found.what.kind == "ratings" or found.what.reason.startswith(NO_RATINGS):
            raise
        return found
    return _by_header(plan, ratings)


def by_columns(plan: Plan) -> Understanding:
    """What the columns alone say; whatever keeps them from being read, reading the source will say better."""
    try:
        without = plan.wide not in (None, False) or is_prepared(Path(plan.source))  # columns that say what they hold
        return Understanding("ratings", "") if without else _by_header(plan).what
    except StorageError:
        raise
    except DataError:
        return Understanding("ratings", "")


def reason_of(options: EventOptions, columns: Understanding) -> str:
    """What events that a user names as such are taken for: what the options say, else what the columns do."""
    if options.min_rating is not None:
        return f"ratings of at least {options.min_rating:g}"
    amounts = "" if options.confidence is None else f"amounts in the column {quoted(options.confidence)}"
    if options.weights:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in options.weights.items())
        return f"event types {weights}" + (amounts and f"; {amounts}")
    return amounts or (columns.reason if columns.kind == "events" and columns.confidence is None else "")


def _of_shards(plan: Plan) -> Understanding:
    if open_prepared(plan.source).events is None:
        return Understanding("ratings", "the shards were prepared as ratings")
    return Understanding("events", "the shards were prepared as events")


def _by_header(plan: Plan, ratings: Ratings | None = None) -> Understood:
    columns = plan.columns or ()
    if plan.wide not in (None, False):
        return Understood(recognise((), ratings), (), ratings)
    header = Header(columns) if len(columns) == 2 else header_of(plan.source, plan.query)
    column = columns[2] if len(columns) > 2 and columns[2] else None
    what = recognise(header.names, ratings, column=column, event_types=header.event_types)
    return Understood(what, header.event_types, ratings)
