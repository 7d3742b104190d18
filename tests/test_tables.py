"""Tables of a Python user: DataFrames with any column names become ratings, and every kind of table can be split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

import fedmc
from fedmc import FedMC, Ratings, split
from fedmc.data.events import read_pairs
from fedmc.errors import DataError, FedmcError
from tests.conftest import planted

NAMES = {"user": "who", "item": "what", "rating": "stars"}


def columns(times: bool = False) -> dict[str, np.ndarray]:
    found = planted().columns()
    return found | ({"timestamp": np.arange(len(found["user"])) * 86_400} if times else {})


def same(one: Ratings, other: Ratings) -> bool:
    return (
        np.array_equal(one.users, other.users)
        and np.array_equal(one.items, other.items)
        and np.array_equal(one.matrix.toarray(), other.matrix.toarray())
        and (one.times is None) == (other.times is None)
        and (one.times is None or np.array_equal(one.times, other.times))
    )


class OnlyArrow:
    """A table that has nothing but Arrow's stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, lambda given: OnlyArrow(pa.table(given))])
def test_a_dataframe_with_any_column_names_becomes_ratings(make):
    renamed = {NAMES.get(name, name): column for name, column in columns().items()}
    assert same(Ratings.from_dataframe(make(renamed), **NAMES), planted())
    timed = {NAMES.get(name, "when"): column for name, column in columns(times=True).items()}
    found = Ratings.from_dataframe(make(timed), **NAMES, time="when")
    assert found.times.tolist() == columns(times=True)["timestamp"].tolist()
    assert same(Ratings.from_dataframe(make(columns())), planted())


def test_a_dataframe_of_events_needs_no_rating():
    frame = pd.DataFrame({"who": ["a", "a", "b", "a"], "what": [1, 2, 1, 1], "score": [5, 5, 5, 5]})
    found = Ratings.from_dataframe(frame, user="who", item="what", rating=None, duplicates="sum")
    assert found.matrix.toarray().tolist() == [[2, 1], [1, 0]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user": "nobody"}, "no column 'nobody': the table has who, what, stars"),
        ({"user": "what"}, "column of its own"),
        ({"time": "when"}, "no column 'when'"),
        ({"rating": None, "item": "where"}, "no column 'where'"),
    ],
)
def test_columns_that_are_not_there_are_named(given, message):
    frame = pd.DataFrame({"who": [1], "what": [2], "stars": [3.0]})
    with pytest.raises(DataError, match=message):
        Ratings.from_dataframe(frame, **(NAMES | given))


def test_what_is_no_dataframe_is_refused_with_the_cure():
    with pytest.raises(DataError, match=r"columns from a dict: pass a pandas .*from_arrays"):
        Ratings.from_dataframe({"user": [1]})
    with pytest.raises(DataError, match="the table is empty"):
        Ratings.from_dataframe(pd.DataFrame({"user": [], "item": [], "rating": []}, dtype="int64"))


def test_every_kind_of_table_can_be_split():
    ratings, table = planted(), columns()
    entries = ratings.matrix.tocoo()
    full = np.full(ratings.matrix.shape, np.nan)
    full[entries.row, entries.col] = entries.data
    expected = fedmc.split(ratings, 0.2, seed=3)
    kinds = (
        pd.DataFrame(table),
        pl.DataFrame(table),
        sparse.csr_matrix((entries.data, (entries.row, entries.col)), shape=ratings.matrix.shape),
        full,
        (table["user"], table["item"], table["rating"]),
    )
    for given in kinds:
        assert all(map(same, fedmc.split(given, 0.2, seed=3), expected))
    with pytest.raises(FedmcError, match="cannot read ratings from a int"):
        fedmc.split(3, 0.2)


def test_splits_by_time_read_the_times_of_a_dataframe():
    table = columns(times=True)
    frame, ratings = pd.DataFrame(table), Ratings.from_arrays(*table.values())
    dated = "1970-04-01"
    for found, expected in (
        (fedmc.last(frame, 2), fedmc.split(ratings, "last:2")),
        (fedmc.split(frame, "last:2"), fedmc.split(ratings, "last:2")),
        (fedmc.since(frame, dated), fedmc.split(ratings, f"date:{dated}")),
    ):
        assert all(map(same, found, expected))
        assert 0 < len(found[1]) < len(ratings)
    rest, left = fedmc.leave(frame, 1, seed=2)
    assert rest.times is None
    assert np.array_equal(left.matrix.toarray(), fedmc.split(ratings, "leave:1", 2)[1].matrix.toarray())
    with pytest.raises(DataError, match="no time column found"):
        fedmc.last(pd.DataFrame(columns()), 1)
    with pytest.raises(DataError, match=r"needs times, and these ratings have none: give"):
        fedmc.last(planted(), 1)


def test_lazy_frames():
    """A polars LazyFrame is computed at every door that takes a DataFrame."""
    lazy = pl.LazyFrame({"user": [1, 1, 2, 3, 3], "item": [1, 2, 1, 2, 3], "rating": [3.0, 4.0, 5.0, 1.0, 2.0]})
    frame = lazy.collect()
    titles = pl.LazyFrame({"item": [1, 2, 3], "title": ["A", "B", "C"]})
    small = {"rank": 2, "clients": 2, "rounds": 2}
    eager, fitted = FedMC(**small).fit(frame), FedMC(**small).fit(lazy, items=titles)
    assert fitted.model_.title_of([1, 3]).tolist() == ["A", "C"]
    assert np.array_equal(eager.predict(frame), fitted.predict(lazy))
    assert eager.score(frame) == fitted.score(lazy)
    rows, y = lazy.select("user", "item"), frame["rating"].to_numpy()
    assert np.array_equal(
        FedMC(**small).fit(rows, y).predict(rows), FedMC(**small).fit(rows.collect(), y).predict(rows)
    )
    assert len(Ratings.from_dataframe(lazy)) == 5
    train, test = split(lazy, 0.4)
    assert (len(train), len(test)) == (3, 2)
    wide = pl.LazyFrame({"user": ["a", "b"], "x": [1.0, None], "y": [2.0, 3.0]})
    assert len(Ratings.from_wide(wide)) == 3
    assert len(read_pairs(rows).rows) == 5
    with pytest.raises(DataError, match="cannot read ratings from a int"):
        FedMC().fit(3)
