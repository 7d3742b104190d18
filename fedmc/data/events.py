"""Events without a rating, such as views and purchases: which user saw which item, and when."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data import readers
from fedmc.data.builder import Batch, encode
from fedmc.data.features import Source
from fedmc.data.ids import places
from fedmc.data.matrices import narrow
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columnar import ArrowStream, collected
from fedmc.data.readers.columns import ColumnSelection
from fedmc.errors import DataError, require
from fedmc.types import Array


class Events(NamedTuple):
    """All events, repeats included: sorted ids, and for each event its row among them, its column and its time."""

    users: Array
    items: Array
    rows: Array
    columns: Array
    times: Array | None = None  # seconds since 1970


class Known(NamedTuple):
    """The events of known users with known items as a pattern of users and items, and what was left out."""

    pattern: sparse.csr_array
    unknown: int  # events of unknown users or items
    late: int  # events after the training ratings


def read_pairs(source: Source, times: bool = False) -> Events:
    """Events from a file or a DataFrame with columns of user, item and, if `times` are needed, time.

    A text file without a header holds user, item (and time). A pair may occur more than once.
    """
    selection = ColumnSelection(times=times, rating="none")
    if isinstance(source, str | Path):
        return _events(readers.batches(source, selection))
    table = collected(source)
    if isinstance(table, ArrowStream):
        return _events(readers.from_arrow(table, selection))
    given = type(source).__name__
    raise DataError(f"cannot read events from a {given}: pass a DataFrame with user and item columns, or a file")


def _events(batches: Iterable[Batch]) -> Events:
    parts = [batch for batch in batches if len(batch.ratings)]
    require(bool(parts), "there are no events: the table is empty", DataError)
    stamps = [batch.times for batch in parts if batch.times is not None]
    times = [stamp.astype(np.int64) for stamp in stamps]
    users, user_codes = encode([batch.users for batch in parts])
    items, item_codes = encode([batch.items for batch in parts])
    rows, columns = np.concatenate(user_codes), np.concatenate(item_codes)
    return Events(users, items, rows, columns, np.concatenate(times) if times else None)


def known_pairs(events: Events, ratings: Ratings, latest: Array | None = None) -> Known:
    """The pairs of the ratings' users and items among the events; with `latest`, not those after a user's time."""
    rows = places(ratings.users, events.users)[events.rows]
    columns = places(ratings.items, events.items)[events.columns]
    known = (rows >= 0) & (columns >= 0)
    require(
        bool(known.any()),
        lambda: (
            f"none of the {len(known):,} events is of a user and an item of the ratings: it has user "
            f"{events.users[0]}, ..., they are {ratings.users[0]}, ...: use the same ids"
        ),
        DataError,
    )
    early = known
    if latest is not None:
        assert events.times is not None
        early = known & (events.times <= latest[rows])
        require(bool(early.any()), "no event is left: all are later than the training ratings", DataError)
    ones = np.ones(int(early.sum()), bool)
    pattern = sparse.coo_array((ones, (rows[early], columns[early])), shape=ratings.matrix.shape).tocsr()
    pattern.sum_duplicates()
    pattern = narrow(sparse.csr_array(pattern))
    pattern.data = np.ones(pattern.nnz, np.int8)
    return Known(pattern, int(len(known) - known.sum()), int(known.sum() - early.sum()))
