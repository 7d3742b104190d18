"""Compiled parsing loops: from rows in file order to sorted sparse rows, and the Netflix text format."""

from __future__ import annotations

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import njit
from fedmc.types import Array

SORTING = 20.0  # multiply-adds that take as long as sorting one entry, about


@njit(cache=True, nogil=True)
def has_leading_zero(text: Array) -> bool:
    """Whether a field starts with 0 and another digit: such an id must stay a string."""
    for k in range(1, text.size - 1):
        if text[k] == 48 and 48 <= text[k + 1] <= 57:
            before = text[k - 1]
            if before in (44, 58, 59, 124, 9, 10, 13, 34, 32):  # , : ; | tab newline return quote space
                return True
    return False


@njit(cache=True, nogil=True)
def count_lines(text: Array, inside: bool) -> tuple[int, bool]:
    """The number of non-empty lines that start in the text, and whether the text ends inside a line."""
    lines = 0
    for k in range(text.size):
        if text[k] == 10 or text[k] == 13:
            inside = False
        elif not inside:
            inside = True
            lines += 1
    return lines, inside


@njit(cache=True, nogil=True)
def shorten(values: Array, out: Array) -> tuple[bool, float]:
    """Copy to float32; returns whether that is exact, and the largest absolute value (infinite if there is a NaN)."""
    exact, largest = True, 0.0
    for k in range(values.size):
        out[k] = values[k]
        size = abs(float(values[k]))
        exact = exact and out[k] == values[k]
        largest = size if size > largest else largest
        if size != size:
            largest = np.inf
    return exact, largest


@njit(cache=True, nogil=True)
def mark(values: Array, low: int, present: Array) -> None:
    """present[value - low] = True"""
    for k in range(values.size):
        present[values[k] - low] = True


@njit(cache=True, nogil=True)
def translate(values: Array, low: int, codes: Array, out: Array) -> None:
    """out = codes[values - low]"""
    for k in range(values.size):
        out[k] = codes[values[k] - low]


@njit(cache=True, nogil=True)
def count_rows(rows: Array, counts: Array) -> None:
    for k in range(rows.size):
        counts[rows[k]] += 1


@njit(cache=True, nogil=True)
def scatter(
    rows: Array, columns: Array, values: Array, times: Array, place: Array, indices: Array, data: Array, stamps: Array
) -> None:
    """Put each entry at the next free position of its row; `times` and `stamps` may be empty."""
    for k in range(rows.size):
        at = place[rows[k]]
        place[rows[k]] = at + 1
        indices[at] = columns[k]
        data[at] = values[k]
        if times.size:
            stamps[at] = times[k]


def sort_rows(indptr: Array, indices: Array, data: Array, stamps: Array) -> None:
    """Sort each row by column, in place; entries of one column stay in their old order. `stamps` may be empty."""
    effort = SORTING * float(len(indices))
    threads.over_rows(_sort_rows, indptr, effort, indptr, indices, data, stamps)


@njit(cache=True, nogil=True)
def _sort_rows(first: int, last: int, indptr: Array, indices: Array, data: Array, stamps: Array) -> None:
    for row in range(first, last):
        start, stop = indptr[row], indptr[row + 1]
        ascending = True
        for k in range(start + 1, stop):
            if indices[k] <= indices[k - 1]:
                ascending = False
        if ascending:
            continue
        order = np.argsort(indices[start:stop], kind="mergesort")
        indices[start:stop] = indices[start:stop][order]
        data[start:stop] = data[start:stop][order]
        if stamps.size:
            stamps[start:stop] = stamps[start:stop][order]


@njit(cache=True, nogil=True)
def merge_repeats(indptr: Array, indices: Array, data: Array, stamps: Array, mean: bool) -> int:
    """Keep one entry for each column of a row, in place: the last value, or the mean; returns the new length."""
    out = 0
    start = indptr[0]
    for row in range(indptr.size - 1):
        stop = indptr[row + 1]
        k = start
        indptr[row] = out
        while k < stop:
            last = k
            total = np.float64(data[k])
            while last + 1 < stop and indices[last + 1] == indices[k]:
                last += 1
                total += data[last]
            indices[out] = indices[k]
            data[out] = total / (last - k + 1) if mean else data[last]
            if stamps.size:
                stamps[out] = stamps[last]
            out += 1
            k = last + 1
        start = stop
    indptr[indptr.size - 1] = out
    return out


@njit(cache=True, nogil=True)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a Gregorian date."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468


@njit(cache=True, nogil=True)
def parse_netflix(
    text: Array, item: int, users: Array, items: Array, ratings: Array, times: Array
) -> tuple[int, int, int]:
    """Parse lines `ITEM:` and `USER,RATING,YYYY-MM-DD`; returns (rows, the current item, the bad line or -1).

    `text` must end with a newline. Lines are counted from 0.
    """
    rows = line = k = 0
    size = text.size
    while k < size:
        if text[k] == 10 or text[k] == 13:
            line += 1 if text[k] == 10 else 0
            k += 1
            continue
        number = digits = 0
        while k < size and 48 <= text[k] <= 57:
            number = number * 10 + (text[k] - 48)
            digits += 1
            k += 1
        if digits == 0 or digits > 9 or k >= size:
            return rows, item, line
        if text[k] == 58:  # ITEM:
            item = number
            k += 1
        elif text[k] == 44 and item >= 0:  # USER,RATING,DATE
            users[rows] = number
            k += 1
            rating = digits = 0
            while k < size and 48 <= text[k] <= 57:
                rating = rating * 10 + (text[k] - 48)
                digits += 1
                k += 1
            if digits == 0 or digits > 3 or k + 10 >= size or text[k] != 44 or text[k + 5] != 45 or text[k + 8] != 45:
                return rows, item, line
            for d in (1, 2, 3, 4, 6, 7, 9, 10):
                if not 48 <= text[k + d] <= 57:
                    return rows, item, line
            year = 1000 * (text[k + 1] - 48) + 100 * (text[k + 2] - 48) + 10 * (text[k + 3] - 48) + text[k + 4] - 48
            month, day = 10 * (text[k + 6] - 48) + text[k + 7] - 48, 10 * (text[k + 9] - 48) + text[k + 10] - 48
            if not (1 <= month <= 12 and 1 <= day <= 31):
                return rows, item, line
            items[rows] = item
            ratings[rows] = rating
            times[rows] = _days(year, month, day)
            rows += 1
            k += 11
        else:
            return rows, item, line
        if k < size and text[k] == 13:
            k += 1
        if k >= size or text[k] != 10:
            return rows, item, line
    return rows, item, -1
