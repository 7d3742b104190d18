"""Categories of items, to recommend only some: from a table of items, or from the features of a catalogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.feature_rows import Features
from fedmc.data.features import open_table
from fedmc.data.readers.tables import Cell
from fedmc.errors import InputError, quoted, require
from fedmc.types import Array

SHOWN = 8  # categories that an error names
BETWEEN = "|"  # separates several categories in a cell


class Categories(NamedTuple):
    """The categories of each item, by the name of the column."""

    ids: Array
    columns: Mapping[str, Sequence[frozenset[str]]]

    def items_with(self, wanted: Mapping[str, Sequence[str]]) -> Array:
        """The items that have, of each of these columns, one of these categories at least."""
        keep = np.ones(len(self.ids), np.bool_)
        for name, values in wanted.items():
            cells = self._column(name)
            for value in values:
                self._check(name, value, cells)
            keep &= np.array([not cell.isdisjoint(values) for cell in cells], np.bool_)
        listed = " and ".join(f"{name}={'|'.join(values)}" for name, values in wanted.items())
        require(bool(keep.any()), f"no item is of category {listed}: leave one out")
        return np.asarray(self.ids[keep])

    def _column(self, name: str) -> Sequence[frozenset[str]]:
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise InputError(f"there is no column {quoted(name)} of categories: there are {known}")
        return self.columns[name]

    def _check(self, name: str, value: str, cells: Sequence[frozenset[str]]) -> None:
        if not any(value in cell for cell in cells):
            counts = Counter(category for cell in cells for category in cell)
            known = ", ".join(sorted(counts, key=lambda category: (-counts[category], category))[:SHOWN])
            more = ", ..." if len(counts) > SHOWN else ""
            raise InputError(f"no item has the category {quoted(value)} in {quoted(name)}: there are {known}{more}")


def read_categories(path: str | Path) -> Categories:
    """The categories in a table of items: an id, and columns; several categories in a cell are separated by |."""
    table = open_table(path, "item")
    return Categories(table.ids, {column.name: [_of_cell(cell) for cell in column.cells] for column in table.columns})


def categories_of(features: Features) -> Categories:
    """The categories among standardised features: an item has one if its value is above the mean."""
    columns: dict[str, list[set[str]]] = {}
    for number, one in enumerate(features.encoding):
        if one.category is not None:
            cells = columns.setdefault(one.column, [set() for _ in features.ids])
            for row in np.flatnonzero(features.values[:, number] > 0).tolist():
                cells[row].add(one.category)
    return Categories(features.ids, {name: [frozenset(cell) for cell in cells] for name, cells in columns.items()})


def parse_categories(given: Sequence[str]) -> dict[str, list[str]]:
    """Categories by column, from words such as `genres=Drama`."""
    wanted: dict[str, list[str]] = {}
    for one in given:
        name, sign, value = (part.strip() for part in one.partition("="))
        require(
            sign == "=" and name != "" and value != "", f"a category is NAME=VALUE, such as genres=Drama, got {one}"
        )
        wanted.setdefault(name, []).append(value)
    return wanted


def _of_cell(cell: Cell) -> frozenset[str]:
    if cell is None:
        return frozenset()
    if isinstance(cell, float):
        return frozenset([f"{cell:g}"])
    parts = cell.split(BETWEEN) if isinstance(cell, str) else cell
    return frozenset(part.strip() for part in parts if part.strip())
