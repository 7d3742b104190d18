"""Features of users or items: a table of numbers and categories, encoded and standardised.

How columns become features: `fedmc.data.encoding`. Numbers that are codes, such as occupation 1 to 20, cannot be
recognised: write them as text (`zip-94110`), or name the column in `categories`. Strings in a DataFrame are always
categories.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fedmc.data import encoding
from fedmc.data.feature_rows import Aligned as Aligned  # these three re-exported: this is the module to import
from fedmc.data.feature_rows import Features as Features
from fedmc.data.feature_rows import What
from fedmc.data.feature_rows import aligned as aligned
from fedmc.data.readers import tables
from fedmc.data.readers.columnar import ArrowStream, Lazy, collected
from fedmc.data.readers.tables import Cell, Column, Table
from fedmc.errors import DataError, quoted, require

TITLES = (
    "title", "name", "movie_title", "film_title", "item_title", "product_title", "book_title", "song_title",
    "track_title", "movie_name", "film_name", "item_name", "product_name", "book_name", "song_name", "track_name",
    "original_title", "titel", "titre", "titulo", "título", "titolo",
)  # fmt: skip
Source = str | Path | ArrowStream | Lazy


def read_features(path: str | Path, what: What, categories: Collection[str] = ()) -> Features:
    """Features from a text file with a header (also gzipped), a Parquet or a Feather file."""
    return features_of(path, what, categories)


def features_of(
    source: Source, what: What, categories: Collection[str] = (), encoded_like: Features | None = None
) -> Features:
    """Features from a DataFrame or a file. The ids are in the first column, unless only another has a usual name.

    `categories` names columns of numbers that are categories. With `encoded_like`, columns become the features of
    that table, by its means and scales, so that rows can be added to it.
    """
    return encode(open_table(source, what), what, categories, encoded_like)


def open_table(source: Source, what: What) -> Table:
    """The table as it is, sorted by its ids; an id in two rows is refused."""
    given = collected(source)
    if not isinstance(given, str | Path | ArrowStream):
        kind = type(given).__name__
        raise DataError(f"cannot read {what} features from a {kind}: pass a DataFrame or the path of a file")
    table = tables.read(given, what)
    order = np.argsort(table.ids, kind="stable")
    ids = table.ids[order]
    again = np.flatnonzero(ids[1:] == ids[:-1]) + 1
    if len(again):
        row, first = int(order[again[0]]), table.place(int(order[again[0] - 1]))
        raise DataError(
            f"{table.place(row)}: {what} {quoted(ids[again[0]].item())} has a row already ({first}): keep one row of "
            f"each {what} ({len(again):,} repeat)"
        )
    columns = [column._replace(cells=[column.cells[row] for row in order]) for column in table.columns]
    lines = None if table.lines is None else [table.lines[row] for row in order]
    return Table(table.where, ids, columns, lines)


def encode(table: Table, what: What, categories: Collection[str] = (), like: Features | None = None) -> Features:
    """The features of a table."""
    check_columns(categories, table)
    title = _title_column(table) if what == "item" else None
    rest = table._replace(columns=[column for column in table.columns if column is not title])
    require(
        bool(rest.columns) or title is not None,
        f"{table.where} has no column besides the ids: expected features",
        DataError,
    )
    learned, notes = encoding.learn(rest, categories) if like is None else (like.encoding, ())
    require(
        what == "item" or bool(learned),
        f"{table.where} holds no feature: every column is the same in all rows, or has only rare categories",
        DataError,
    )
    values = encoding.apply(rest, learned, categories)
    return Features(table.ids, tuple(one.name for one in learned), values, _titles(title), learned, notes)


def only_titles(table: Table) -> Features:
    """The titles in a table of items, without features."""
    return Features(table.ids, (), np.zeros((len(table.ids), 0)), _titles(_title_column(table)))


def _title_column(table: Table) -> Column | None:
    by_name = {re.sub(r"[\s._-]+", "_", one.name.strip().lower()): one for one in reversed(table.columns)}
    return next((by_name[name] for name in TITLES if name in by_name), None)


def _titles(column: Column | None) -> tuple[str, ...] | None:
    return None if column is None else tuple(map(_title, column.cells))


def _title(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):  # the title of a film may be 1984
        return f"{cell:g}" if abs(cell) < 1e6 else str(cell)
    return cell if isinstance(cell, str) else ", ".join(cell)


def check_columns(categories: Collection[str], *given: Table) -> None:
    """Refuse a name that is no column of any of the tables."""
    known = [column.name for table in given for column in table.columns]
    for name in categories:
        where = " or ".join(table.where for table in given) or "any table"
        has = f": there are {', '.join(known)}" if known else ""
        require(name in known, f"there is no column {quoted(name)} of categories in {where}{has}", DataError)
