"""Which table of a database holds the ratings, if no query says so: the only one that fits, or an offer of several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedmc.data.readers.columns import ColumnSelection, roles
from fedmc.data.readers.usual import AmbiguousError
from fedmc.errors import DataError

SHOWN = 10  # tables that an error lists
_PLAIN = re.compile("[a-z_][a-z0-9_]*")
_WORDS = frozenset(("all", "date", "group", "order", "rating", "select", "table", "time", "timestamp", "user", "value"))
_USUAL_SCHEMAS = ("", "main", "public")  # need not be named


class Table(NamedTuple):
    """A table or view of a database."""

    schema: str
    name: str
    columns: tuple[str, ...]

    @property
    def in_sql(self) -> str:
        """Its name in a query."""
        schema = "" if self.schema in _USUAL_SCHEMAS else f"{identifier(self.schema)}."
        return schema + identifier(self.name)


def tables_of(rows: Iterable[tuple[str, str, str]]) -> list[Table]:
    """The tables, from rows of schema, table and column in the order of the columns."""
    found: dict[tuple[str, str], list[str]] = {}
    for schema, table, column in rows:
        found.setdefault((schema, table), []).append(column)
    return [Table(*names, tuple(columns)) for names, columns in found.items()]


def query_for(tables: Sequence[Table], selection: ColumnSelection, shown: str) -> str:
    """A query for the only table with the selected columns; refused if none or several have them.

    `shown` is the database as messages show it.
    """
    fitting = [table for table in tables if _fits(table, selection)]
    if len(fitting) == 1:
        return f"SELECT * FROM {fitting[0].in_sql}"
    write = "write --query (query=)"
    if fitting:
        which = _listed([f"SELECT * FROM {table.in_sql}" for table in fitting])
        raise DataError(f"{shown} needs a query, as {len(fitting)} tables fit: {write} with one of: {which}")
    named = "" if selection.columns is None else f" {', '.join(filter(None, selection.columns))}"
    what = f"columns{named}" if named else f"columns of user, item{' and rating' if _rated(selection) else ''}"
    has = _listed([f"{table.in_sql} ({', '.join(table.columns)})" for table in tables])
    raise DataError(
        f"{shown} needs a query, as no table has {what}: {write} 'SELECT ... AS user, ... AS item, ... AS rating "
        f"FROM ...', or name the columns; it has {has or 'no tables'}"
    )


def identifier(name: str) -> str:
    """A name as SQL writes it, in quotes if it needs them."""
    return name if _PLAIN.fullmatch(name) and name not in _WORDS else '"' + name.replace('"', '""') + '"'


def _rated(selection: ColumnSelection) -> bool:
    return selection.rating in ("required", "number")


def _fits(table: Table, selection: ColumnSelection) -> bool:
    try:
        roles(table.columns, selection, table.name)
    except AmbiguousError:  # the reader tells between which columns to choose
        return True
    except DataError:
        return False
    return True


def _listed(words: Sequence[str]) -> str:
    return "; ".join(words[:SHOWN]) + ("; ..." if len(words) > SHOWN else "")
