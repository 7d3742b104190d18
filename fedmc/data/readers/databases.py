"""A query against a database, or its only table of ratings: DuckDB, SQLite, PostgreSQL and all that ADBC reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from fedmc.data.addresses import present, without_password
from fedmc.data.builder import Batch
from fedmc.data.readers import drivers, duck
from fedmc.data.readers.columns import ColumnSelection, Dictionaries, Header, header_of, roles, to_batch
from fedmc.data.readers.offers import Table, query_for
from fedmc.errors import DataError, require

SQLITE, DUCKDB = "sqlite://", "duckdb://"
_SQLITE_FILE = b"SQLite format 3\0"
_EITHER = ColumnSelection(rating="optional")


class Database(Protocol):
    """An open connection to a database."""

    def tables(self) -> list[Table]: ...

    def result(self, query: str) -> AbstractContextManager[pa.RecordBatchReader]: ...


def is_database(source: str | Path) -> bool:
    """Whether the source is a database's address, or a file of SQLite or DuckDB."""
    if drivers.is_address(str(source)):
        return True
    path = Path(source)
    return present(path) and path.is_file() and (_is_sqlite(path) or duck.is_file(path))


def read(source: str, query: str | None, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a query's result, or of the only table with the selected columns, streamed."""
    with _opened(source) as database:
        chosen = query_for(database.tables(), selection, without_password(source)) if query is None else query
        _check(source, chosen)
        where = "the query's result"
        with database.result(chosen) as reader:
            role = roles(reader.schema.names, selection, where)
            if query is None:
                role = role._replace(told="; ".join(filter(None, (f"query: {chosen}", role.told))))
            dictionaries = Dictionaries()
            for batch in reader:
                yield to_batch(_columns(batch), role, where, dictionaries)


def header(source: str, query: str | None) -> Header:
    """The columns of a query's result, or of the table that would be read: of ratings if there is one, else events."""
    with _opened(source) as database:
        query = _table_query(database, without_password(source)) if query is None else query
        _check(source, query)
        with database.result(query) as reader:
            first = next(iter(reader), None)
            return header_of(reader.schema.names, {} if first is None else _columns(first))


def _table_query(database: Database, shown: str) -> str:
    tables = database.tables()
    try:
        return query_for(tables, ColumnSelection(), shown)
    except DataError:
        return query_for(tables, _EITHER, shown)


def _check(source: str, query: str) -> None:
    require(query.strip() != "", f"{without_password(source)} needs a query: query='select ...'", DataError)


@contextmanager
def _opened(source: str) -> Iterator[Database]:
    shown = without_password(source)
    if source.lower().startswith(DUCKDB):
        place = source[len(DUCKDB) :]
        file = None if place in ("", "/", ":memory:", "/:memory:") else _file(place, "DuckDB")
        with duck.opened(file, shown) as found:
            yield found
    elif not drivers.is_address(source) and duck.is_file(Path(source)):
        with duck.opened(source, shown) as found:
            yield found
    else:
        local = not drivers.is_address(source)
        sqlite = source.lower().startswith(SQLITE)
        file = source if local else _file(source[len(SQLITE) :], "SQLite") if sqlite else None
        with drivers.opened(source, file) as reached:
            yield reached


def _file(place: str, kind: str) -> str:
    """The file in an address: relative after three slashes, if it is there, and absolute after four or else."""
    path = Path(place.removeprefix("/"))
    path = path if path.is_file() else Path("/" + place.lstrip("/"))
    require(path.is_file(), f"there is no {kind} file {place.removeprefix('/')}", DataError)
    return str(path)


def _is_sqlite(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_SQLITE_FILE)) == _SQLITE_FILE


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, (_storage(column) for column in batch.columns), strict=True))


def _storage(column: pa.Array) -> pa.Array:
    """The plain column inside a driver's extension type, such as PostgreSQL's numeric."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column
