"""The columns of a table of features as standardised numbers.

- A column of numbers becomes one feature. Written with a leading zero, as in 02139, they are codes: categories.
- Any other column holds categories, each of which becomes a feature that is 1 or 0. A cell may hold several, separated
  by `|`.
- A category is kept if at least 2 rows have it and at least one row with a known value has not; at most 200 for each
  column and 500 features in all: those of the most rows.
- Each feature is standardised over the rows where it is known: mean 0, root mean square 1. It is 0, the mean, where it
  is missing. A feature that is the same in all of these rows is left out.

Sums are exactly rounded (`math.fsum`), so that the same table gives the same bits on every machine.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from fedmc.data.feature_rows import Feature
from fedmc.data.readers.tables import Column, Table
from fedmc.errors import DataError, quoted, require
from fedmc.types import Array

SEPARATOR = "|"
MIN_ROWS = 2  # of a category
MAX_CATEGORIES = 200  # of a column
MAX_FEATURES = 500
LARGEST = 1e15  # the largest number
NEARLY_ALL = 0.9  # if so many cells are numbers, the others are taken for mistakes
SAME = 1e-9  # relative spread up to which all numbers of a column count as the same
_CODE = re.compile(r"[+-]?0\d")


class _Parsed(NamedTuple):
    """A column, parsed: its numbers (NaN: missing), or the categories of each cell (None: missing)."""

    name: str
    numbers: Array | None
    categories: list[tuple[str, ...] | None]


def learn(table: Table, categorical: Collection[str] = ()) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """The features of a table, and messages about what is left out. `categorical` names columns of categories."""
    numbers: list[Feature] = []
    found: list[tuple[int, Feature]] = []  # with the number of rows
    notes: list[str] = []
    for column in table.columns:
        parsed = _parse(column, table, column.name in categorical)
        if parsed.numbers is not None:
            one = _number_feature(parsed)
            numbers += [] if one is None else [one]
            notes += [f"column {quoted(column.name)} (the same in all rows)"] if one is None else []
        else:
            kept, note = _category_features(parsed)
            found += kept
            notes += note
    most = f"at most {MAX_FEATURES}"
    require(
        len(numbers) <= MAX_FEATURES,
        f"{table.where} has {len(numbers)} columns of numbers, {most} are allowed: leave some out, or combine them",
        DataError,
    )
    room = MAX_FEATURES - len(numbers)
    if len(found) > room:
        notes.append(f"{len(found) - room:,} of {len(found):,} categories (the rarest: {most} features)")
        chosen = sorted(range(len(found)), key=lambda place: (-found[place][0], place))[:room]
        found = [found[place] for place in sorted(chosen)]
    return (*numbers, *(feature for _, feature in found)), tuple(notes)


def apply(table: Table, features: tuple[Feature, ...], categorical: Collection[str] = ()) -> Array:
    """The features of each row; a column that the table lacks counts as missing."""
    values = np.zeros((len(table.ids), len(features)))
    columns = {column.name: column for column in table.columns}
    for name in dict.fromkeys(feature.column for feature in features):
        if name not in columns:
            continue
        wanted = {place: one for place, one in enumerate(features) if one.column == name}
        of_categories = {one.category: place for place, one in wanted.items() if one.category is not None}
        parsed = _parse(columns[name], table, name in categorical or bool(of_categories))
        if parsed.numbers is None:
            _fill(values, parsed, wanted, of_categories, table)
        else:
            (place, one), *_ = wanted.items()
            values[:, place] = np.where(np.isnan(parsed.numbers), 0.0, (parsed.numbers - one.mean) / one.scale)
    return values


def _fill(
    values: Array, parsed: _Parsed, wanted: dict[int, Feature], of_categories: dict[str, int], table: Table
) -> None:
    """Fill in the features of a column of categories."""
    require(
        len(of_categories) == len(wanted),
        f"{table.where}: column {quoted(parsed.name)} must hold numbers, as in the table that was trained with",
        DataError,
    )
    known = np.array([cell is not None for cell in parsed.categories])
    for place, one in wanted.items():
        values[known, place] = -one.mean / one.scale
    for row, cell in enumerate(parsed.categories):
        for category in cell or ():
            if category in of_categories:
                place = of_categories[category]
                values[row, place] = (1 - wanted[place].mean) / wanted[place].scale


def _parse(column: Column, table: Table, categories: bool) -> _Parsed:
    if not categories and column.kind != "category":
        numbers = _numbers(column, table)
        if numbers is not None:
            return _Parsed(column.name, numbers, [])
    return _Parsed(column.name, None, [_categories(cell) for cell in column.cells])


def _categories(cell: object) -> tuple[str, ...] | None:
    if cell is None:
        return None
    if isinstance(cell, float):  # a column of numbers that is to hold categories
        return (str(int(cell)) if cell.is_integer() else str(cell),)
    parts = cell if isinstance(cell, list) else str(cell).split(SEPARATOR)
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip())) or None


def _numbers(column: Column, table: Table) -> Array | None:
    """The numbers of a column, NaN where missing; None if it holds categories."""
    present = [(row, cell) for row, cell in enumerate(column.cells) if cell is not None]
    if any(isinstance(cell, str) and _CODE.match(cell) for _, cell in present):
        return None
    numbers = np.full(len(column.cells), math.nan)
    others = []
    for row, cell in present:
        number = _as_number(cell)
        if number is None:
            others.append((row, cell))
        else:
            numbers[row] = number
    if others and len(others) > (1 - NEARLY_ALL) * len(present):
        return None
    if others:
        row, cell = others[0]
        raise DataError(
            f"{table.place(row)}: {quoted(cell)} in column {quoted(column.name)} is not a number, but nearly all "
            f"others are: correct it, leave it empty, or name {column.name} as a column of categories"
        )
    bad = np.flatnonzero(np.abs(numbers) > LARGEST)  # false for NaN
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{table.place(row)}: column {quoted(column.name)} holds {numbers[row]:g}; numbers must be finite and "
            f"within +-{LARGEST:g}: correct it, leave it empty, or rescale the column"
        )
    return numbers


def _as_number(cell: object) -> float | None:
    try:
        return None if isinstance(cell, str) and "_" in cell else float(cell)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None


def _number_feature(parsed: _Parsed) -> Feature | None:
    """How a column of numbers is standardised; None if all of them are the same."""
    assert parsed.numbers is not None
    numbers = parsed.numbers[~np.isnan(parsed.numbers)]
    if not len(numbers):
        return None
    mean = math.fsum(numbers) / len(numbers)
    apart = numbers - mean
    spread = float(np.max(np.abs(apart)))
    if spread <= SAME * float(np.max(np.abs(numbers))):
        return None
    scale = spread * math.sqrt(math.fsum(np.square(apart / spread)) / len(numbers))
    return Feature(parsed.name, None, mean, scale) if scale > 0 else None


def _category_features(parsed: _Parsed) -> tuple[list[tuple[int, Feature]], list[str]]:
    """The kept categories of a column, the most frequent first, with their numbers of rows; and messages."""
    rows = sum(cell is not None for cell in parsed.categories)
    counts = Counter(category for cell in parsed.categories for category in cell or ())
    enough = {category: count for category, count in counts.items() if count >= MIN_ROWS and count < rows}
    kept = sorted(enough, key=lambda category: (-enough[category], category))[:MAX_CATEGORIES]
    made = []
    for category in kept:
        mean = counts[category] / rows
        made.append((counts[category], Feature(parsed.name, category, mean, math.sqrt(mean * (1 - mean)))))
    rare = sum(count < MIN_ROWS for count in counts.values())
    of_all = f"of {len(counts):,} categories of {quoted(parsed.name)}"
    notes = []
    if not counts:
        notes.append(f"column {quoted(parsed.name)} (empty)")
    if rare:
        notes.append(f"{rare:,} {of_all} (in fewer than {MIN_ROWS} rows)")
    if len(counts) > rare + len(enough):
        notes.append(f"{len(counts) - rare - len(enough):,} {of_all} (in all rows)")
    if len(enough) > len(kept):
        notes.append(f"{len(enough) - len(kept):,} {of_all} (the rarest: at most {MAX_CATEGORIES} of a column)")
    return made, notes
