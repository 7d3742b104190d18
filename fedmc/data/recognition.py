"""What people bring: ratings, or events such as purchases, clicks and plays. Told before training, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedmc.data.ratings import Ratings
from fedmc.data.readers.usual import (
    COLUMN_NAMES,
    EVENT_NAMES,
    RATING_NAMES,
    TIME_NAMES,
    find_usual,
    is_usual,
)
from fedmc.errors import DataError, quoted, require
from fedmc.types import Array

MAX_STARS = 10  # whole numbers up to this are taken for ratings
SHOWN = 5  # event types that a reason names
_DEEDS = (
    "purchase|click|play|view|listen|visit|order|download|stream|checkin|watch|read|share|like|favou?rite|bookmark"
    "|interaction|event|sale|transaction"
)
_AMOUNT = re.compile(
    rf"(num|n|number|numberof|total|times)?({_DEEDS}|buy)(e?s|e?d)?"
    rf"|(num|n|number|numberof|total)?({_DEEDS}|buy)(count|counts|time|frequency)"
    rf"|(hours|minutes)?({_DEEDS})(e?d)?(hours|minutes)|(hours|minutes)({_DEEDS})(e?d)?"
    "|hours?|minutes?|dwelltime|count|counts|quantity|quantities|qty|units|frequency|freq|weight|confidence"
    "|timeslistened|timesplayed|occurrences"
)


class Understanding(NamedTuple):
    """What a table holds, and why; for events, the columns that may serve as amount and as event type."""

    kind: Literal["ratings", "events"]
    reason: str
    confidence: str | None = None
    event: str | None = None


def recognise(
    names: Sequence[str],
    ratings: Ratings | None = None,
    *,
    column: str | None = None,
    event_types: Sequence[str] = (),
) -> Understanding:
    """Ratings or events, from the names of the columns (`readers.header`) and, if they could be read, the values.

    `column` is the column that the caller names for the ratings; None: the one with a usual name. A column with the
    name of a rating is one, unless all its values are equal. Arrays have no names: pass (), and the values tell.
    """
    if column is None and _without_values(names) is not None:
        return Understanding("events", str(_without_values(names)))
    constant = None if ratings is None else constant_value(ratings)
    if constant is not None:
        return Understanding("events", f"every value is {constant:g}", _amount_column(names, column))
    named = find_usual(names, RATING_NAMES) if column is None else column
    if named is not None and not is_amount_name(named):
        by_name = is_usual(named, RATING_NAMES)
        return Understanding("ratings", _called(named, ratings)) if by_name else _by_values(ratings, named)
    amount, event = _amount_column(names, column), find_usual(names, EVENT_NAMES)
    value = find_usual(names, COLUMN_NAMES["rating"])
    if event is not None and column is None:
        types = ", ".join(event_types[:SHOWN]) + (", ..." if len(event_types) > SHOWN else "")
        with_types = f" with {types}" if types else ""
        return Understanding("events", f"there is an event column {quoted(event)}{with_types}", amount, event)
    if amount is not None and (value is None or column is not None):
        return Understanding("events", f"the column is called {quoted(amount)}", amount)
    if ratings is None and value is None:
        lacking = f"there is no column of ratings among {', '.join(names) or 'no names'}"
        return Understanding("events", f"{lacking}: each row counts 1; --confidence COLUMN takes another amount")
    return _by_values(ratings, value)


def check_explicit(ratings: Ratings) -> None:
    """Refuse ratings that are all equal: a model of ratings would learn nothing, with an error of 0.

    For all ratings together; those of one client may be equal.
    """
    constant = constant_value(ratings)
    require(
        constant is None,
        lambda: (
            f"every rating is {constant:g}: these are events, not ratings; use feedback='implicit' "
            "(--feedback implicit)"
        ),
        DataError,
    )


def constant_value(ratings: Ratings) -> float | None:
    """The value of all ratings, if there are two at least and all are equal."""
    values = ratings.matrix.data
    return float(values[0]) if len(values) > 1 and bool((values == values[0]).all()) else None


def is_amount_name(name: str) -> bool:
    """Whether a column's name says that it counts or measures events: clicks, hours, quantity, times_listened."""
    return _AMOUNT.fullmatch(re.sub(r"[\s_.-]", "", name.lower())) is not None


def _amount_column(names: Sequence[str], column: str | None) -> str | None:
    if column is not None:
        return column if is_amount_name(column) else None
    others = (name for name in names if not is_usual(name, EVENT_NAMES))
    return next((name for name in others if is_amount_name(name)), None)


def _without_values(names: Sequence[str]) -> str | None:
    """That there is nothing but users, items and times, in words; None if there is more, or if nothing is known."""
    if len(names) == 2:
        return "two columns: user and item"
    timed = len(names) == 3 and find_usual(names, TIME_NAMES) is not None
    rated = find_usual(names, COLUMN_NAMES["rating"]) is not None
    return "three columns: user, item and time" if timed and not rated else None


def _called(name: str, ratings: Ratings | None) -> str:
    between = "" if ratings is None else f", with {_span(ratings.matrix.data)}"
    return f"the column is called {quoted(name)}{between}"


def _by_values(ratings: Ratings | None, column: str | None) -> Understanding:
    """Counts are whole numbers from 1 on, most of them small and some large; anything else is a rating."""
    if ratings is None:
        return Understanding("ratings", f"the column {quoted(column)} is read as the rating")
    values = ratings.matrix.data
    if not _are_counts(values):
        return Understanding("ratings", _span(values))
    low, high = values.min(), values.max()
    share = f"{np.mean(values == low):.0%}".replace("%", " %")
    return Understanding("events", f"counts: whole numbers from {low:g} to {high:g}, {share} of them {low:g}", column)


def _are_counts(values: Array) -> bool:
    """Whole numbers from 1 on, the largest above the usual stars, and half of them at most a quarter of it."""
    whole = bool((values >= 1).all()) and bool((values == np.floor(values)).all())
    return whole and float(values.max()) > MAX_STARS and float(np.median(values)) <= float(values.max()) / 4


def _span(values: Array) -> str:
    return f"values from {values.min():g} to {values.max():g}" if len(values) else "no values"
