"""A query against PostgreSQL or SQLite, over ADBC (extra `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from fedmc.data.addresses import check_address, present, scrubbed, without_password
from fedmc.data.builder import Batch
from fedmc.data.readers.columns import ColumnSelection, Dictionaries, Header, header_of, roles, to_batch
from fedmc.errors import DataError, require

POSTGRES, SQLITE = ("postgresql://", "postgres://"), "sqlite://"
_SQLITE_FILE = b"SQLite format 3\0"


def is_database(source: str | Path) -> bool:
    """Whether the source is a database's address or an SQLite file."""
    if str(source).startswith((*POSTGRES, SQLITE)):
        return True
    path = Path(source)
    if not (present(path) and path.is_file()):
        return False
    with open(path, "rb") as file:
        return file.read(len(_SQLITE_FILE)) == _SQLITE_FILE


def read(source: str, query: str | None, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a query's result, streamed."""
    with _result(source, query) as reader:
        role = roles(reader.schema.names, selection, "the query's result")
        dictionaries = Dictionaries()
        for batch in reader:
            yield to_batch(_columns(batch), role, "the query's result", dictionaries)


def header(source: str, query: str | None) -> Header:
    """The columns of a query's result."""
    with _result(source, query) as reader:
        first = next(iter(reader), None)
        return header_of(reader.schema.names, {} if first is None else _columns(first))


@contextmanager
def _result(source: str, query: str | None) -> Iterator[pa.RecordBatchReader]:
    """The result of a query; errors of the driver are told without passwords."""
    shown = without_password(source)
    require(query is not None and query.strip() != "", f"{shown} needs a query: query='select ...'", DataError)
    if source.startswith(POSTGRES):
        check_address(source)
    dbapi, address = _driver(source)
    try:
        with dbapi.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            with cursor.fetch_record_batch() as reader:
                yield reader
    except dbapi.Error as error:
        raise DataError(f"{shown}: {scrubbed(str(error), source)}") from None


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, (_storage(column) for column in batch.columns), strict=True))


def _storage(column: pa.Array) -> pa.Array:
    """The plain column inside a driver's extension type, such as PostgreSQL's numeric."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _driver(source: str) -> tuple[ModuleType, str]:
    """The driver's module and the address in its form."""
    try:
        if source.startswith(POSTGRES):
            import adbc_driver_postgresql.dbapi as postgres

            return postgres, source
        import adbc_driver_sqlite.dbapi as sqlite
    except ImportError:
        raise DataError("databases need an extra: pip install 'fedmc[postgres]'") from None
    path = source.removeprefix(SQLITE).removeprefix("/") if source.startswith(SQLITE) else source
    if source.startswith(SQLITE + "//"):
        path = "/" + path.lstrip("/")
    require(Path(path).is_file(), f"there is no SQLite file {path}", DataError)
    return sqlite, path
