"""DuckDB (extra `duckdb`): a database file, or `duckdb://` for queries of other files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedmc.data.readers.offers import Table, tables_of
from fedmc.errors import DataError

ROWS = 1 << 18  # of a batch
SIGN, PLACE = b"DUCK", 8  # of a database file
_TABLES = (
    "SELECT table_schema, table_name, column_name FROM information_schema.columns "
    "WHERE table_catalog = current_database() ORDER BY table_schema, table_name, ordinal_position"
)


class Database:
    """An open connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tables(self) -> list[Table]:
        """The tables and views, with their columns."""
        return tables_of(self._connection.sql(_TABLES).fetchall())

    @contextmanager
    def result(self, query: str) -> Iterator[pa.RecordBatchReader]:
        """The rows of a query's result, streamed."""
        relation = self._connection.sql(query)
        if relation is None:
            raise DataError("the query has no result: write 'SELECT ...'")
        stream = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader  # the latter before 1.4
        with stream(ROWS) as reader:
            yield reader


def is_file(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(PLACE + len(SIGN))[PLACE:] == SIGN


@contextmanager
def opened(file: str | None, shown: str) -> Iterator[Database]:
    """Open a database file, for reading only; None: an empty database in memory."""
    try:
        import duckdb
    except ImportError:
        raise DataError(f"{shown} needs an extra: pip install 'fedmc[duckdb]'") from None
    try:
        with duckdb.connect(":memory:" if file is None else file, read_only=file is not None) as connection:
            yield Database(connection)
    except duckdb.Error as error:
        raise DataError(f"{shown}: {' '.join(str(error).split())}") from None
