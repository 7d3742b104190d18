"""Wide matrices: recognised, refused with the cure, and read; long tables stay long."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from numpy.testing import assert_array_equal

import fedmc
from fedmc.data.forms import Wide
from fedmc.data.loading import as_ratings, read_source
from fedmc.data.readers import shapes, wide
from fedmc.errors import DataError, InputError
from tests.command import fedmc as command

USERS, ITEMS = 60, 8


@pytest.fixture(scope="module")
def cells():
    """Ratings of jokes from -10 to 10; NaN where there is none, and everywhere in the row of user 5."""
    rng = np.random.default_rng(3)
    made = np.round(rng.uniform(-10, 10, (USERS, ITEMS)), 2)
    made[rng.random(made.shape) < 0.4] = np.nan
    made[4] = np.nan
    return made


def lines(cells, empty="99", labels=None, header=None, mark=","):
    """The matrix as text."""
    shown = [[empty if np.isnan(cell) else f"{cell:g}" for cell in row] for row in cells]
    rows = [row if labels is None else [str(label), *row] for label, row in zip(labels or shown, shown, strict=True)]
    return "".join(mark.join(row) + "\n" for row in ([header] if header else []) + rows)


def counts(cells):
    return (~np.isnan(cells)).sum(axis=1).tolist()


NAMES = [f"joke {k}" for k in range(ITEMS)]
NUMBERS = list(range(1, USERS + 1))
FORMS = {  # keyword arguments of `lines`, then whether users and items have names
    "plain": ({}, 1, 1),
    "tabs": ({"mark": "\t"}, 1, 1),
    "counted": ({"labels": "counts"}, 1, 1),
    "counted, empty cells": ({"labels": "counts", "empty": ""}, 1, 1),
    "ids": ({"labels": [7 * u for u in NUMBERS], "empty": "NaN"}, 7, 1),
    "header": ({"header": NAMES, "empty": "NA"}, 1, "joke"),
    "user and header": ({"labels": NUMBERS, "header": ["userId", *NAMES]}, 1, "joke"),
    "pandas": ({"labels": NUMBERS, "header": ["", *map(str, range(ITEMS))], "empty": ""}, 1, 0),
    "names": ({"labels": [f"u{u}" for u in NUMBERS], "header": ["", *NAMES], "empty": "null"}, "u", "joke"),
}


@pytest.mark.parametrize("form", FORMS)
def test_refused_with_the_cure_and_read(tmp_path, cells, form):
    how, users, items = FORMS[form]
    labels = counts(cells) if how.get("labels") == "counts" else how.get("labels")
    path = tmp_path / "jokes.csv"
    path.write_text(lines(cells, **how | {"labels": labels}))
    with pytest.raises(DataError, match="looks like a wide matrix") as refused:
        read_source(path)
    assert ("missing=99" in str(refused.value)) == (how.get("empty", "99") == "99")
    found = read_source(path, wide=Wide(99))
    kept = [u for u in range(USERS) if u != 4]
    expected = [f"u{u + 1}" for u in kept] if users == "u" else [users * (u + 1) for u in kept]
    assert sorted(found.users.tolist()) == sorted(expected)
    assert found.items.tolist() == (NAMES if items == "joke" else [items + k for k in range(ITEMS)])
    order = [found.users.tolist().index(user) for user in expected]
    matrix = found.matrix[order]
    assert_array_equal(matrix.data, cells[~np.isnan(cells)].astype(matrix.dtype))
    assert_array_equal(matrix.toarray() != 0, ~np.isnan(cells[kept]) & (cells[kept] != 0))
    assert "60 rows x 8 columns" in found.notes[0]
    assert "1 rows without a rating" in found.notes[0]
    assert ("counts the ratings" in found.notes[0]) == form.startswith("counted")


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_typed_files(tmp_path, cells, ending):
    table = pa.table({"user": [f"u{u}" for u in NUMBERS]} | {name: cells[:, k] for k, name in enumerate(NAMES)})
    path = tmp_path / f"jokes.{ending}"
    (pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather)(table, path)
    with pytest.raises(DataError, match=r"wide matrix.* 9 columns \(user, joke 0, joke 1, joke 2, joke 3, \.\.\.\)"):
        read_source(path)
    found = read_source(path, wide=True)
    assert found.items.tolist() == NAMES
    assert len(found) == sum(counts(cells))
    assert "u5" not in found.users.tolist()


def test_python_objects(cells):
    """A DataFrame in this form is refused with the function that reads it; ids are its index or its row numbers."""
    frame = pandas.DataFrame(cells, columns=NAMES)
    for given in (frame, polars.DataFrame(cells, schema=NAMES), frame.set_index(np.array([f"u{u}" for u in NUMBERS]))):
        with pytest.raises(DataError, match=r"Ratings\.from_wide\(X\)") as refused:
            as_ratings(given)
        assert "joke 7" not in str(refused.value)  # a few names are enough
    first = fedmc.Ratings.from_wide(frame)
    assert first.users.tolist() == [u for u in range(USERS) if u != 4]
    assert_array_equal(first.matrix.data, fedmc.Ratings.from_wide(cells).matrix.data)
    assert fedmc.Ratings.from_wide(cells).items.tolist() == list(range(ITEMS))
    named = fedmc.Ratings.from_wide(frame.set_axis([f"u{u}" for u in NUMBERS]))
    assert named.users.tolist()[:2] == ["u1", "u10"]
    filled = fedmc.Ratings.from_wide(np.nan_to_num(cells, nan=99), missing=99)
    assert_array_equal(filled.matrix.data, first.matrix.data)
    model = fedmc.FedMC(rank=2, clients=3, rounds=2).fit(first)
    assert model.predict([0], ["joke 1"]).shape == (1,)


LONG = {
    "u.data": "196\t242\t3\t881250949\n186\t302\t3\t891717742\n22\t377\t1\t878887116\n",
    "ratings.dat": "1::1193::5::978300760\n1::661::3::978302109\n2::914::3::978301968\n",
    "small ids": "1,1,3,2\n1,2,4,3\n2,1,1,2\n",
    "more columns": "".join(f"{u},{i},{1 + u % 5},{88125 * 10**4 + u},{u % 7}\n" for u in range(20) for i in (u, 90)),
    "no time": "".join(f"{u},{i},{1 + u % 5},{u % 7},{u % 24}\n" for u in range(20) for i in (u, 900)),
    "header": "user,item,rating,hour,weekday,weeks\n" + "".join(f"{u},{u},{u % 5},1,2,3\n" for u in range(9)),
    "log": "customer_id,product_id,stars,price,units,shop\n" + "".join(f"{u},{u},{u % 5},1,2,3\n" for u in range(9)),
    "text beside": "1,2,3,x,y,z\n2,2,4,x,y,z\n3,2,3,x,y,z\n",
}


@pytest.mark.parametrize("name", LONG)
def test_long_tables_stay_long(tmp_path, name):
    path = tmp_path / "long.csv"
    path.write_text(LONG[name])
    assert len(read_source(path, duplicates="last")) > 2


def test_long_said_to_be_long(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("".join(f"{u},{u % 7},{1 + u % 5},{u % 3},{u % 5}\n" for u in range(30)))
    with pytest.raises(DataError, match="looks like a wide matrix"):
        read_source(path)
    assert len(read_source(path, wide=False)) == 30


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b,c,d,e\n1,2,3,4,5\n1,2,x,4,5\n", {}, "line 3, column 'c': expected a number"),
        ("a,b,c,d,e\n1,2,3,4,5\n1,2,4\n", {}, "line 3: expected 5 fields, got 3"),
        ("a,b,c,d,a\n1,2,3,4,5\n", {}, "more than one column 'a'"),
        ("a,b,c,d,e\n1,2,inf,4,5\n", {}, "row 1, column 'c': ratings must be finite"),
        ("a,b,c,d,e\n", {}, "a header but no rows"),
        ("", {}, "is empty"),
        ("a,b,c,d,e\n,,NA,,\n", {}, "there are no ratings"),
        ("who,b,c,what\nx,2,3,y\nz,2,3,y\n", {}, "several columns hold text, 2 columns (who, what)"),
        ("a,b,c,d,e\n1,2,3,4,5\n", {"columns": ["x"]}, "has no column 'x'"),
        ("a,b,c,d,e\n1,2,3,4,5\n", {"columns": ["a", "b", "c"]}, "one column to name"),
        ("a,b,c,d,e\n1,2,3,4,5\n", {"times": True}, "holds no times"),
        ("a,b,c,d,e\n1,2,3,4,5\n", {"group": "shop"}, "no column 'shop'"),
        ("3,1,2,3,99\n2,1,99,3,99\n4,1,2,3,4\n3,1,1,1,1\n", {"wide": Wide(99)}, None),
        ("1,2,3,4,99\n5,4,3,2,99\n1,1,2,99,4\n", {}, "the cells hold 99, and all others lie between 1 and"),
        ("0,0,3,0\n5,0,0,0\n0,1,0,0\n", {}, "the cells hold 0"),
        ("1,2,3,4,99\n5,4,3,2,99\n1,1,2,99,4\n", {"wide": Wide("none")}, None),
    ],
)
def test_bad_matrices(tmp_path, text, options, message):
    path = tmp_path / "wide.csv"
    path.write_text(text)
    if message is None:
        assert len(read_source(path, **{"wide": True} | options)) > 0
        return
    with pytest.raises(DataError) as refused:
        read_source(path, **{"wide": True} | options)
    assert message in str(refused.value)


def test_counts_that_do_not_fit(tmp_path, cells, monkeypatch):
    """A wrong count in a later block is a mistake in the file, or a wrong `missing`."""
    rows = [[count, *row] for count, row in zip(counts(cells), np.nan_to_num(cells, nan=99).tolist(), strict=True)]
    rows[50][0] += 1
    monkeypatch.setattr(wide, "BLOCK", 20 * (ITEMS + 1))
    with pytest.raises(DataError, match="row 50: the first column counts"):
        fedmc.Ratings.from_wide(np.array(rows), missing=99)
    with pytest.raises(InputError, match="missing='x' must be a number"):
        fedmc.Ratings.from_wide(cells, missing="x")


def test_what_stands_for_missing():
    some = np.tile(np.arange(1.0, 6), 20)
    for number in (99, -99, -1, 0, 999):
        assert shapes.stand_in(np.concatenate([some, [number] * 150])) == number
    assert shapes.stand_in(some) is None
    assert shapes.stand_in(np.concatenate([some, [0] * 20])) is None  # a scale from 0 to 5
    assert shapes.stand_in(np.arange(0.0, 101)) is None


def test_the_commands(tmp_path, cells):
    path, run = tmp_path / "jokes.csv", tmp_path / "run"
    path.write_text(lines(cells, labels=counts(cells)))
    few = "--clients", 3, "--rounds", 2, "--rank", 2
    refused = command("train", path, *few, "--out", run)
    assert refused.returncode == 2
    assert "--wide and --missing 99; or, if each row is one rating, with --long" in refused.stderr
    assert not run.exists()
    alone = command("train", path, "--missing", 99, "--out", run)
    assert "--missing 99 is for a wide matrix: add --wide" in alone.stderr
    as_matrix = "--wide", "--missing", 99
    trained = command("train", path, *as_matrix, *few, "--out", run)
    assert trained.returncode == 0, trained.stderr
    assert f"60 rows x 8 columns, {sum(counts(cells))} ratings" in trained.stderr
    for words in (
        ("evaluate", run, path, *as_matrix),
        ("explain", run, 1, 2, "--ratings", path, *as_matrix),
        ("catalogue", "make", path, *as_matrix, "--out", tmp_path / "items.json"),
        ("catalogue", "check", tmp_path / "items.json", path, *as_matrix),
        ("prepare", path, *as_matrix, "--out", tmp_path / "shards"),
        ("audit", path, *as_matrix, *few),
        ("tune", path, *as_matrix, "--ranks", 2, "--trials", 1, "--rounds", 1, "--clients", 3),
        (
            "compare",
            path,
            *as_matrix,
            *few,
            "--active",
            3,
            "--methods",
            "fedavg",
            "--seeds",
            1,
            "--out",
            tmp_path / "compared",
        ),
    ):
        done = command(*words)
        assert done.returncode == 0, (words, done.stderr)


def test_a_comparison_goes_on_as_it_began(tmp_path, cells):
    """The form is kept in study.json: the same command resumes, and the file can be read again."""
    path, out = tmp_path / "jokes.csv", tmp_path / "compared"
    path.write_text(lines(cells))
    words = (
        "compare",
        path,
        "--wide",
        "--missing",
        99,
        "--clients",
        3,
        "--active",
        3,
        "--rounds",
        1,
        "--rank",
        2,
        "--methods",
    )
    for _ in range(2):
        done = command(*words, "fedavg", "--seeds", 1, "--out", out)
        assert done.returncode == 0, done.stderr


def test_events(tmp_path):
    rng = np.random.default_rng(1)
    clicks = rng.poisson(0.7, (50, 9))
    path = tmp_path / "clicks.csv"
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in clicks))
    done = command(
        "train", path, "--wide", "--missing", 0, "--feedback", "implicit", "--clients", 2, "--rounds", 1, "--rank", 2,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{(clicks > 0).sum()} ratings" in done.stderr
