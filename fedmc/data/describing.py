"""What a person wants to know of a table of ratings at first sight."""

from __future__ import annotations

from itertools import islice
from typing import Protocol

import numpy as np
from scipy import sparse

from fedmc.data.notebook import FIRST, Example, as_html
from fedmc.types import Array


class Table(Protocol):
    """A `Ratings`."""

    @property
    def users(self) -> Array: ...
    @property
    def items(self) -> Array: ...
    @property
    def matrix(self) -> sparse.csr_array: ...
    @property
    def times(self) -> Array | None: ...
    @property
    def groups(self) -> tuple[Array, Array] | None: ...


def html_of(ratings: Table) -> str:
    """Sizes, density, range and mean, times and clients; and the first rows."""
    users, items, count = len(ratings.users), len(ratings.items), int(ratings.matrix.nnz)
    facts: dict[str, object] = {"users": users, "items": items, "ratings": count}
    if count:
        values = ratings.matrix.data
        facts["known"] = f"{100 * count / (users * items):.2g} % of all pairs"
        facts["values"] = f"{values.min():g} to {values.max():g}, mean {values.mean(dtype=np.float64):.4g}"
    if ratings.times is not None and count:
        first, last = (np.datetime64(int(one), "s").astype("datetime64[D]") for one in _ends(ratings.times))
        facts["times"] = f"{first} to {last}"
    if ratings.groups is not None:
        facts["clients"] = len(ratings.groups[0])
    return as_html("Ratings", facts, Example(f"the first of {count:,} ratings", *_first(ratings)))


def _ends(times: Array) -> tuple[int, int]:
    return int(times.min()), int(times.max())


def _first(ratings: Table) -> tuple[list[str], list[tuple[object, ...]]]:
    columns, matrix = ["user", "item", "rating"], ratings.matrix
    rows = np.searchsorted(matrix.indptr, np.arange(min(FIRST, matrix.nnz)), side="right") - 1
    parts = [ratings.users[rows], ratings.items[matrix.indices[: len(rows)]], matrix.data[: len(rows)].astype(float)]
    if ratings.times is not None:
        columns.append("time")
        parts.append(ratings.times[: len(rows)].astype("datetime64[s]"))
    return columns, list(islice(zip(*(part.tolist() for part in parts), strict=True), FIRST))
