"""Splits hold out ratings or events: at random, each user's last k, k random ones or a share of each user's, those
since a date, or whole users.

Every split but the last is returned as (rest, held out), with the same users and items in both. Row order never
matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from fedmc.data.ids import places
from fedmc.data.loading import as_ratings
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, InputError, require
from fedmc.types import MAX_SEED, Array, whole

HIDDEN = 0.2  # the share of a new user's items that is to be found, as in Liang et al. (2018)


class Pairs(NamedTuple):
    """Ids of users and items, pair by pair."""

    users: Array
    items: Array


class NewUsers(NamedTuple):
    """A table without some of its users, and theirs: what is known when they are folded in, and what is to be found."""

    train: Ratings
    known: Ratings
    hidden: Ratings

    def without_times(self) -> NewUsers:
        return NewUsers(*(part.without_times() for part in self))


def split(table: object, how: str | float = 0.2, seed: int = 0) -> tuple[Ratings, Ratings]:
    """(rest, held out) by a share such as 0.2, or by `last:K`, `leave:K`, `share:S` or `date:YYYY-MM-DD`.

    The table is a Ratings, a DataFrame, a scipy sparse matrix, a 2-D array with NaN where unknown, or the arrays
    (users, items, ratings) and, optionally, times. `Ratings.from_dataframe` takes columns with any names.
    """
    return parse(str(how), _ratings_of(table, needs_times(str(how))), seed)


def at_random(ratings: Ratings, share: float, seed: int) -> tuple[Ratings, Ratings]:
    """A random share of the ratings."""
    whole("seed", seed, 0, MAX_SEED)
    require(0 <= share < 1, f"the share to split off must be at least 0 and below 1, got {share}")
    count = round(share * len(ratings))
    held_out = np.zeros(len(ratings), bool)
    held_out[np.random.default_rng(seed).permutation(len(ratings))[:count]] = True
    return _divide(ratings, held_out)


def last(table: object, k: int = 1) -> tuple[Ratings, Ratings]:
    """Each user's k latest ratings (ties: the later item in the catalogue); users with k or fewer keep them all."""
    ratings = _ratings_of(table, times=True)
    require(k >= 1, f"the number of last ratings must be at least 1, got {k}")
    times = _times(ratings, "last")
    return _divide(ratings, _top(ratings, times, k))


def leave(table: object, k: int = 1, seed: int = 0) -> tuple[Ratings, Ratings]:
    """k random ratings of each user; users with k or fewer keep them all."""
    ratings = _ratings_of(table)
    require(k >= 1, f"the number of ratings to leave out must be at least 1, got {k}")
    return _divide(ratings, _top(ratings, _shuffled(ratings, seed), k))


def share(ratings: Ratings, part: float, seed: int) -> tuple[Ratings, Ratings]:
    """A random share of each user's ratings, rounded; every user keeps one at least."""
    require(0 < part < 1, f"the share of each user must be above 0 and below 1, got {part}")
    sizes = np.diff(ratings.matrix.indptr)
    counts = np.minimum(np.round(part * sizes).astype(np.int64), sizes - 1)
    return _divide(ratings, _top(ratings, _shuffled(ratings, seed), counts[ratings.rows()]))


def new_users(ratings: Ratings, part: float, seed: int, hidden: float = HIDDEN) -> NewUsers:
    """A random share of the users takes no part in training (strong generalisation).

    Of these, a random share `hidden` of the items is to be found, and the others are known when they are folded in.
    """
    whole("seed", seed, 0, MAX_SEED)
    require(0 < part < 1, f"the share of users to hold out must be above 0 and below 1, got {part}")
    count = round(part * len(ratings.users))
    bound = f"hold out at least 1 of {len(ratings.users):,} users and leave 1 to train on"
    require(0 < count < len(ratings.users), f"the split 'users:{part:g}' holds out {count:,} users: {bound}")
    order = np.random.default_rng(seed).permutation(len(ratings.users))
    held_out, rows = np.sort(order[:count]), np.sort(order[count:])
    train = ratings.with_users(rows)
    require(len(train) > 0, f"the split leaves none of {len(ratings):,} ratings to train on")
    return NewUsers(train, *share(ratings.with_users(held_out), hidden, seed))


def since(table: object, date: str) -> tuple[Ratings, Ratings]:
    """The ratings at or after a date, 2003-01-31 or with a time, in UTC."""
    ratings = _ratings_of(table, times=True)
    return _divide(ratings, _times(ratings, "date") >= seconds_of(date))


def seconds_of(date: str) -> float:
    """A date, 2003-01-31 or with a time, in UTC, as seconds since 1970."""
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        raise InputError(f"a date looks like 2003-01-31, got {date!r}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.timestamp()


def last_times(train: Ratings, specs: Iterable[str]) -> Array | None:
    """The latest time of each user that is known in training, so that nothing later is used; None: there is no bound.

    With `date:`, it is before the date. With `last:K`, it is the time of the user's last training rating; a user
    without any has no bound.
    """
    bounds = []
    for spec in specs:
        name, _, value = spec.partition(":")
        if name == "date":
            bounds.append(np.full(len(train.users), math.ceil(seconds_of(value)) - 1, np.int64))
        elif name == "last":
            latest = np.full(len(train.users), np.iinfo(np.int64).min)
            np.maximum.at(latest, train.rows(), _times(train, name))
            latest[np.diff(train.matrix.indptr) == 0] = np.iinfo(np.int64).max
            bounds.append(latest)
    return np.minimum.reduce(bounds) if bounds else None


def normalise(words: str | float | None) -> str | None:
    """The full spec of a split: a share such as `0.2` means `random:0.2`; `0` or nothing means no split (None)."""
    try:
        share = 0.0 if words is None else float(words)
    except ValueError:
        return str(words)
    return f"random:{share}" if share else None


def parse_share(words: str | float) -> float:
    """The share of a random split, `0.2` or `random:0.2`; other splits are refused."""
    name, _, value = (normalise(words) or "random:0").partition(":")
    require(name == "random", f"a share such as 0.2 or random:0.2 is needed here, got {words!r}")
    try:
        return float(value)
    except ValueError:
        raise InputError(f"split {words!r}: {value!r} is not a number") from None


def parse(words: str, ratings: Ratings, seed: int) -> tuple[Ratings, Ratings]:
    """A split from its spec: `0.2` or `random:0.2`, `last:5`, `leave:1`, `share:0.2`, `date:2003-01-31`."""
    name, _, value = (normalise(words) or "random:0").partition(":")
    try:
        if name == "random":
            return at_random(ratings, float(value), seed)
        if name == "last":
            return last(ratings, int(value))
        if name == "leave":
            return leave(ratings, int(value), seed)
        if name == "share":
            return share(ratings, float(value), seed)
    except ValueError as error:
        if isinstance(error, InputError | DataError):
            raise
        raise InputError(f"split {words!r}: {value!r} is not a number") from None
    check_pairs(words)
    known = (
        "a share such as 0.2, random:SHARE, share:SHARE, last:K, leave:K, date:YYYY-MM-DD or, in `train`, users:SHARE"
    )
    require(name == "date", f"unknown split {words!r}: choose {known}")
    return since(ratings, value)


def is_random(words: str | None) -> bool:
    """Whether a split draws its ratings at random, so that further ratings change the whole draw."""
    return (words or "").partition(":")[0] in ("random", "leave", "share")


def as_before(
    divided: tuple[Ratings, Ratings], ratings: Ratings, rest: Pairs, held_out: Pairs
) -> tuple[Ratings, Ratings]:
    """A split of these ratings in which the pairs that were divided before stay where they were.

    A model that was trained on the rest of before is then never tested on what it was trained on.
    """
    _, drawn = divided
    mine = _keys(ratings, ratings.rows(), ratings.matrix.indices)
    there = np.isin(mine, _keys(ratings, drawn.rows(), drawn.matrix.indices))
    before, tested = (np.isin(mine, _keys_of(ratings, pairs)) for pairs in (rest, held_out))
    return _divide(ratings, (there & ~before) | tested)


def _keys(ratings: Ratings, rows: Array, columns: Array) -> Array:
    return rows.astype(np.int64) * len(ratings.items) + columns


def _keys_of(ratings: Ratings, pairs: Pairs) -> Array:
    """The keys of those pairs whose users and items are in this table."""
    users, items = places(ratings.users, pairs.users), places(ratings.items, pairs.items)
    known = (users >= 0) & (items >= 0)
    return _keys(ratings, users[known], items[known])


def check_held_out(words: str, count: int, held_out: int) -> None:
    """Refuse a split that holds out nothing: there would be no test, and nobody would say so."""
    cure = "a user keeps one at least; choose a larger share, a smaller K or an earlier date, or 0 to test on nothing"
    require(held_out > 0, f"the split {words!r} holds out none of {count:,} ratings or events: {cure}", DataError)


def check_pairs(words: str) -> None:
    """Refuse a split that holds out whole users where it has no meaning."""
    name = words.partition(":")[0]
    require(name != "users", f"the split {words!r} folds new users in after training: it is for the test of `train`")


def parse_users(words: str | None) -> float | None:
    """The share of users of a split such as `users:0.1`; None if it is another split."""
    name, _, value = (words or "").partition(":")
    if name != "users":
        return None
    try:
        return float(value)
    except ValueError:
        raise InputError(f"split {words!r}: {value!r} is not a number") from None


def needs_times(spec: str) -> bool:
    return spec.startswith(("last:", "date:"))


def _ratings_of(table: object, times: bool = False) -> Ratings:
    return table if isinstance(table, Ratings) else as_ratings(table, times=times)


def _times(ratings: Ratings, name: str) -> Array:
    cure = "give a DataFrame with a column `timestamp`, or the arrays (users, items, ratings, times)"
    require(
        ratings.times is not None, f"the split {name!r} needs times, and these ratings have none: {cure}", DataError
    )
    assert ratings.times is not None
    return ratings.times


def _shuffled(ratings: Ratings, seed: int) -> Array:
    whole("seed", seed, 0, MAX_SEED)
    return np.random.default_rng(seed).permutation(len(ratings))


def _top(ratings: Ratings, keys: Array, k: int | Array) -> Array:
    """The k entries of each row with the largest keys, in rows of more than k entries; k may differ by entry's row."""
    rows = ratings.rows()
    order = np.lexsort((keys, rows))
    from_end = ratings.matrix.indptr[rows + 1] - 1 - np.arange(len(ratings))
    chosen = np.zeros(len(ratings), bool)
    chosen[order] = (from_end < k) & (np.diff(ratings.matrix.indptr)[rows] > k)
    return chosen


def _divide(ratings: Ratings, held_out: Array) -> tuple[Ratings, Ratings]:
    require(not held_out.all(), f"the split leaves none of {len(ratings):,} ratings to train on")
    return ratings.with_entries(~held_out), ratings.with_entries(held_out)
