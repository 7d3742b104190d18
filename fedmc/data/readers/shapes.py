"""Long or wide? A long table has a row for each rating; a wide matrix has a row for each user, a column for each item.

The rule is told from the first rows (docs/reference/formats.md, "Wide matrices"). When in doubt a table is long.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.data.readers.usual import COLUMN_NAMES, TIME_NAMES, Usual, find_usual, is_usual
from fedmc.errors import DataError, quoted
from fedmc.types import Array

EMPTY = ("", "na", "n/a", "nan", "null", "none", "\\n", "?", "-", "<na>")  # in lower case: no rating
_ROW_NAMES = frozenset(("id", "name", "index", "row"))
USER_NAMES = Usual(COLUMN_NAMES["user"].own, COLUMN_NAMES["user"].other | _ROW_NAMES)  # of the column that names rows
INDEX = "__index_level_"  # how Arrow calls an index of pandas without a name
SENTINELS = (0, -1, 9, -9, 99, -99, 999, -999, 9999, -9999)  # numbers that often stand for "missing"
ROWS = 200  # that a look at the table takes
WITH_HEADER, WITHOUT_HEADER = 4, 5  # the fewest columns of a table that may look wide
SAME = 0.25  # columns of one kind span this part of the range of all,
MOST = 0.75  # at least so many of them
SPARSE = 0.3  # part of empty cells that only a matrix has
RISING = 8  # so many rising whole numbers are no ratings but ids of items
SHOWN = 5  # columns that a message names


class WideError(DataError):
    """A wide matrix that is not read as one."""


class Sample(NamedTuple):
    """The first rows of a table."""

    names: tuple[str, ...]  # the header, or the numbers of the columns from 1
    header: bool
    values: Array  # rows x columns; NaN: no number
    texts: Array  # for each column, the part of its cells that is neither a number nor missing

    @property
    def label(self) -> int | None:
        """The column with the users, by its name or because it is the only one that holds text."""
        found = find_usual(self.names, USER_NAMES) if self.header else None
        index = next((name for name in self.names if name.startswith(INDEX)), None)
        if found is not None or index is not None:
            return self.names.index(index if found is None else found)
        unnamed = self.header and self.names[0].strip() in ("", "Unnamed: 0")
        texts = np.flatnonzero(self.texts)
        if unnamed:
            return 0
        return int(texts[0]) if len(texts) == 1 and self.texts[texts[0]] > 0.5 else None


def sample_of(rows: Sequence[Sequence[str]]) -> Sample:
    """A sample from the cells of a text file's first rows, which are equally long."""
    header = _has_header(rows)
    names = tuple(cell.strip() for cell in rows[0]) if header else tuple(map(str, range(1, len(rows[0]) + 1)))
    cells = [[_cell(cell) for cell in row] for row in rows[int(header) :]]
    values = np.array([[np.nan if isinstance(cell, str) else cell for cell in row] for row in cells])
    values = values.reshape(len(cells), len(names))
    texts = np.array([np.mean([isinstance(row[k], str) for row in cells]) if cells else 0 for k in range(len(names))])
    return Sample(names, header, values, texts)


def looks_wide(sample: Sample) -> bool:
    """Whether a table without a usual name for items and ratings holds many columns of numbers of the same kind."""
    if len(sample.names) < (WITH_HEADER if sample.header else WITHOUT_HEADER) or not len(sample.values):
        return False
    if sample.header and not unnamed_roles(sample.names):
        return False
    label = sample.label
    columns = np.arange(len(sample.names)) != (0 if label is None else label)  # the first may be a count or an id
    if sample.texts[columns].any():
        return False
    return _same_kind(sample.values[:, columns])


def unnamed_roles(names: Sequence[str]) -> bool:
    """Whether no column has a usual name of items, ratings or times."""
    return all(find_usual(names, usual) is None for usual in (COLUMN_NAMES["item"], COLUMN_NAMES["rating"], TIME_NAMES))


def stand_in(values: Array) -> float | None:
    """A number that seems to stand for "missing": one of the usual ones, frequent, and far from all others."""
    known = values[~np.isnan(values)]
    for number in SENTINELS:
        share = float(np.mean(known == number)) if len(known) else 0.0
        others = known[known != number]
        if share == 0 or not len(others):
            continue
        low, high = float(others.min()), float(others.max())
        apart = number > high + (high - low) or number < low - (high - low)
        if (number == 0 and share > 0.5 and low > 0) or (number != 0 and share > 0.01 and apart):
            return float(number)
        if number == -1 and share > 0.5 and low >= 0:
            return float(number)
    return None


def refusal(where: str, names: Sequence[str], missing: float | None, frame: bool = False) -> WideError:
    """The error for a table that looks wide but is not read as such."""
    given = "" if missing is None else f"missing={missing:g}"
    read = f"Ratings.from_wide(X{given and ', ' + given})" if frame else f"wide=True{given and ' and ' + given}"
    other = "name the columns (columns='USER,ITEM,RATING')" if frame else "with wide=False"
    return WideError(
        f"{where} looks like a wide matrix, with users in rows and items in columns: {listed(names)}, with numbers "
        f"of the same kind: read it with {read}; or, if each row is one rating, {other}"
    )


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """How many columns, and the first of them."""
    shown = ", ".join(quoted(name, 30)[1:-1] for name in names[:most])
    return f"{len(names):,} columns ({shown}{', ...' if len(names) > most else ''})"


def names_of(names: Sequence[str], most: int = 20) -> str:
    """The names of a table's columns; of a table with many, how many there are and the first of them."""
    return ", ".join(names) if len(names) <= most else listed(names)


def is_empty(cell: str) -> bool:
    """Whether a cell says that there is no rating."""
    return cell.strip().lower() in EMPTY


def _cell(text: str) -> float | str:
    """A number, NaN if missing, else the text."""
    if is_empty(text):
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return text


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: text above numbers, a usual name of users, or rising numbers."""
    first, others = [_cell(cell) for cell in rows[0]], rows[1 : 1 + ROWS]
    for place, cell in enumerate(first):
        below = [_cell(row[place]) for row in others]
        if isinstance(cell, str) and not (below and any(isinstance(one, str) for one in below)) and place > 0:
            return True
    if isinstance(first[0], str) and is_usual(rows[0][0], USER_NAMES):
        return True
    enough = isinstance(first[0], str) or is_empty(rows[0][0]) or len(first) >= RISING
    return enough and _rising(rows[0][1:]) and not (others and _rising(others[0][1:]))


def _rising(cells: Sequence[str]) -> bool:
    """Whether the cells are whole numbers, each larger than the one before, as ids of items in a header are."""
    if len(cells) < 3 or not all(re.fullmatch(r"\s*\d{1,18}\s*", cell) for cell in cells):
        return False
    numbers = list(map(int, cells))
    return all(a < b for a, b in itertools.pairwise(numbers))


def _same_kind(values: Array) -> bool:
    """Whether the columns hold numbers of one range; if there are hardly any numbers, whether many cells are empty."""
    known = ~np.isnan(values)
    if not known.any():
        return False
    number = stand_in(values)
    if number is not None:
        known &= values != number
    enough = known.sum(axis=0) >= 3
    if enough.sum() < 2:
        return bool(np.mean(~known) > SPARSE)
    low = np.where(known, values, np.inf).min(axis=0)[enough]
    high = np.where(known, values, -np.inf).max(axis=0)[enough]
    whole = float(high.max() - low.min())
    return whole > 0 and float(np.mean(high - low >= SAME * whole)) >= MOST
