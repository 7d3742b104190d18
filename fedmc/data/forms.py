"""The form of a table: a row for each rating, or a matrix with a row for each user and a column for each item."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedmc.errors import InputError, quoted, require

NOTHING = "none"  # as `missing`: every number is a rating


class Wide(NamedTuple):
    """How to read a wide matrix: numbers that stand for "no rating", such as "99" or "99,-1"; "none": none does."""

    missing: str | float | None = None  # None: refuse a number that looks like one

    def numbers(self) -> tuple[float, ...]:
        """The numbers that stand for a missing rating."""
        if self.missing is None or self.missing == NOTHING:
            return ()
        try:
            found = [float(part) for part in str(self.missing).split(",")]
        except ValueError:
            cure = "a number such as 99, several separated by commas, or none; empty cells, NaN and NA always are"
            raise InputError(f"missing={quoted(self.missing)} must be {cure}") from None
        return tuple(number for number in found if not math.isnan(number))


def form_of(wide: bool | None, missing: str | float | None) -> Wide | bool | None:
    """How a table is read: as a matrix, as rows of ratings (False), or as rows unless it looks like a matrix (None)."""
    require(wide in (True, False, None), f"wide must be true or false, got {quoted(wide)}")
    given = f"missing={quoted(missing)} is for a wide matrix: add wide=True, or leave it out"
    require(bool(wide) or missing is None, given)
    if not wide:
        return wide
    form = Wide(missing)
    form.numbers()  # refuses what is no number
    return form
