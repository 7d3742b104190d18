"""Databases over ADBC: the driver of an address, and its connection.

The driver is the Python package of the scheme (`adbc_driver_snowflake`), or one that is registered on the machine and
that the driver manager finds by its name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from fedmc.data.addresses import check_address, is_stored, scrubbed, well_formed, without_password
from fedmc.data.readers.offers import Table, tables_of
from fedmc.errors import DataError, require

PACKAGES = {
    "sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql", "snowflake": "snowflake",
    "bigquery": "bigquery", "flightsql": "flightsql", "grpc": "flightsql", "grpc+tcp": "flightsql",
    "grpc+tls": "flightsql",
}  # fmt: skip
EXTRA = ("sqlite", "postgresql")  # packages in the extra `postgres`
NAMED = "adbc+"  # adbc+NAME://DSN: the registered driver NAME, with DSN as its own address
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.IGNORECASE | re.DOTALL)
_NO_DATABASES = ("http", "https", "ftp", "file")
_TABLES = (
    "SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE lower(table_schema) NOT IN "
    "('information_schema', 'pg_catalog', 'mysql', 'sys', 'performance_schema') "
    "ORDER BY table_schema, table_name, ordinal_position"
)
_SQLITE_TABLES = (
    "SELECT '', one.name, held.name FROM sqlite_master AS one, pragma_table_info(one.name) AS held "
    "WHERE one.type IN ('table', 'view') AND one.name NOT LIKE 'sqlite_%' ORDER BY one.name, held.cid"
)


class Call(NamedTuple):
    """A driver's module, and what its `connect` is called with."""

    module: ModuleType
    address: str | None
    options: Mapping[str, Any]


class Database:
    """An open connection."""

    def __init__(self, connection: Any, error: type[Exception], shown: str, sqlite: bool) -> None:
        self._connection, self._error, self._shown = connection, error, shown
        self._list = _SQLITE_TABLES if sqlite else _TABLES

    def tables(self) -> list[Table]:
        """The tables and views, with their columns."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(self._list)
                return tables_of(cursor.fetchall())
        except self._error:
            raise DataError(f"{self._shown} needs a query, as it does not list its tables: --query (query=)") from None

    @contextmanager
    def result(self, query: str) -> Iterator[pa.RecordBatchReader]:
        """The rows of a query's result, streamed."""
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            with cursor.fetch_record_batch() as reader:
                yield reader


def is_address(source: str) -> bool:
    """Whether this is the address of a database."""
    found = _ADDRESS.match(source)
    return found is not None and found[1].lower() not in _NO_DATABASES and not is_stored(source)


@contextmanager
def opened(source: str, file: str | None = None) -> Iterator[Database]:
    """Connect to the database at an address, or to an SQLite file; errors of the driver come without passwords."""
    shown = without_password(source)
    call = _sqlite(file) if file is not None else _call(source, shown)
    try:
        with _connected(call) as connection:
            yield Database(connection, call.module.Error, shown, file is not None)
    except call.module.Error as error:
        raise DataError(f"{shown}: {_said(error, source)}") from None


def _connected(call: Call) -> AbstractContextManager[Any]:
    address = () if call.address is None else (call.address,)
    return closing(call.module.connect(*address, **call.options))


def _sqlite(file: str) -> Call:
    return Call(_of_package("sqlite"), file, {})


def _call(source: str, shown: str) -> Call:
    found = _ADDRESS.fullmatch(source)
    assert found is not None
    scheme, rest = found[1].lower(), found[2]
    package = PACKAGES.get(scheme)
    if not scheme.startswith(NAMED):
        check_address(source)
    if package is None:
        return _of_manager(source, scheme, rest, shown)
    module = _of_package(package)
    if package == "postgresql":
        return Call(module, source, {})
    if package == "bigquery":
        return Call(module, None, {"db_kwargs": _of_bigquery(rest, shown), "autocommit": True})
    if package == "flightsql":
        return Call(module, *_of_flight(source, scheme))
    return Call(module, rest, {"autocommit": True})  # Snowflake's own addresses have no scheme


def _of_bigquery(rest: str, shown: str) -> dict[str, str]:
    """PROJECT, or PROJECT/DATASET."""
    project, _, dataset = rest.strip("/").partition("/")
    require(
        project != "", f"{shown} names no project: write bigquery://PROJECT or bigquery://PROJECT/DATASET", DataError
    )
    more = {"adbc.bigquery.sql.dataset_id": dataset} if dataset else {}
    return {"adbc.bigquery.sql.project_id": project, **more}


def _of_flight(source: str, scheme: str) -> tuple[str, dict[str, Any]]:
    """The address without user and password, which are options of the driver; `flightsql` means over TLS."""
    parts = urlsplit(source)
    host = parts.netloc.rpartition("@")[2]
    user = {"username": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    given = {name: value for name, value in user.items() if value}
    scheme = "grpc+tls" if scheme == "flightsql" else scheme
    return f"{scheme}://{host}", {"db_kwargs": given, "autocommit": True}


def _of_manager(source: str, scheme: str, rest: str, shown: str) -> Call:
    """A driver package of this name, or a driver that is registered under it on this machine."""
    name = scheme.removeprefix(NAMED)
    named = name != scheme
    module = None if named or not name.isalnum() else _imported(name)
    if module is not None:
        return Call(module, source, {"autocommit": True})
    manager = _imported("manager")
    if manager is None:
        raise DataError(f"{shown} needs the ADBC driver manager: pip install adbc-driver-manager")
    options: dict[str, Any] = {"driver": name, "uri": rest} if named else {"driver": source}
    call = Call(manager, None, {**options, "autocommit": True})
    try:
        _connected(call).__enter__().close()
    except manager.Error as error:
        if "Driver Manager" in str(error) and name != "profile":
            raise DataError(
                f"{shown}: there is no ADBC driver {name}: pip install adbc-driver-{name}, if there is such a package, "
                f"or register a driver under that name (dbc install {name})"
            ) from None
        raise DataError(f"{shown}: {_said(error, source)}") from None
    return call


def _of_package(name: str) -> ModuleType:
    module = _imported(name)
    if module is None:
        cure = "'fedmc[postgres]'" if name in EXTRA else f"adbc-driver-{name}"
        what = "databases need an extra" if name in EXTRA else f"this address needs the ADBC driver of {name}"
        raise DataError(f"{what}: pip install {cure}")
    return module


def _imported(name: str) -> ModuleType | None:
    """The DB-API module of a driver's package; None if it is not installed."""
    try:
        return importlib.import_module(f"adbc_driver_{name}.dbapi")
    except ImportError:
        return None


def _said(error: Exception, source: str) -> str:
    """A driver's message; not shown if the driver may have taken the address apart inside of the password."""
    if not well_formed(source) and without_password(source) != source:
        return "the connection failed; the driver's message is not shown, as it may hold a part of the password"
    return scrubbed(str(error), source)
