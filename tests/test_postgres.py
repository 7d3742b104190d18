"""A real PostgreSQL of the tests' own: train from a query, and errors that keep the password."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmc.data.addresses import without_password
from fedmc.data.loading import read_source
from fedmc.errors import DataError
from tests.postgres import PASSWORD, execute, postgres

FEDMC = str(Path(sys.executable).parent / "fedmc")


@pytest.fixture(scope="module")
def server():
    with postgres() as address:
        yield address


@pytest.fixture(scope="module")
def table(server):
    """100,000 ratings of 1,000 users and 500 items, with text ids."""
    execute(
        server,
        "create table ratings as select 'u' || (n % 1000) as who, (n / 1000 * 5 + n % 5) % 500 as what, "
        "(1 + (n * 7919) % 9 / 2.0)::numeric(3, 1) as stars, "
        "timestamp '2020-01-01' + n * interval '1 minute' as rated_at from generate_series(0, 99999) as n",
    )
    return server


def test_a_bare_address_reads_the_table_that_fits_or_offers_those_that_could(table, tmp_path):
    """Tables in the order in which they appear: none fits, one does, several do."""
    with pytest.raises(DataError, match=r"needs a query, as no table has .*ratings \(who, what, stars, rated_at\)"):
        read_source(table)
    done = subprocess.run([FEDMC, "train", table], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2
    assert "ratings (who, what, stars, rated_at)" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(read_source(table, ["who", "what", "stars"])) == 100_000
    try:
        execute(
            table, 'create table likes as select 1 as "user", n as item, 4.5 as rating from generate_series(1, 9) as n'
        )
        assert len(read_source(table)) == 9
        execute(table, "create table more as select * from likes")
        with pytest.raises(DataError, match=r"as 2 tables fit: .*SELECT \* FROM likes.*SELECT \* FROM more"):
            read_source(table)
    finally:
        execute(table, "drop table if exists likes, more")


QUERY = 'select who as "user", what as item, stars as rating, rated_at as time from ratings'


def test_read(table):
    ratings = read_source(table, query=QUERY, times=True)
    assert len(ratings) == 100_000
    assert len(ratings.users) == 1000
    assert ratings.users[0] == "u0"
    assert ratings.matrix.data.min() == 1
    assert ratings.matrix.data.max() == 5
    assert ratings.times.min() == int(np.datetime64("2020-01-01").astype("datetime64[s]").astype(int))
    named = read_source(table, ["who", "what", "stars"], query="select * from ratings where what < 50")
    assert len(named.items) <= 50


def train(source, query, tmp_path):
    command = [
        FEDMC,
        "train",
        source,
        "--query",
        query,
        "--rounds",
        "2",
        "--rank",
        "2",
        "--out",
        tmp_path / "run",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert PASSWORD not in done.stdout + done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_train_from_a_query(table, tmp_path):
    done = train(table, QUERY, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 2
    assert "s3cret" not in (tmp_path / "run" / "settings.toml").read_text()


def test_wrong_password_and_missing_column(table, tmp_path):
    wrong = train(table.replace("s3cret", "s3cretX"), QUERY, tmp_path)
    assert wrong.returncode == 2
    assert "password authentication failed" in wrong.stderr
    column = train(table, "select who, what, what as again from ratings", tmp_path)
    assert column.returncode == 2
    assert "no user column found: the table has who, what, again" in column.stderr
    pairs = train(table, "select who, what from ratings", tmp_path)
    assert pairs.returncode == 2
    assert "two columns: user and item" in pairs.stderr
    syntax = train(table, "select nonsense from ratings", tmp_path)
    assert syntax.returncode == 2
    assert 'column "nonsense" does not exist' in syntax.stderr
    empty = train(table, QUERY + " where false", tmp_path)
    assert empty.returncode == 2
    assert "no ratings" in empty.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"fedmc:\*\*\*@127\.0\.0\.1:1"):
        read_source("postgresql://fedmc:secret@127.0.0.1:1/x", query="select 1")


def test_passwords_are_never_shown():
    assert without_password("postgresql://me:pa@ss@host/db") == "postgresql://me:***@host/db"
    assert without_password("postgresql://me:secret@host/db?x=1") == "postgresql://me:***@host/db?x=1"
    assert (
        without_password("postgresql://host/db?user=me&password=secret&x=1")
        == "postgresql://host/db?user=me&password=***&x=1"
    )
    assert without_password("ratings.csv") == "ratings.csv"
