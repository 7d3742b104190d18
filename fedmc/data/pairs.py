"""Tables of users and items, one pair in each row, in the order of the file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.addresses import without_password
from fedmc.data.builder import Ids, encode
from fedmc.data.readers import batches
from fedmc.data.readers.columns import ColumnSelection
from fedmc.errors import DataError, require
from fedmc.types import Array


class Coded(NamedTuple):
    """A column of ids: the distinct ones, and the place of each row's among them."""

    ids: Array
    codes: Array

    def part(self, rows: slice) -> Array:
        return np.asarray(self.ids[self.codes[rows]])

    def within(self, places: Array, known: Array) -> Coded:
        """The same column by the ids of a model; `places` are those of the distinct ids there, -1 if it has none.

        An id that the model does not have becomes one that no model has.
        """
        nobody = known.max(initial=0) + 1 if known.dtype.kind == "i" else ""
        return Coded(np.append(known, nobody)[places], self.codes)


class Pairs(NamedTuple):
    """The two columns."""

    users: Coded
    items: Coded

    def __len__(self) -> int:
        return len(self.users.codes)


def read(path: str | Path) -> Pairs:
    """The pairs of a text, Parquet or Feather file; other columns are not read."""
    columns: tuple[list[Ids], list[Ids]] = [], []
    for batch in batches(path, ColumnSelection(rating="none")):
        for chunks, ids in zip(columns, (batch.users, batch.items), strict=True):
            chunks.append(ids)
    require(bool(columns[0]), f"{without_password(str(path))} is empty: expected lines of user,item", DataError)
    users, items = (_coded(chunks) for chunks in columns)
    return Pairs(users, items)


def _coded(chunks: list[Ids]) -> Coded:
    ids, codes = encode(chunks)
    return Coded(ids, np.concatenate(codes))
