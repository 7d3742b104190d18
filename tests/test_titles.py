"""Titles of items: where a model has them from, how long it keeps them, and how they are searched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmc import FedMC
from fedmc.data.catalogue import Catalogue
from fedmc.data.features import features_of
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
    assert found(model, "toy story 1999") == [1]
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
