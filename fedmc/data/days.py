"""The days on which users rated: a client's ratings grouped by user and day, for biases that stay at home."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.matrices import only
from fedmc.types import Array

SECONDS = 86_400


class Days(NamedTuple):
    """A group for each user and day with a training rating, and the group of each rating (-1: there is none)."""

    users: Array  # the user of each group, as a row of the client's table, ascending
    numbers: Array  # its day: days since 1970, in UTC
    of_ratings: Array
    of_test: Array | None = None
    of_validation: Array | None = None

    @property
    def counts(self) -> Array:
        """The training ratings of each group."""
        return np.bincount(self.of_ratings, minlength=len(self.users))


def days_of(train: sparse.csr_array, test: sparse.csr_array | None, validation: sparse.csr_array | None) -> Days:
    """The days of a client's ratings, from tables that hold their times in seconds since 1970."""
    rows, numbers = _days(train)
    groups, of_ratings = np.unique(np.array([rows, numbers]), axis=1, return_inverse=True)
    held_out = [None if part is None else find(groups[0], groups[1], *_days(part)) for part in (test, validation)]
    return Days(groups[0], groups[1], of_ratings.ravel(), *held_out)


def held_out_days(days: Days, ratings: sparse.csr_array, aside: Array) -> Days:
    """The days without the ratings that are held `aside` for validation (a mask over the stored entries)."""
    times = sparse.csr_array((days.numbers[days.of_ratings] * SECONDS, ratings.indices, ratings.indptr), ratings.shape)
    return days_of(only(times, ~aside), None, only(times, aside))


def find(users: Array, numbers: Array, rows: Array, days: Array) -> Array:
    """The group of each (row, day), among groups in ascending order; -1 if it is none of them."""
    if not len(users):
        return np.full(len(rows), -1)
    low = min(int(numbers.min()), int(np.min(days, initial=0)))
    span = max(int(numbers.max()), int(np.max(days, initial=0))) - low + 1
    keys, wanted = users * span + (numbers - low), rows * span + (days - low)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def day_numbers(times: Array) -> Array:
    """Days since 1970 of times in seconds."""
    return np.floor_divide(np.asarray(times, np.int64), SECONDS)


def _days(times: sparse.csr_array) -> tuple[Array, Array]:
    rows = np.repeat(np.arange(times.shape[0], dtype=np.int64), np.diff(times.indptr))
    return rows, day_numbers(times.data)
