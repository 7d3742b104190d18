"""Events such as purchases, clicks and plays as amounts: how often, or how much, each user had each item.

The result is a `Ratings` whose stored values are amounts above 0: repeated events of a pair add up. The amount of one
event is, times the weight of its type if types have weights,

- the value of the column `confidence`, such as hours or a quantity; an event with 0 is left out;
- 1 if only rows of at least `min_rating` are events;
- the rating if the table has one (and no event types); 1 otherwise.

Amounts become the confidence of a model by `confidence`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data.builder import Batch, Duplicates, Ids
from fedmc.data.cores import k_core
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columns import ColumnSelection, Need
from fedmc.errors import DataError, InputError, quoted, require, unknown
from fedmc.types import Array

SHAPES = ("none", "log", "log:A,E", "linear:A")
SHOWN = 5  # event types that a note names


@dataclass(frozen=True)
class EventOptions:
    """How a table is read as events."""

    confidence: str | None = None  # the column with the amount of each event
    event: str | None = None  # the column with the type of each event; with weights alone, one with a usual name
    weights: Mapping[str, float] = field(default_factory=dict)  # of event types; those without one are left out
    min_events: int = 1  # users and items with fewer pairs are left out, repeatedly (k-core); a repeat is no new pair
    min_rating: float | None = None  # only rows of at least this rating are events, and each counts 1
    recency: bool = True  # read the times too, if there are any: a user's recent events count more in predictions

    def __post_init__(self) -> None:
        check_weights(self.weights)
        object.__setattr__(self, "weights", {name: float(weight) for name, weight in self.weights.items()})
        require(
            self.event is None or bool(self.weights),
            f"event={quoted(self.event)} needs the weights of its types: weights='view=1,cart=3,purchase=5'",
        )
        whole = isinstance(self.min_events, int | np.integer) and self.min_events >= 1
        require(whole, f"min_events must be a whole number of at least 1, got {quoted(self.min_events)}")
        finite = self.min_rating is None or math.isfinite(self.min_rating)
        require(finite, f"min_rating must be a finite number, got {self.min_rating}: leave it out to keep all rows")
        require(
            self.min_rating is None or self.confidence is None,
            f"with min_rating={self.min_rating} each row counts 1, so confidence={quoted(self.confidence)} has no "
            "effect: leave one of them out",
        )

    def selection(
        self, columns: Sequence[str] | None = None, times: bool = False, group: str | None = None
    ) -> ColumnSelection:
        """The columns to read."""
        typed = bool(self.weights)
        needed = self.min_rating is not None or self.confidence is not None
        rating: Need = "number" if needed else "none" if typed else "optional"
        named = tuple(columns) if columns else None
        return ColumnSelection(named, times, group, rating, self.confidence, typed, self.event, self.recency)

    def check_without_columns(self, what: str) -> None:
        """Refuse names of columns where there are none; `rating` may be named, it is all that there is."""
        named = {"confidence": None if self.confidence == "rating" else self.confidence, "event": self.event}
        named["weights"] = ",".join(self.weights) or None
        for option, value in named.items():
            cure = "pass a table with that column, or leave it out"
            require(
                value is None, f"{option}={quoted(value)} is about a column, and {what} has none: {cure}", DataError
            )

    def to_dict(self) -> dict[str, object]:
        """For JSON; `EventOptions(**content)` is the way back."""
        return asdict(self)


def parse_weights(text: str) -> dict[str, float]:
    """Weights of event types from words such as `view=1,cart=3,purchase=5`."""
    example = "write TYPE=WEIGHT, such as view=1,cart=3,purchase=5"
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.rpartition("="))
        require(sign == "=" and name != "", f"{quoted(part.strip())} is not the weight of an event type: {example}")
        require(name not in found, f"event type {quoted(name)} has two weights in {quoted(text)}: keep one")
        try:
            found[name] = float(number)
        except ValueError:
            raise InputError(
                f"the weight of {quoted(name)} must be a number, got {quoted(number)}: {example}"
            ) from None
    check_weights(found)
    return found


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights that are not finite and above 0."""
    for name, weight in weights.items():
        require(
            math.isfinite(weight) and weight > 0,
            f"the weight of event type {quoted(name)} must be finite and above 0, got {weight:g}: leave the type out "
            "to drop its events",
        )


@dataclass
class _Tally:
    """What was left out."""

    rows: int = 0
    kept: int = 0
    zero: int = 0
    low: int = 0
    types: Counter[str] = field(default_factory=Counter)

    def notes(self, options: EventOptions) -> list[str]:
        told = []
        if self.low:
            told.append(
                f"{self.low:,} of {self.rows:,} rows are left out: their rating is below {options.min_rating:g}"
            )
        others = [(name or "(empty)", count) for name, count in self.types.most_common() if name not in options.weights]
        if others:
            listed = ", ".join(f"{quoted(name)} {count:,}" for name, count in others[:SHOWN])
            more = ", ..." if len(others) > SHOWN else ""
            total = sum(count for _, count in others)
            told.append(f"{total:,} of {self.rows:,} rows are left out: their type has no weight ({listed}{more})")
        absent = ", ".join(quoted(name) for name in options.weights if self.rows and name not in self.types)
        if absent:
            told.append(f"no row has the event type {absent}, which has a weight")
        if self.zero:
            told.append(f"{self.zero:,} of {self.rows:,} rows are left out: their amount is 0")
        return [f"events: {note}" for note in told]


class _Chosen(NamedTuple):
    """The events of a batch: which rows, and the amounts of these."""

    keep: Array
    amounts: Array


def events_from(batches: Iterable[Batch], options: EventOptions, duplicates: Duplicates = "refuse") -> Ratings:
    """Batches of rows, read with `options.selection()`, as amounts.

    Repeated pairs add up instead of being refused; `duplicates` may ask for their last amount or the mean.
    """
    tally = _Tally()
    merge = "sum" if duplicates == "refuse" else duplicates
    found = Ratings.from_batches(_events(batches, options, tally), duplicates=merge)
    return _cored(found, options, tally)


def events_of(ratings: Ratings, options: EventOptions) -> Ratings:
    """Ratings as events: their values are the amounts, or count 1 from `min_rating` on. Users and items stay."""
    options.check_without_columns("a table of ratings")
    tally, rows = _Tally(), ratings.rows()
    users, items = ratings.users[rows], ratings.items[ratings.matrix.indices]
    keep, amounts = _choose(Batch(users, items, ratings.matrix.data), options, tally)
    _check_left(tally, options)
    found = ratings if keep.all() else ratings.with_entries(keep)
    matrix = found.matrix.copy()
    matrix.data = amounts.astype(ratings.matrix.data.dtype)
    return _cored(replace(found, matrix=matrix), options, tally)


def _cored(found: Ratings, options: EventOptions, tally: _Tally) -> Ratings:
    notes = (*found.notes, *tally.notes(options))
    if options.min_events == 1:
        return replace(found, notes=notes)
    core, note = k_core(found, options.min_events)
    return replace(core, notes=(*notes, note) if note else notes)


def _events(batches: Iterable[Batch], options: EventOptions, tally: _Tally) -> Iterator[Batch]:
    for batch in batches:
        keep, amounts = _choose(batch, options, tally)
        if keep.all():
            yield batch._replace(ratings=amounts, kinds=None)
            continue
        groups = None if batch.groups is None else _taken(batch.groups, keep)
        times = None if batch.times is None else batch.times[keep]
        ids = _taken(batch.users, keep), _taken(batch.items, keep)
        yield Batch(*ids, amounts, times, groups, note=batch.note)
    _check_left(tally, options)


def _choose(batch: Batch, options: EventOptions, tally: _Tally) -> _Chosen:
    """The rows that are events, and their amounts."""
    values, keep = batch.ratings, np.ones(len(batch.ratings), bool)
    weights: Array | None = None
    if batch.kinds is not None:
        codes, types = batch.kinds.codes, np.asarray(batch.kinds.values).tolist()
        weights = np.array([options.weights.get(name, 0.0) for name in types])[codes]
        counts = np.bincount(codes, minlength=len(types)).tolist()
        tally.types.update(dict(zip(types, counts, strict=True)))
        keep = weights > 0
    if options.min_rating is not None:
        low = keep & (values < options.min_rating)
        tally.low += int(low.sum())
        values, keep = np.ones(len(values)), keep & ~low
    negative = np.flatnonzero(keep & (values < 0))
    if len(negative):
        raise _negative(batch, int(negative[0]), len(negative))
    zero = keep & (values == 0)
    tally.zero += int(zero.sum())
    keep = keep & ~zero
    tally.rows += len(keep)
    tally.kept += int(keep.sum())
    return _Chosen(keep, values[keep] if weights is None else values[keep] * weights[keep])


def _negative(batch: Batch, row: int, count: int) -> DataError:
    user, item = (_one(ids, row) for ids in (batch.users, batch.items))
    return DataError(
        f"the amount of user {quoted(user)} and item {quoted(item)} is {batch.ratings[row]:g} ({count:,} rows are "
        "below 0): amounts of events must be above 0; leave such rows out (returns, corrections), or if the values are "
        "ratings, count those from a rating on (min_rating=...)"
    )


def _check_left(tally: _Tally, options: EventOptions) -> None:
    require(
        tally.kept > 0 or tally.rows == 0,
        lambda: f"none of the {tally.rows:,} rows is an event that counts: {'; '.join(tally.notes(options))}",
        DataError,
    )


def _taken(ids: Ids, keep: Array) -> Ids:
    return ids[keep] if isinstance(ids, np.ndarray) else ids._replace(codes=ids.codes[keep])


def _one(ids: Ids, row: int) -> object:
    return (ids[row] if isinstance(ids, np.ndarray) else np.asarray(ids.values)[ids.codes[row]]).item()


def confidence(amounts: ArrayLike, how: str | None = None) -> Array:
    """The confidence c of each amount x, which weighs its term in the loss of a model of events.

    - `none`: c = 1. What counts is that there was an event.
    - `log`: c = 1 + log(1 + x). Ten times the amount adds about 2.3.
    - `log:A,E`: c = 1 + A log(1 + x/E), with A and E above 0 (Hu, Koren and Volinsky 2008): amounts far below E
      hardly count, those far above by their logarithm.
    - `linear:A`: c = 1 + A x, with A above 0 (the same paper; A = 40 there).

    None chooses by `default_confidence`. Clients of one federation must agree on it: choose once, not for each.
    """
    x = np.asarray(amounts, np.float64)
    bad = np.flatnonzero(~(np.isfinite(x) & (x > 0)))
    require(not len(bad), lambda: f"amounts must be finite and above 0, got {x.flat[bad[0]]:g}: drop it", DataError)
    if how is None:
        how = default_confidence(x)
    name, _, rest = how.partition(":")
    if how == "none":
        return np.ones_like(x)
    if name == "log":
        a, e = _numbers(how, rest, 2) if rest or how.endswith(":") else (1.0, 1.0)
        return np.asarray(1 + a * np.log1p(x / e))
    if name == "linear":
        (a,) = _numbers(how, rest, 1)
        return 1 + a * x
    raise unknown("confidence", how, SHAPES)


def default_confidence(amounts: ArrayLike) -> str:
    """`none` if all amounts are 1, else `log`."""
    return "none" if bool((np.asarray(amounts) == 1).all()) else "log"


def _numbers(how: str, text: str, count: int) -> list[float]:
    example = "log:1,1 (1 + A log(1 + x/E))" if count == 2 else "linear:40 (1 + A x)"
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    good = len(found) == count and all(math.isfinite(number) and number > 0 for number in found)
    require(good, f"confidence {quoted(how)} needs {count} number(s), finite and above 0: write for example {example}")
    return found
