"""Side information: tables of features, events without a rating, catalogues and prepared shards that hold them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc import FedMC
from fedmc.data import catalogue as catalogues
from fedmc.data import encoding, events, prepare, prepared, side, splits
from fedmc.data.catalogue import Catalogue
from fedmc.data.features import Features, aligned, features_of, read_features
from fedmc.data.partition import Shard, make_shards, together
from fedmc.data.prepare import Plan, federation_of, read_parts
from fedmc.data.ratings import Ratings
from fedmc.data.readers.writing import write_table
from fedmc.errors import DataError, FedmcError, InputError
from fedmc.training.tuning import hold_out
from tests import command
from tests.conftest import examples, planted

WORDS = st.text("abcdef", min_size=1, max_size=2)
NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 3))


def fedmc(*arguments, cwd, code=0):
    done = command.fedmc(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def as_csv(rows, delimiter=","):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def column(features: Features, name: str):
    return features.values[:, features.names.index(name)]


# Encoding.


@given(cells=st.lists(st.none() | NUMBERS, min_size=1, max_size=30))
@examples(60)
def test_numbers_are_standardised_where_they_are_known(tmp_path_factory, cells):
    path = tmp_path_factory.getbasetemp() / "numbers.csv"
    path.write_text(as_csv([["id", "x"], *([i, "" if cell is None else cell] for i, cell in enumerate(cells))]))
    known = np.array([cell for cell in cells if cell is not None])
    found = read_features(path, "item")
    if len(known) == 0 or np.ptp(known) <= 1e-9 * np.abs(known).max(initial=0):
        assert found.names == ()
        assert "column 'x'" in found.notes[0]
        return
    missing = np.array([cell is None for cell in cells])
    x = column(found, "x")
    assert (x[missing] == 0).all()
    assert abs(x[~missing].mean()) < 1e-6
    assert np.sqrt(np.mean(x[~missing] ** 2)) == pytest.approx(1)
    np.testing.assert_allclose(x[~missing], (known - known.mean()) / known.std(), atol=1e-6)


@given(
    cells=st.lists(st.none() | st.lists(WORDS, min_size=1, max_size=4), min_size=3, max_size=30),
    form=st.sampled_from(["csv", "polars", "pandas"]),
)
@examples(60)
def test_categories_are_standardised_indicators(tmp_path_factory, cells, form):
    """A cell may hold several; those of one row, and of all rows, are left out; a missing cell is the mean."""
    path = tmp_path_factory.getbasetemp() / "categories.csv"
    joined = [None if cell is None else "|".join(cell) for cell in cells]
    path.write_text(as_csv([["item", "genres"], *([i, cell or ""] for i, cell in enumerate(joined))]))
    table = {
        "csv": path,
        "polars": pl.DataFrame({"item": range(len(cells)), "genres": cells}, schema_overrides={"genres": pl.List(str)}),
        "pandas": pd.DataFrame({"item": range(len(cells)), "genres": pd.array(joined, "string")}),
    }[form]
    found = features_of(table, "item")
    known = [set(cell) for cell in cells if cell is not None]
    counts = {word: sum(word in cell for cell in known) for cell in known for word in cell}
    kept = {word for word, count in counts.items() if 2 <= count < len(known)}
    assert set(found.names) == {f"genres={word}" for word in kept}
    for word in kept:
        share = counts[word] / len(known)
        expected = [0 if cell is None else ((word in cell) - share) / math.sqrt(share * (1 - share)) for cell in cells]
        np.testing.assert_allclose(column(found, f"genres={word}"), expected, atol=1e-12)


@given(order=st.permutations(range(12)), numbers=st.lists(NUMBERS, min_size=12, max_size=12))
@examples(30)
def test_the_order_of_rows_never_matters(order, numbers):
    frame = pd.DataFrame({"id": range(12), "x": numbers, "kind": list("aabbccddabcd")})
    one, other = features_of(frame, "item"), features_of(frame.iloc[list(order)], "item")
    assert one.names == other.names
    assert one.values.tobytes() == other.values.tobytes()
    assert Catalogue(one.ids, one).hash == Catalogue(other.ids, other).hash


@given(known=st.sets(st.integers(0, 40), min_size=1), wanted=st.sets(st.integers(0, 40), min_size=1))
@examples(60)
def test_alignment(known, wanted):
    values = {one: one % 7 - 3.0 for one in known}
    found = Features(np.array(sorted(known)), ("x",), np.array([[values[one]] for one in sorted(known)]))
    ids = np.array(sorted(wanted))
    if not known & wanted:
        with pytest.raises(DataError, match=r"has none of the .* items of the ratings"):
            aligned(found, ids, "item")
        return
    for same in (ids, np.sort(ids.astype(str))):  # 17 and "17" are the same id
        rows, count = aligned(found, same, "item")
        assert count == len(known & wanted)
        assert rows[:, 0].tolist() == [values.get(int(one), 0.0) for one in same]
    inside = found.within(ids)
    assert inside.ids.tolist() == sorted(known & wanted)
    assert inside.values[:, 0].tolist() == [values[one] for one in sorted(known & wanted)]


def test_kinds_of_columns(tmp_path):
    """Codes with a leading zero and named columns are categories; titles are no features; constants are left out."""
    rows = [
        ["year", "movieId", "Title", "zip", "code", "flat", "genre"],
        ["1995", "7", "A, the film", "02139", "1", "3", "Drama"],
        ["1996", "3", "B", "94110", "2", "3", "Drama"],
        ["NA", "5", "", "02139", "1", "3", ""],
        ["1997", "9", "D", "94110", "2", "3", "Crime"],
    ]
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t"), ("a.txt", ";"), ("a.dat", "|")):
        (tmp_path / name).write_text(as_csv(rows, delimiter), encoding="utf-8-sig")
        found = read_features(tmp_path / name, "item", ["code"])
        assert found.ids.tolist() == [3, 5, 7, 9]
        assert found.titles == ("B", "", "A, the film", "D")
        assert found.names == ("year", "zip=02139", "zip=94110", "code=1", "code=2", "genre=Drama")
        assert column(found, "year")[1] == column(found, "genre=Drama")[1] == 0
        assert found.summary() == "4 rows, 6 features (year, 2 zip, 2 code, 1 genre)"
        assert found.notes == (
            "column 'flat' (the same in all rows)",
            "1 of 2 categories of 'genre' (in fewer than 2 rows)",
        )
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    again = read_features(tmp_path / "a.csv.gz", "item", ["code"])
    assert again.values.tobytes() == found.values.tobytes()
    (tmp_path / "l.csv").write_bytes("id,kind\n1,é\n2,é\n3,e\n".encode("latin-1"))
    assert read_features(tmp_path / "l.csv", "user").names == ("kind=é",)
    frame = pd.DataFrame({"id": ["a", "b", "c"], "when": pd.to_datetime(["2001-01-01", "2001-01-02", None])})
    frame["on"], frame["n"] = [True, False, True], ["1", "2", "1"]
    found = features_of(frame[frame.id != "d"], "user")
    assert found.names == ("when", "on", "n=1")  # strings in a DataFrame are categories
    np.testing.assert_allclose(column(found, "when"), [-1, 1, 0])
    for write in ("to_parquet", "to_feather"):
        getattr(frame, write)(tmp_path / "typed")
        assert read_features(tmp_path / "typed", "user").values.tobytes() == found.values.tobytes()


def test_data_frames_of_either_library():
    """The first column holds the ids, unless another has a usual name and it has not."""
    columns = {"movie": ["A", "B", "C"], "x": [1, 2, None], "kind": ["a", "b", "b"]}
    made = [pd.DataFrame({"id": [7, 8, 9]} | columns), pl.DataFrame({"id": [7, 8, 9]} | columns)]
    made += [one.astype({"kind": "category"}) if isinstance(one, pd.DataFrame) else one for one in made]
    made.append(made[1].with_columns(pl.col("kind").cast(pl.Categorical)))
    for frame in made:
        found = features_of(frame, "item")
        assert found.ids.tolist() == [7, 8, 9]
        assert found.names == ("x", "kind=b")
        np.testing.assert_allclose(column(found, "x"), [-1, 1, 0])
    assert features_of(made[-1].with_columns(pl.concat_list("kind")), "item").names == ("x", "kind=b")
    late = pd.DataFrame(columns).drop(columns="movie").assign(item_id=["a", "c", "b"])
    assert features_of(late, "item").ids.tolist() == ["a", "b", "c"]
    assert features_of(made[0].set_index("id"), "item").ids.tolist() == ["A", "B", "C"]  # `movie` comes first


def test_other_rows_are_encoded_alike():
    frame = pd.DataFrame({"id": range(8), "x": [1.0, 2, 3, 4, 5, 6, 7, None], "kind": [*"aabbcc", "a|b", None]})
    found = features_of(frame, "user")
    again = features_of(frame.iloc[[1, 6]], "user", encoded_like=found)
    assert again.names == found.names
    assert np.array_equal(again.values, found.values[[1, 6]])
    new = features_of(pd.DataFrame({"id": [99], "kind": ["new"], "more": [1]}), "user", encoded_like=found)
    assert column(new, "x") == 0
    assert column(new, "kind=a") == column(found, "kind=a").min()


def test_too_many_categories():
    """The most frequent ones are kept: 200 of a column, and 500 in all."""
    rows = 2000
    frame = pd.DataFrame({f"c{k}": [f"v{i % 300}" for i in range(rows)] for k in range(4)} | {"x": range(rows)})
    found = features_of(frame.assign(id=range(rows)), "item")
    assert len(found.names) == encoding.MAX_FEATURES
    assert found.names[0] == "x"
    assert sum(name.startswith("c0=") for name in found.names) <= encoding.MAX_CATEGORIES
    assert "100 of 300 categories of 'c0' (the rarest: at most 200 of a column)" in found.notes
    assert found.notes[-1] == "301 of 800 categories (the rarest: at most 500 features)"
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(5, 501))).rename(columns=str).assign(id=range(5))
    with pytest.raises(DataError, match="501 columns of numbers, at most 500"):
        features_of(wide, "user")


BAD = {
    "": "is empty: expected a header",
    "id,year\n": "has a header but no rows",
    "1,1995\n2,1996\n": r"line 1: expected a header with the names of the columns, got the number '1'",
    "id,year,year\n1,2,3\n": "more than one column 'year'",
    "id,,year\n1,2,3\n": "column 2 has no name",
    "id,year\n1,1995\n2\n": r"line 3: expected 2 fields, as in the header, got 1",
    "id,year\n1,1995\n,1996\n": "line 3: the user id is empty",
    "id,year\n1,1995\n2,1996\n1,1997\n": r"line 4: user 1 has a row already \(.*line 2\)",
    "id,year\n1,1995\n2,inf\n": r"line 3: column 'year' holds inf; numbers must be finite and within \+-1e\+15",
    "id,year\n1,1995\n2,1e300\n": "line 3: column 'year' holds 1e",
    "id,year\n"
    + "".join(f"{i},{i}\n" for i in range(20))
    + "20,x5\n": r"line 22: 'x5' in column 'year' is not a number",
    "id,year\n1,1995\n2,1995\n": "holds no feature",
    "id\n1\n2\n": "no column besides the ids",
    'id,year\n1,"1995\n2,1996\n': "expected|unexpected|holds no feature|fields",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_tables(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=BAD[text]):
        read_features(tmp_path / "bad.csv", "user")
    with pytest.raises(DataError):
        read_features(tmp_path / "none.csv", "user")


@given(content=st.binary(max_size=60) | st.text("id,;|\t\n\"'01.9ae", max_size=60).map(str.encode))
@examples(150)
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        found = read_features(path, "item")
    except DataError:
        return
    assert np.isfinite(found.values).all()
    assert found.values.shape == (len(found.ids), len(found.names))


def test_bad_data_frames():
    frame = pd.DataFrame({"id": [1, 2, 2], "x": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match=r"row 3: item 2 has a row already \(the item table, row 2\)"):
        features_of(frame, "item")
    with pytest.raises(DataError, match="has no rows"):
        features_of(frame.head(0), "item")
    with pytest.raises(DataError, match="is missing"):
        features_of(frame.assign(id=["a", None, "b"]), "item")
    with pytest.raises(DataError, match="cannot be a feature, it holds struct"):
        features_of(pl.DataFrame({"id": [1], "x": [{"a": 1}]}), "item")
    with pytest.raises(DataError, match="cannot be a feature, it holds large_list"):
        features_of(pl.DataFrame({"id": [1], "x": [[{"a": 1}]]}), "item")
    with pytest.raises(DataError, match="there is no column 'y' of categories"):
        features_of(frame.head(2), "item", ["y"])
    with pytest.raises(DataError, match="make every column of one kind"):
        features_of(pd.DataFrame({"id": [1, 2], "x": ["a", 2]}), "item")
    with pytest.raises(DataError, match="from a dict"):
        features_of({"id": [1]}, "item")


# Events without a rating.


def seen_of(shards):
    return {(shard.users[row], col) for shard in shards for row, col in zip(*shard.also_seen.nonzero(), strict=True)}


@given(seed=st.integers(0, 1000), clients=st.integers(1, 6))
@examples(30)
def test_held_out_pairs_are_never_among_the_events(seed, clients):
    rng = np.random.default_rng(seed)
    ratings = planted(30, 12, seed=seed, density=0.6)
    ratings.matrix.data[rng.random(len(ratings)) < 0.2] = 0  # a stored 0 is a rating
    rest, test = splits.at_random(ratings, 0.2, seed)
    train, validation = splits.at_random(rest, 0.2, seed + 1)
    pattern = sparse.csr_array(rng.random((30, 12)) < 0.7).astype(np.int8)
    features = rng.normal(size=(30, 3))
    shards = make_shards(train, np.arange(30) % clients, "float32", test, validation, features, pattern)
    aside = {pair for part in (test, validation) for pair in zip(part.rows(), part.matrix.indices, strict=True)}
    assert seen_of(shards) == set(zip(*pattern.nonzero(), strict=True)) - aside
    for shard in shards:
        assert np.array_equal(shard.features, features[shard.users])
        kept = hold_out(shard, 0.3, seed)
        assert kept.features is shard.features
        again = set(zip(*kept.validation.tocoo().coords, strict=True))
        assert seen_of([kept]) == seen_of([shard]) - {(shard.users[row], col) for row, col in again}


def test_several_clients_as_one():
    ratings, rng = planted(30, 12), np.random.default_rng(0)
    pattern = sparse.csr_array(rng.random((30, 12)) < 0.3).astype(np.int8)
    features = rng.normal(size=(30, 2))
    whole = make_shards(ratings, np.arange(30) % 3, "float64", None, None, features, pattern)
    joined = together(whole)
    order = np.concatenate([shard.users for shard in whole])
    assert np.array_equal(joined.features, features[order])
    assert np.array_equal(joined.also_seen.toarray(), pattern[order].toarray())
    incidence = np.vstack([shard.incidence.astype(bool).toarray() for shard in whole])
    assert np.array_equal(joined.incidence.astype(bool).toarray(), incidence)
    bare = make_shards(ratings, np.arange(30) % 3, "float64")
    mixed = together([whole[0], bare[1], whole[2]])
    assert (mixed.features[10:20] == 0).all()
    assert mixed.also_seen[10:20].nnz == 0
    assert np.array_equal(mixed.features[20:], features[whole[2].users])
    assert together(bare).features is together(bare).also_seen is None
    narrower = Shard.of(1, bare[1].users, bare[1].by_user, features=np.zeros((10, 5)))
    with pytest.raises(DataError, match="different numbers of user features"):
        together([whole[0], narrower])


DAY = 86400
TIMED = "user,item,rating,time\n" + "".join(
    f"u{u},{i},{1 + (u + i) % 5},{DAY * (10 * i + u)}\n" for u in range(6) for i in range(8)
)


def plan_of(folder, **more):
    (folder / "r.csv").write_text(TIMED)
    return Plan(str(folder / "r.csv"), clients=2, **more)


def test_events_after_the_split_are_not_used(tmp_path):
    """With date: those at or after the date; with last:K: those after the user's last training rating."""
    seen = tmp_path / "seen.csv"
    text = "user,item,time\n" + "".join(
        f"u{u},{i},{DAY * day}\n" for u in range(6) for i, day in enumerate(range(0, 80, 10))
    )
    seen.write_text(text + f"u0,3,{DAY * 79}\nu9,3,5\nu1,99,5\n")
    parts = read_parts(plan_of(tmp_path, also_seen=seen, split="date:1970-02-10"))  # day 40
    assert sorted(set(parts.side.also_seen.indices.tolist())) == [0, 1, 2, 3]
    assert parts.side.notes[1:] == (
        "also seen: 51 events, 24 pairs of a known user and item; left out: 2 of unknown users or items, "
        "25 later than the training ratings",
    )
    parts = read_parts(plan_of(tmp_path, also_seen=seen, split="last:2"))  # the last training rating: day 50 + u
    assert sorted(set(parts.side.also_seen.indices.tolist())) == [0, 1, 2, 3, 4, 5]
    parts = read_parts(plan_of(tmp_path, also_seen=seen, split="date:1970-02-10", validation="last:1"))
    assert sorted(set(parts.side.also_seen.indices.tolist())) == [0, 1, 2]
    seen.write_text("user,item\nu1,3\nu1,3\n")
    assert read_parts(plan_of(tmp_path, also_seen=seen, split="random:0.2")).side.also_seen.nnz == 1
    with pytest.raises(DataError, match="no time column found"):
        read_parts(plan_of(tmp_path, also_seen=seen, split="last:2"))
    seen.write_text("user,item\nx,3\n")
    with pytest.raises(DataError, match="none of the 1 events is of a user and an item of the ratings"):
        read_parts(plan_of(tmp_path, also_seen=seen))
    seen.write_text(f"user,item,time\nu1,3,{DAY * 500}\n")
    with pytest.raises(DataError, match="no event is left"):
        read_parts(plan_of(tmp_path, also_seen=seen, split="last:2"))


def test_layouts_of_events(tmp_path):
    path = tmp_path / "seen"
    frame = pd.DataFrame({"userId": [3, 1, 3], "movieId": [5, 5, 5], "timestamp": [30, 20, 10]})
    expected = [(1, 5, 20), (3, 5, 10), (3, 5, 30)]
    for source in ("1,5,20\n3,5,10\n3,5,30\n", "3::5::4::30\n1::5::1::20\n3::5::2::10\n", frame, pl.from_pandas(frame)):
        if isinstance(source, str):
            path.write_text(source)
        found = events.read_pairs(path if isinstance(source, str) else source, times=True)
        rows = zip(found.users[found.rows], found.items[found.columns], found.times, strict=True)
        assert sorted(rows) == expected
    path.write_text("1\t5\n3\t7\n")
    assert events.read_pairs(path).items.tolist() == [5, 7]
    for bad, why in (
        ("", "is empty"),
        ("1\n", "at least two fields"),
        ("a,b\n1,2\n", "no user column"),
        ("user,item\n1,\n", "line 2"),
    ):
        path.write_text(bad)
        with pytest.raises(DataError, match=why):
            events.read_pairs(path)
    with pytest.raises(DataError, match="from a list"):
        events.read_pairs([1, 2])


# Preparing, catalogues, commands, the estimator.

ITEMS = "id,title,year,genres\n" + "".join(
    f"{i},T{i},{1990 + i},{'Drama|War' if i % 3 else 'Crime'}\n" for i in range(-2, 7)
)
USERS = "user,age,job\n" + "".join(f"u{u},{20 + u},{'ab'[u % 2]}\n" for u in range(1, 9))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "items.csv").write_text(ITEMS)
    (tmp_path / "users.csv").write_text(USERS)
    (tmp_path / "seen.csv").write_text("user,item,time\nu1,-1,5\nu2,3,7\nu3,1,9\n")
    (tmp_path / "r.csv").write_text(TIMED)
    return tmp_path


def full_plan(folder, **more):
    return plan_of(
        folder, user_features=folder / "users.csv", items=folder / "items.csv", also_seen=folder / "seen.csv", **more
    )


def test_a_federation_with_side_information(folder):
    made = federation_of(full_plan(folder, split="random:0.2"), "float64")
    assert made.items.tolist() == list(range(-2, 8))  # -2 and -1 have no ratings, 7 has no row
    assert made.item_features.shape == (10, len(made.item_table.names))
    assert (made.item_features[-1] == 0).all()
    assert made.item_table.titles[0] == "T-2"
    assert made.user_feature_names == ("age", "job=a", "job=b")
    rows = np.concatenate([shard.users for shard in made.shards])
    found = np.concatenate([shard.features for shard in made.shards])[np.argsort(rows)]
    table = read_features(folder / "users.csv", "user")
    assert np.array_equal(found, aligned(table, made.users, "user").values)
    assert (found[0] == 0).all()  # u0 has no row
    assert made.notes[1:3] == (
        "user features: 8 rows, 3 features (age, 2 job); 5 of 6 users have a row",
        "items: 9 rows, 4 features (year, 3 genres); 7 of 8 rated items have a row, 2 without ratings",
    )
    bare = federation_of(plan_of(folder, split="random:0.2"), "float64")
    assert bare.item_features is bare.item_table is None
    assert bare.notes == (
        "columns: user = user, item = item, rating = rating (guessed; --columns USER,ITEM,RATING to change)",
    )


def test_prepared_shards_hold_side_information(folder):
    plan = full_plan(folder, split="random:0.2")
    prepare.write_prepared(folder / "shards", read_parts(plan))
    made, opened = federation_of(plan, "float32"), federation_of(Plan(str(folder / "shards")), "float32")
    assert opened.items.tolist() == made.items.tolist()
    assert np.array_equal(opened.item_features, made.item_features)
    assert opened.item_table.titles == made.item_table.titles
    assert opened.user_feature_names == made.user_feature_names
    for one, other in zip(made.shards, opened.shards, strict=True):
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.also_seen.toarray(), other.also_seen.toarray())
    assert prepared.read_manifest(folder / "shards")["version"] == prepared.WITH_SIDE
    with pytest.raises(InputError, match="give them to `fedmc prepare`"):
        federation_of(plan._replace(source=str(folder / "shards")), "float32")
    prepare.write_prepared(folder / "bare", read_parts(plan_of(folder)))
    assert prepared.read_manifest(folder / "bare")["version"] == prepared.VERSION
    assert federation_of(Plan(str(folder / "bare")), "float32").shards[0].features is None


def test_a_catalogue_keeps_the_table(folder):
    table = read_features(folder / "items.csv", "item")
    plain = Catalogue.of(np.arange(8))
    made = plain.with_table(table)
    assert made.items.tolist() == list(range(-2, 8))
    made.save(folder / "c.json")
    again = catalogues.load(folder / "c.json")
    assert again.hash == made.hash != Catalogue(made.items).hash
    assert again.features.values.tobytes() == table.values.tobytes()
    assert (again.features.titles, again.features.names) == (table.titles, table.names)
    assert again.features.encoding == table.encoding
    assert again.features.ids.tolist() == table.ids.tolist()
    changed = Features(table.ids, table.names, table.values + 1e-9, table.titles, table.encoding)
    assert plain.with_table(changed).hash != made.hash
    made = federation_of(plan_of(folder, catalogue=folder / "c.json"), "float64")
    assert np.array_equal(made.item_features, aligned(table, made.items, "item").values)
    with pytest.raises(DataError, match="has a table of items already"):
        federation_of(plan_of(folder, catalogue=folder / "c.json", items=folder / "items.csv"), "float64")
    plain.save(folder / "p.json")  # a catalogue without a table: rows outside of it are dropped
    made = federation_of(plan_of(folder, catalogue=folder / "p.json", items=folder / "items.csv"), "float64")
    assert made.items.tolist() == list(range(8))
    assert made.notes[1] == "items: 2 rows of items outside of the catalogue are left out"
    prepare.write_prepared(folder / "s", read_parts(plan_of(folder, catalogue=folder / "c.json")))
    assert prepared.open_prepared(folder / "s").catalogue.hash == again.hash


def test_old_catalogues_load_and_stay_as_they_are(tmp_path):
    """Version 1, byte by byte, for catalogues without a table."""
    text = '{\n"format": "fedmc-catalogue",\n"version": 1,\n"hash": "HASH",\n"items": [\n1,\n5,\n9\n]\n}'
    digest = hashlib.sha256(b"int\n1\n5\n9").hexdigest()
    (tmp_path / "old.json").write_text(text.replace("HASH", digest))
    old = catalogues.load(tmp_path / "old.json")
    assert old.features is None
    assert old.hash == digest
    old.save(tmp_path / "new.json")
    assert (tmp_path / "new.json").read_text() == (tmp_path / "old.json").read_text()


def test_damaged_catalogues_with_a_table_are_refused(folder):
    Catalogue.of(np.arange(8)).with_table(read_features(folder / "items.csv", "item")).save(folder / "c.json")
    whole = json.loads((folder / "c.json").read_text())
    bombs = {
        "names": [[], ["x"] * 4, [1, 2, 3, 4], None],
        "rows": [[], [0] * 9, list(range(1, 10)), list(range(9, 0, -1)), [0.5] * 9, ["a"], [-1, *range(8)], None],
        "titles": [["a"], [1] * 9, "x"],
        "values": ["", "!!", whole["features"]["values"][:-8], 7, None],
        "encoding": [[], [["year"]], [["year", None, "x", 1]] * 4, None],
    }
    for name, values in bombs.items():
        for value in values:
            content = whole | {"features": whole["features"] | {name: value}}
            (folder / "c.json").write_text(json.dumps(content))
            with pytest.raises(DataError):
                catalogues.load(folder / "c.json")
    for content in (
        whole | {"features": None},
        whole | {"features": []},
        whole | {"version": 4},
        whole | {"version": 1},
    ):
        (folder / "c.json").write_text(json.dumps(content))
        with pytest.raises(DataError):
            catalogues.load(folder / "c.json")


def test_ids_of_different_kinds(folder):
    table = read_features(folder / "items.csv", "item")
    words = Features(np.sort(table.ids.astype(str)), table.names, table.values, table.titles)
    assert Catalogue.of([1, 2, 3]).with_table(words).items.tolist() == list(range(-2, 7))
    assert Catalogue.of(["1", "x"]).with_table(table).items.dtype.kind == "U"
    odd = Features(np.array(["1", "x"]), ("a",), np.ones((2, 1)))
    with pytest.raises(DataError, match="whole numbers in the ratings, but not in the table: got 'x'"):
        Catalogue.of([1, 2]).with_table(odd)


OPTIONS = ("--rounds", 2, "--rank", 2, "--clients", 2)
SIDE = ("--items", "items.csv", "--user-features", "users.csv", "--also-seen", "seen.csv")


def test_training_at_the_command_line(folder):
    said = fedmc("train", "r.csv", *OPTIONS, *SIDE, "--categorical", "year", "--out", "run", cwd=folder)
    assert "user features: 8 rows, 3 features (age, 2 job); 5 of 6 users have a row\n" in said
    assert "2 without ratings\n" in said
    assert "items: left out 9 of 9 categories of 'year' (in fewer than 2 rows)\n" in said
    assert 'items = "items.csv"' in (folder / "run" / "settings.toml").read_text()
    fedmc("prepare", "r.csv", *SIDE, "--clients", 2, "--out", "shards", cwd=folder)
    fedmc("train", "shards", "--rounds", 1, "--rank", 2, "--out", "again", cwd=folder)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--user-features", "users.csv", "--preset", "fast"), "user features need preset bayes"),
        (("--also-seen", "seen.csv", "--preset", "paper"), "events without a rating need preset bayes"),
        (("--items", "nothing.csv"), "there is no file nothing.csv"),
        (("--items", "users.csv"), "item ids are whole numbers in the ratings, but not in the table: got 'u1'"),
        (("--user-features", "items.csv"), "has none of the 6 users of the ratings"),
        (("--also-seen", "items.csv"), "no user column found"),
        (("--categorical", "age"), "give a table"),
        (("--user-features", "users.csv", "--categorical", "ages"), "there is no column 'ages'"),
    ],
)
def test_bad_options(folder, options, why):
    said = fedmc("train", "r.csv", *OPTIONS, *options, "--out", "run", cwd=folder, code=2)
    assert why in said
    assert not (folder / "run").exists()


def test_catalogues_at_the_command_line(folder):
    said = fedmc("catalogue", "make", "r.csv", "--items", "items.csv", "--out", "c.json", cwd=folder)
    assert "items: 9 rows, 4 features (year, 3 genres); 2 of them were not in the catalogue\n" in said
    assert "10 items in c.json" in said
    fedmc("catalogue", "make", "r.csv", "--out", "p.json", cwd=folder)
    fedmc("catalogue", "merge", "p.json", "c.json", "--out", "m.json", cwd=folder)
    fedmc("catalogue", "merge", "p.json", "--items", "items.csv", "--out", "n.json", cwd=folder)
    hashes = {catalogues.load(folder / f"{name}.json").hash for name in "cmn"}
    assert len(hashes) == 1
    assert next(iter(hashes)) in fedmc("catalogue", "check", "c.json", "r.csv", cwd=folder)
    said = fedmc(
        "catalogue", "merge", "p.json", "c.json", "--items", "items.csv", "--out", "x.json", cwd=folder, code=2
    )
    assert "have a table of items already" in said
    (folder / "items.csv").write_text(ITEMS.replace("1990", "1891"))
    fedmc("catalogue", "make", "r.csv", "--items", "items.csv", "--out", "d.json", cwd=folder)
    said = fedmc("catalogue", "merge", "d.json", "c.json", "--out", "x.json", cwd=folder, code=2)
    assert "different tables of features" in said
    fedmc("catalogue", "make", "r.csv", "--categorical", "year", "--out", "x.json", cwd=folder, code=2)
    fedmc("train", "r.csv", *OPTIONS, "--catalogue", "c.json", "--out", "run", cwd=folder)


def test_the_estimator(folder):
    frame = pd.read_csv(folder / "r.csv")
    tables = {"user_features": pd.read_csv(folder / "users.csv"), "items": folder / "items.csv"}
    model = FedMC(2, rounds=2, clients=2).fit(frame, **tables, also_seen=frame[["user", "item"]])
    assert model.model_.items.tolist() == list(range(-2, 8))
    assert np.isfinite(model.predict(["u1"], [-2])).all()
    FedMC(2, rounds=2, clients=2, validation=0.2).fit(frame, also_seen=frame[["user", "item"]])
    with pytest.raises(InputError, match="user features need preset bayes"):
        FedMC(2, rounds=1, preset="fast", clients=2).fit(frame, user_features=folder / "users.csv")
    with pytest.raises(DataError, match="pass a DataFrame or the path"):
        FedMC(2, rounds=1, clients=2).fit(frame, items=3)
    X = sparse.csr_array(np.array([[1.0, 2, 0], [3, 0, 4]]))
    found, more = side.side_of_ratings(side.Sources(items=pd.DataFrame({"id": [0, 1, 5], "x": [1, 2, 3]})), as_rows(X))
    assert found.items.tolist() == [0, 1, 2, 5]
    assert more.item_features.shape == (4, 1)


def as_rows(X):
    return Ratings(np.arange(X.shape[0]), np.arange(X.shape[1]), X)


def test_side_information_does_not_change_the_ratings(tmp_path):
    write_table(planted(), tmp_path / "r.csv")
    (tmp_path / "i.csv").write_text("id,x\n" + "".join(f"{i},{i % 4}\n" for i in range(20)))
    plans = [Plan(str(tmp_path / "r.csv"), split="0.2", clients=3, items=path) for path in (None, tmp_path / "i.csv")]
    one, other = (federation_of(plan, "float64") for plan in plans)
    for a, b in zip(one.shards, other.shards, strict=True):
        assert np.array_equal(a.by_user.toarray(), b.by_user.toarray()[:, : len(one.items)])
        assert np.array_equal(a.test.toarray(), b.test.toarray()[:, : len(one.items)])


def test_a_database_is_no_table_of_items(tmp_path):
    (tmp_path / "shop.db").write_bytes(b"SQLite format 3\0" + bytes(84))
    with pytest.raises(FedmcError, match="item table cannot be read from a database: write it to a CSV or Parquet"):
        read_features(tmp_path / "shop.db", "item")
