"""Features of users or items: a row of standardised numbers for each id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from fedmc.data.ids import as_kind_of, places
from fedmc.errors import DataError, require
from fedmc.types import Array

What = Literal["user", "item"]


class Feature(NamedTuple):
    """How a column becomes a feature: a number, or whether a category is in the cell, minus `mean`, over `scale`."""

    column: str
    category: str | None  # None: the column holds numbers
    mean: float
    scale: float

    @property
    def name(self) -> str:
        return self.column if self.category is None else f"{self.column}={self.category}"


@dataclass(frozen=True, eq=False)
class Features:
    """Standardised features, one row for each id."""

    ids: Array  # sorted
    names: tuple[str, ...]  # of the columns of `values`, such as "year" and "genres=Drama"
    values: Array  # float64
    titles: tuple[str, ...] | None = None  # of items; no feature
    encoding: tuple[Feature, ...] = ()  # how columns became features, to encode other tables alike
    notes: tuple[str, ...] = ()  # what was left out

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, chosen: Array) -> Features:
        """Some of the rows."""
        titles = None if self.titles is None else tuple(self.titles[row] for row in chosen.tolist())
        return replace(self, ids=self.ids[chosen], values=self.values[chosen], titles=titles)

    def like(self, ids: Array) -> Features:
        """The same features of items with ids of the same kind as these: whole numbers or strings."""
        same = as_kind_of(self.ids, ids, "item")
        return self if same is self.ids else replace(self, ids=same).rows(np.argsort(same, kind="stable"))

    def within(self, ids: Array) -> Features:
        """Only the rows of these sorted ids, written as they are."""
        found = places(ids, self.ids)
        inside = np.flatnonzero(found >= 0)
        order = inside[np.argsort(found[inside], kind="stable")]
        return replace(self.rows(order), ids=ids[found[order]])

    def summary(self) -> str:
        """The number of rows and features, and where these come from."""
        counts = Counter(one.column for one in self.encoding)
        numbers = {one.column for one in self.encoding if one.category is None}
        parts = [column if column in numbers else f"{count} {column}" for column, count in counts.items()]
        shown = ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
        return f"{len(self):,} rows, {len(self.names):,} features" + (f" ({shown})" if parts else "")


class Aligned(NamedTuple):
    """A row of features for each of some ids, zeros for those that the table lacks."""

    values: Array
    found: int  # how many ids the table has


def aligned(features: Features, ids: Array, what: What) -> Aligned:
    """A row for each id, zeros (the means) for those that the table lacks; refused if it lacks all of them."""
    require(len(features) > 0, f"the table of {what}s has no row that can be used", DataError)
    rows = places(features.ids, ids)
    found = rows >= 0
    require(
        bool(found.any()),
        lambda: (
            f"the table of {what}s has none of the {len(ids):,} {what}s of the ratings: it has {features.ids[0]}, ..., "
            f"they are {ids[0]}, ...: use the same ids"
        ),
        DataError,
    )
    values = np.zeros((len(ids), len(features.names)))
    values[found] = features.values[rows[found]]
    return Aligned(values, int(found.sum()))
