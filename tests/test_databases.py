"""Databases: DuckDB, SQLite, and any ADBC driver by its address; their tables are found by their columns."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import adbc_driver_sqlite
import duckdb
import pytest

from fedmc.data.loading import read_source
from fedmc.data.readers.drivers import PACKAGES
from fedmc.errors import DataError
from tests.command import fedmc

ROWS = [(u, i, (u * i) % 5 + 1) for u in range(1, 5) for i in range(1, 4)]
EXPECTED = [(u, i, float(r)) for u, i, r in ROWS]
SIMPLE = ("user_id", "item_id", "rating")


def fill(connection, table="ratings", columns=SIMPLE):
    named = ", ".join(f'"{name}" {kind}' for name, kind in zip(columns, ("integer", "integer", "double"), strict=True))
    connection.execute(f"create table {table} ({named})")
    connection.executemany(f"insert into {table} values (?, ?, ?)", ROWS)


@pytest.fixture
def sqlite(tmp_path):
    """A database with a table of ratings and one of users."""
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        fill(connection)
        connection.execute("create table users (user_id integer, name text)")
    return path


@pytest.fixture
def duck(tmp_path):
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        fill(connection)
        connection.execute("create table users (user_id integer, name text)")
    return path


def pairs(ratings):
    ids = ratings.users[ratings.rows()].tolist(), ratings.items[ratings.matrix.indices].tolist()
    return list(zip(*ids, ratings.matrix.data.tolist(), strict=True))


def hide(monkeypatch, *modules):
    """As if these packages were not installed."""
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


def test_duckdb(duck, tmp_path, monkeypatch):
    for source in (duck, str(duck), f"duckdb:///{duck}", f"duckdb://{duck}"):
        assert pairs(read_source(source)) == EXPECTED
    monkeypatch.chdir(tmp_path)
    assert pairs(read_source("duckdb:///shop.duckdb")) == EXPECTED
    found = read_source(duck, query="select user_id as user, item_id as item, 1::decimal(3, 1) as rating from ratings")
    assert set(found.matrix.data) == {1}
    with pytest.raises(DataError, match=r"there is no DuckDB file nowhere\.duckdb"):
        read_source("duckdb:///nowhere.duckdb")
    with pytest.raises(DataError, match="nowhere"):
        read_source(duck, query="select * from nowhere")
    with pytest.raises(DataError):
        read_source(duck, query="delete from ratings")
    assert pairs(read_source(duck)) == EXPECTED


def test_duckdb_queries_other_files(tmp_path):
    table = duckdb.sql("select u as user, i as item, r as rating from (values (1, 2, 3.5), (2, 2, 4)) as t(u, i, r)")
    table.write_parquet(str(tmp_path / "x.parquet"))
    query = f"select * from '{tmp_path / 'x.parquet'}' where rating > 3.6"
    assert pairs(read_source("duckdb://", query=query)) == [(2, 2, 4.0)]
    with pytest.raises(DataError, match=r"duckdb:// needs a query, as no table has .*it has no tables"):
        read_source("duckdb://")


def test_duckdb_without_its_package(duck, monkeypatch):
    hide(monkeypatch, "duckdb")
    with pytest.raises(DataError, match=r"needs an extra: pip install 'fedmc\[duckdb\]'"):
        read_source(duck)
    done = fedmc("train", duck, "--rounds", "1")
    assert done.returncode != 0
    assert "fedmc[duckdb]" in done.stderr


def test_the_only_table_that_fits(sqlite):
    for source in (sqlite, f"sqlite:///{sqlite}"):
        assert pairs(read_source(source)) == EXPECTED
    assert read_source(sqlite).notes[0].startswith("query: SELECT * FROM ")
    assert pairs(read_source(sqlite, ["user_id", "item_id", "rating"])) == EXPECTED


@pytest.mark.parametrize("kind", ["sqlite", "duck"])
def test_several_tables_are_offered(kind, request):
    path = request.getfixturevalue(kind)
    with closing(sqlite3.connect(path) if kind == "sqlite" else duckdb.connect(str(path))) as connection:
        fill(connection, '"order"')
        fill(connection, "others", ("who", "what", "stars"))
        connection.commit()
    with pytest.raises(DataError, match="needs a query, as 2 tables fit") as caught:
        read_source(path)
    for query in ('SELECT * FROM "order"', "SELECT * FROM ratings"):
        assert query in str(caught.value)
        assert pairs(read_source(path, query=query)) == EXPECTED
    assert "others" not in str(caught.value)
    assert pairs(read_source(path, ["who", "what", "stars"])) == EXPECTED
    with pytest.raises(DataError, match=r"no table has columns who, what, when: .* others \(who, what, stars\)"):
        read_source(path, ["who", "what", "when"])


def test_the_command_line_trains_on_a_database_and_tells_what_it_guessed(sqlite, duck, tmp_path):
    line = "columns: user = user_id, item = item_id, rating = rating (guessed; --columns USER,ITEM,RATING to change)"
    for number, path in enumerate((sqlite, duck)):
        options = "--rounds", "1", "--clients", "2", "--preset", "fast", "--rank", "1", "--json"
        done = fedmc("train", str(path), *options, "--out", str(tmp_path / f"run{number}"))
        assert line in done.stderr
        assert "columns:" not in done.stdout


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A driver package that reads an SQLite file, whatever the address, and keeps what it was called with."""

    def make(name, database):
        package = tmp_path / "packages" / f"adbc_driver_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "dbapi.py").write_text(
            "import adbc_driver_sqlite.dbapi as real\nError = real.Error\ncalls = []\n"
            "def connect(*given, **options):\n"
            f"    calls.append((given, options))\n    return real.connect({str(database)!r})\n"
        )
        monkeypatch.syspath_prepend(tmp_path / "packages")
        for known in [one for one in sys.modules if one.startswith(f"adbc_driver_{name}")]:
            monkeypatch.delitem(sys.modules, known)
        return lambda: sys.modules[f"adbc_driver_{name}.dbapi"].calls[-1]

    yield make
    for known in [one for one in sys.modules if one.startswith("adbc_driver_") and "sqlite" not in one]:
        if "packages" in str(getattr(sys.modules[known], "__file__", "")):
            del sys.modules[known]


ADDRESSES = {
    "snowflake://me:p%40ss@account/shop?warehouse=w": (("me:p%40ss@account/shop?warehouse=w",), {}),
    "bigquery://project/data": (
        (), {"adbc.bigquery.sql.project_id": "project", "adbc.bigquery.sql.dataset_id": "data"},
    ),
    "grpc://me:p%40ss@host:99": (("grpc://host:99",), {"username": "me", "password": "p@ss"}),
    "flightsql://host:99": (("grpc+tls://host:99",), {}),
    "oracle://me:p%40ss@host/shop": (("oracle://me:p%40ss@host/shop",), {}),
}  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_scheme_has_a_driver_package(address, fake, sqlite):
    scheme = address.partition(":")[0]
    called = fake(PACKAGES.get(scheme, scheme), sqlite)
    assert pairs(read_source(address, query="select * from ratings")) == EXPECTED
    given, options = ADDRESSES[address]
    assert called()[0] == given
    assert called()[1].get("db_kwargs", {}) == options


@pytest.mark.parametrize("scheme", ["snowflake", "bigquery", "grpc+tls"])
def test_a_driver_package_that_is_missing(scheme, monkeypatch):
    package = PACKAGES[scheme]
    hide(monkeypatch, f"adbc_driver_{package}")
    with pytest.raises(DataError, match=f"pip install adbc-driver-{package}") as caught:
        read_source(f"{scheme}://me:s3cret@host/x", query="select 1")
    assert "s3cret" not in str(caught.value)


def test_a_driver_that_is_registered_on_the_machine(sqlite, tmp_path, monkeypatch):
    (tmp_path / "mylite.toml").write_text(
        f'manifest_version = 1\nname = "mine"\n[Driver]\nshared = {adbc_driver_sqlite._driver_path()!r}\n'
    )
    monkeypatch.setenv("ADBC_DRIVER_PATH", str(tmp_path))
    source = f"adbc+mylite://{sqlite}"
    assert pairs(read_source(source, query="select * from ratings")) == EXPECTED
    with pytest.raises(DataError, match="no such table: nowhere"):
        read_source(source, query="select * from nowhere")
    with pytest.raises(DataError, match="needs a query, as it does not list its tables"):
        read_source(source)


@pytest.mark.parametrize("source", ["mysql://me:s3cret@host/x", "adbc+mysql://me:s3/cr@et@tcp(host)/x"])
def test_a_driver_that_is_nowhere(source):
    with pytest.raises(DataError, match="there is no ADBC driver mysql: pip install adbc-driver-mysql") as caught:
        read_source(source, query="select 1")
    assert all(piece not in str(caught.value) for piece in ("s3cret", "s3", "cr@et"))


def test_a_message_that_may_hold_a_piece_of_the_password_is_not_shown(fake, sqlite):
    called = fake("strange", sqlite)
    package = sys.modules.get("adbc_driver_strange.dbapi")
    assert package is None
    (sqlite.parent / "packages" / "adbc_driver_strange" / "dbapi.py").write_text(
        "class Error(Exception): pass\ndef connect(address, **options): raise Error('cannot reach cr@et')\n"
    )
    with pytest.raises(DataError, match="must be encoded"):
        read_source("strange://me:s3/cr@et@host", query="select 1")
    with pytest.raises(DataError, match="strange://host: cannot reach"):
        read_source("strange://host", query="select 1")
    assert callable(called)
