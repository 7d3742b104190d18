"""Titles of items: where a model has them from, how long it keeps them, and how they are searched."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmc import FedMC
from fedmc.data import features
from fedmc.data.catalogue import Catalogue
from fedmc.data.features import features_of, read_features
from fedmc.errors import DataError, InputError, ModelFileError
from fedmc.model import load, titles
from fedmc.model.leaving import model_without
from tests.command import fedmc
from tests.conftest import planted

FILMS = [
    "Toy Story (1995)", "Toy Story 2 (1999)", "Matrix, The (1999)", "Amélie", "Behind the Matrix", "Alien",
    "Aliens (1986)", "Schindler's List (1993)", "Łódź", "", "Die Hard (1988)", "A Story of Hard Toys",
]  # fmt: skip
ITEMS = pd.DataFrame({"item": range(len(FILMS)), "title": FILMS, "year": range(1990, 1990 + len(FILMS))})


def made(preset="fast", rounds=1, **given):
    table = planted(users=15, items=12)
    return FedMC(2, preset=preset, rounds=rounds, clients=3).fit(table, **given)


@pytest.fixture(scope="module")
def model():
    return made(items=ITEMS).model_


def found(model, text, n=10):
    ids, named = model.find(text, n)
    assert named.tolist() == [FILMS[item] for item in ids]
    return ids.tolist()


@pytest.mark.parametrize("preset", ["bayes", "fast", "paper"])
def test_every_preset_takes_a_table_of_items_for_its_titles(preset):
    model = made(preset, items=ITEMS).model_
    assert model.titles.tolist() == FILMS
    assert model.titles.dtype.kind == "U"
    assert model.title_of(2) == FILMS[2]
    assert model.title_of(["2", "0"]).tolist() == [FILMS[2], FILMS[0]]


def test_events_too():
    pairs = pd.DataFrame({"user": [0, 0, 1, 1, 2, 2], "item": [0, 1, 1, 2, 0, 2]})
    model = FedMC(2, rounds=1, clients=2, feedback="implicit").fit(pairs, items=ITEMS).model_
    assert model.titles.tolist() == FILMS[:3]


def test_titles_alone_change_nothing_else():
    """Without features the model is that of the ratings, bit for bit: items without ratings are not added."""
    more = pd.concat([ITEMS, pd.DataFrame({"item": [77], "title": ["Another"], "year": [1]})])
    with_titles, without = made(items=more, rounds=2).model_, made(rounds=2).model_
    np.testing.assert_array_equal(with_titles.V, without.V)
    assert without.titles is None
    assert without.title_of([1, 2]).tolist() == ["", ""]
    assert made("bayes", items=more).model_.title_of(77) == "Another"


def test_a_table_of_other_items_is_refused():
    with pytest.raises(DataError, match="has none of the 12 items of the ratings"):
        made(items=ITEMS.assign(item=ITEMS.item + 100))


def test_titles_of_many_ids_at_once(model):
    ids, _ = model.recommend(model.users[:3], 12)
    assert model.title_of(ids).shape == ids.shape
    assert (model.title_of(ids)[ids == -1] == "").all()
    assert (ids == -1).any()
    assert model.title_of(ids)[0, 0] == FILMS[ids[0, 0]]
    assert model.title_of("of nothing") == ""


def test_titles_stay_with_the_model(model, tmp_path):
    model.save(tmp_path / "model.npz")
    kept = load(tmp_path / "model.npz")
    assert kept.titles.tolist() == FILMS
    assert kept.fold_in(planted(users=15, items=12)).titles.tolist() == FILMS
    gone = np.arange(15) < 3
    assert model_without(kept, gone).titles.tolist() == FILMS
    replace(model, titles=None).save(tmp_path / "bare.npz")
    assert load(tmp_path / "bare.npz").titles is None


def test_a_warm_start_keeps_titles_and_takes_newer_ones():
    estimator = made(items=ITEMS.head(3))
    assert estimator.model_.titles.tolist() == [*FILMS[:3], *[""] * 9]
    before = estimator.model_
    estimator.set_params(warm_start=True).fit(planted(users=15, items=12), items=ITEMS.tail(3).assign(title="New"))
    assert estimator.model_.titles.tolist() == [*FILMS[:3], *[""] * 6, *["New"] * 3]
    assert titles.of_items(np.array([1, 50]), None, (before.items, before.titles)).tolist() == [FILMS[1], ""]


def test_a_catalogue_that_has_grown_keeps_each_title_at_its_item():
    old = Catalogue(np.array([3, 5])).with_table(features_of(ITEMS.iloc[[3, 5]], "item"))
    grown = old.grown(np.empty(0, np.int64), features_of(ITEMS, "item"))
    assert grown.items.tolist()[:2] == [3, 5]
    assert titles.of_items(grown.items, grown.features).tolist() == [FILMS[item] for item in grown.items]


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.frombuffer(b"one\ntwo", np.uint8), "2 titles for 12 items"),
        (np.array(["x"] * 12), "not lines of text"),
        (np.frombuffer(b"\xff\xfe" + b"\n" * 11, np.uint8), "not lines of text"),
        (np.frombuffer(b"x" * 201 + b"\n" * 11, np.uint8), "at most 200"),
    ],
)
def test_damaged_titles_of_a_file_are_refused(model, tmp_path, array, why):
    model.save(tmp_path / "model.npz")
    content = dict(np.load(tmp_path / "model.npz"))
    np.savez(tmp_path / "model.npz", **(content | {"titles": array}))
    with pytest.raises(ModelFileError, match=why):
        load(tmp_path / "model.npz")


def test_a_title_is_one_line_of_bounded_length():
    model = made(items=ITEMS.assign(title=["two\nlines\tand more", "x" * 300, *FILMS[2:]])).model_
    assert model.titles[0] == "two lines and more"
    assert len(model.titles[1]) == 200
    assert model.titles[1].endswith("x...")


def test_search(model):
    assert found(model, "toy story") == [0, 1, 11]
    assert found(model, "STORY toy") == [0, 1, 11]
    assert found(model, "toy story 1999") == found(model, "toy story 2") == [1]
    assert found(model, "toy 199") == []  # a number is no part of a number
    assert found(model, "the matrix") == [2, 4]
    assert found(model, "amelie") == found(model, "AMÉLIE") == [3]
    assert found(model, "alien") == [5, 6]
    assert found(model, "schindlers") == found(model, "Schindler\u2019s list") == [7]
    assert found(model, "lodz") == [8]
    assert found(model, "matri") == [2, 4]
    assert found(model, "ard") == [10, 11]
    assert found(model, "toy", 1) == [0]
    assert found(model, "toy alien") == []


@pytest.mark.parametrize(("text", "n", "why"), [("...", 10, "by its words"), ("", 10, "by its words"), ("x", 0, "n ")])
def test_searches_that_cannot_be(model, text, n, why):
    with pytest.raises(InputError, match=why):
        model.find(text, n)


def test_a_model_without_titles_says_how_to_get_them():
    with pytest.raises(InputError, match="no titles: train with a table of items"):
        made().model_.find("toy")


def test_training_at_the_command_line(tmp_path):
    table = planted(users=15, items=12)
    entries = table.matrix.tocoo()
    frame = {"user": entries.row, "item": entries.col, "rating": entries.data}
    pd.DataFrame(frame).to_csv(tmp_path / "r.csv", index=False)
    ITEMS.iloc[:9].to_csv(tmp_path / "items.csv", index=False)
    small = ("--rounds", 1, "--rank", 2, "--clients", 2)
    done = fedmc("train", "r.csv", "--items", "items.csv", "--preset", "fast", *small, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "titles of 9 of 12 items" in done.stderr
    assert "not used for training, which takes preset bayes" in done.stderr
    assert load(tmp_path / "run" / "model.npz").title_of([0, 11]).tolist() == [FILMS[0], ""]
    said = fedmc("recommend", "run", "1", "--category", "year=1990", "--include-seen", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    fedmc("prepare", "r.csv", "--clients", 2, "--out", "shards", cwd=tmp_path)
    done = fedmc("train", "shards", "--items", "items.csv", "--preset", "fast", *small, "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "two" / "model.npz").title_of([0, 11]).tolist() == [FILMS[0], ""]
    done = fedmc("train", "shards", "--items", "items.csv", *small, "--out", "three", cwd=tmp_path)
    assert (done.returncode, "give them to `fedmc prepare`" in done.stderr) == (2, True)
    done = fedmc("train", "r.csv", *small, "--from", "two", "--preset", "fast", "--out", "four", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "four" / "model.npz").title_of(0) == FILMS[0]


# At the command line.


def ran(*words, code=0):
    done = fedmc(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A model's file, and at `bare.npz` the same one without titles."""
    folder = tmp_path_factory.mktemp("titled")
    model.save(folder / "model.npz")
    replace(model, titles=None).save(folder / "bare.npz")
    ITEMS.to_csv(folder / "items.csv", index=False)
    return folder


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_every_table_shows_titles(run, tmp_path):
    for words in [("recommend", run, 1, 2, "--include-seen"), ("similar", run, 0, 2), ("predict", run, 1, 0, 2)]:
        rows = table(ran(*words).stdout)
        assert list(rows[0])[-1] == "title"
        assert len(rows) > 1
        for row in rows:
            assert row["title"] == FILMS[int(row.get("similar", row["item"]))]
        if words[0] != "predict":
            as_json = json.loads(ran(*words, "--json").stdout)
            assert [one["title"] for one in as_json] == [row["title"] for row in rows]
    for ending, read in {"csv": pd.read_csv, "parquet": pd.read_parquet}.items():
        path = tmp_path / f"all.{ending}"
        ran("recommend", run, "--all", "--include-seen", "--out", path)
        frame = read(path)
        assert list(frame) == ["user", "rank", "item", "score", "title"]
        assert frame.title.fillna("").tolist() == [FILMS[item] for item in frame.item]


def test_without_titles_tables_are_as_before(run, tmp_path):
    bare = run / "bare.npz"
    assert ran("recommend", bare, 1).stdout.startswith("user,rank,item,score\n")
    assert ran("similar", bare, 1).stdout.startswith("item,rank,similar,cosine\n")
    assert ran("predict", bare, 1, 2).stdout.startswith("user,item,prediction\n")
    ran("recommend", bare, "--all", "--out", tmp_path / "all.csv")
    assert list(pd.read_csv(tmp_path / "all.csv")) == ["user", "rank", "item", "score"]
    assert "train with a table of items" in ran("find", bare, "toy", code=2).stderr
    assert "unknown item toy" in ran("similar", bare, "toy", code=2).stderr


def test_a_table_gives_titles_to_a_model_without(run, tmp_path):
    bare, items = run / "bare.npz", ("--items", run / "items.csv")
    for words in [("recommend", 1), ("similar", 1), ("predict", 1, 2)]:
        for row in table(ran(words[0], bare, *words[1:], *items).stdout):
            assert row["title"] == FILMS[int(row.get("similar", row["item"]))]
    assert ran("find", bare, "matrix the", *items).stdout.splitlines()[1] == '2,"Matrix, The (1999)"'
    (tmp_path / "none.csv").write_text("item,year\n1,1990\n")
    assert "has no titles" in ran("similar", bare, 1, "--items", tmp_path / "none.csv").stderr


def test_a_run_of_before_takes_titles_from_its_table_if_it_is_there(run, tmp_path):
    shutil.copy(run / "bare.npz", tmp_path / "model.npz")
    (tmp_path / "settings.toml").write_text(f'items = "{run / "items.csv"}"\n')
    assert table(ran("similar", tmp_path, 1).stdout)[0]["title"]
    (tmp_path / "settings.toml").write_text(f'items = "{run / "bare.npz"}"\n')
    assert ran("similar", tmp_path, 1).stdout.startswith("item,rank,similar,cosine\n")


def test_find(run):
    said = ran("find", run, "toy", "story").stdout
    assert [row["item"] for row in table(said)] == ["0", "1", "11"]
    assert json.loads(ran("find", run, "AMELIE", "--json").stdout) == [{"item": 3, "title": "Amélie"}]
    assert len(table(ran("find", run, "a", "-n", 2).stdout)) == 2
    nothing = ran("find", run, "casablanca")
    assert (nothing.stdout, nothing.stderr) == ("item,title\n", "no title has all words of 'casablanca'\n")
    assert "by its words" in ran("find", run, "?", code=2).stderr


def test_an_item_may_be_given_by_its_title(run):
    by_id = ran("similar", run, 3).stdout
    by_title = ran("similar", run, "amelie")
    assert by_title.stdout == by_id
    assert by_title.stderr == "'amelie': item 3, Amélie\n"
    assert ran("similar", run, "alien").stdout == ran("similar", run, 5).stdout  # the whole title of one
    assert ran("predict", run, 1, "die hard").stdout == ran("predict", run, 1, 10).stdout


@pytest.mark.parametrize("command", ["similar", "predict", "recommend"])
def test_a_title_of_several_items_is_refused_and_they_are_listed(run, command):
    words = {"similar": (), "predict": (1,), "recommend": (1, "--only")}[command]
    done = ran(command, run, *words, "toy story", code=2)
    assert "error: 'toy story' may be 3 items" in done.stderr
    assert done.stderr.index("0  Toy Story (1995)") < done.stderr.index("1  Toy Story 2 (1999)")
    assert done.stdout == ""


def test_what_is_neither_an_id_nor_a_title_is_refused(run):
    assert "no item has the id 'casablanca'" in ran("similar", run, "casablanca", code=2).stderr
    assert "unknown item 1999" in ran("similar", run, "1999", code=2).stderr  # a number is an id here
    assert "no id of --only" in ran("recommend", run, 1, "--only", "casablanca", code=2).stderr


def recommended(run, *words):
    return {int(row["item"]) for row in table(ran("recommend", run, 1, "--include-seen", "-n", 12, *words).stdout)}


def test_filters_take_titles(run):
    assert recommended(run, "--only", "amelie,5,Matrix, The (1999), die hard") == {2, 3, 5, 10}
    assert recommended(run, "--exclude", "Matrix, The (1999)") == set(range(12)) - {2}
    (run / "ids.txt").write_text("3\n7\n")
    assert recommended(run, "--only", run / "ids.txt") == {3, 7}
    done = ran("recommend", run, 1, "--only", "amelie, casablanca")
    assert "1 of 2 ids of --only are no items of the model, such as casablanca" in done.stderr


# Tables as they are distributed.

MOVIES_DAT = (
    "1::Toy Story (1995)::Animation|Children's|Comedy|Drama|War\n2::Mis\xe9rables, Les (1995)::Drama|Musical\n"
    "3::And God Created Woman (Et Dieu: ::a film) (1988)::(no genres listed)\n"
)
FLAGS = {
    "Toy Story (1995)": "01-Jan-1995||http://x/?Toy%20Story|0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0",
    "Nénette et Boni (1996)": "||http://x/|0|0|0|0|0|0|0|0|1|0|0|0|0|0|0|0|0|0|0",
    "unknown": "|||1|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0",
}


def columns_of(path):
    opened = features.open_table(path, "item")
    return opened.ids.tolist(), {one.name: one.cells for one in opened.columns}


def test_movies_dat(tmp_path):
    (tmp_path / "movies.dat").write_bytes(MOVIES_DAT.encode("latin-1"))
    ids, columns = columns_of(tmp_path / "movies.dat")
    assert ids == [1, 2, 3]
    assert columns["title"][:2] == ["Toy Story (1995)", "Misérables, Les (1995)"]
    assert columns["title"][2].endswith("::a film) (1988)")
    assert columns["year"] == ["1995", "1995", "1988"]
    assert columns["genres"] == ["Animation|Children's|Comedy|Drama|War", "Drama|Musical", None]
    (tmp_path / "movies.dat").write_text("1::A (1990)::Drama\n2::B\n")
    with pytest.raises(DataError, match=r"line 2: expected a film of MovieLens.*2::B"):
        features.open_table(tmp_path / "movies.dat", "item")


def test_u_item(tmp_path):
    lines = [f"{number}|{title}|{rest}" for number, (title, rest) in enumerate(FLAGS.items(), 7)]
    (tmp_path / "u.item").write_bytes("\r\n".join(lines).encode("latin-1"))
    ids, columns = columns_of(tmp_path / "u.item")
    assert ids == [7, 8, 9]
    assert columns["title"] == list(FLAGS)
    assert columns["year"] == ["1995", "1996", None]
    assert columns["genres"] == ["Animation|Children's|Comedy", "Drama", None]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings(tmp_path, encoding):
    title = "Amélie" if encoding == "latin-1" else "Amélie – “é”"
    text = f"id;Movie-Title;x\n1;{title};1\n2;Naïve;2\n"
    (tmp_path / "items.csv").write_bytes(text.encode(encoding))
    assert read_features(tmp_path / "items.csv", "item").titles == (title, "Naïve")


def test_titles_that_are_numbers():
    assert features_of(pd.DataFrame({"id": [1, 2, 3], "title": [1984, 2001.5, None]}), "item").titles == (
        "1984", "2001.5", "",
    )  # fmt: skip


def test_a_fitted_estimator_searches_like_its_model():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"user": np.repeat(np.arange(8), 4), "item": np.tile(np.arange(4), 8)})
    frame["rating"] = rng.integers(1, 6, len(frame)).astype(float)
    items = pd.DataFrame({"item": np.arange(4), "title": ["Red Lamp", "Red Chair", "Blue Chair", "Bed"]})
    fitted = FedMC(rank=2, clients=2, rounds=2).fit(frame, items=items)
    ids, titles = fitted.find("red chair")
    assert (ids.tolist(), titles.tolist()) == ([1], ["Red Chair"])
    for found, expected in zip(fitted.similar([1, 2], 2), fitted.model_.similar([1, 2], 2), strict=True):
        assert found.shape == (2, 2)
        assert np.array_equal(found, expected)
    with pytest.raises(InputError, match="not fitted yet"):
        FedMC().similar(1)
