"""What cannot be used is refused with an error of fedmc that names it and the cure, never with one from inside."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedmc
from fedmc import FedMC, Ratings
from fedmc.errors import DataError, FedmcError, InputError, ModelFileError
from fedmc.training import memory
from tests.command import fedmc as command

TINY = dict(rank=2, clients=2, rounds=1)


def table(**columns):
    return pd.DataFrame(dict(user=[1, 2, 3, 1, 2], item=[1, 1, 2, 2, 3], rating=[1.0, 2, 3, 4, 5]) | columns)


@pytest.fixture(scope="module")
def model():
    return FedMC(**TINY).fit(table()).model_


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 2.5}, r"rank must be a whole number from 1 to 1000, got 2\.5"),
        ({"rank": 2000}, "rank must be at most 1000, got 2000"),
        ({"rank": -1}, "rank must be at least 1, got -1"),
        ({"rank": float("nan")}, "rank must be a whole number from 1 to 1000, got nan"),
        ({"rank": True}, "rank must be a whole number from 1 to 1000, got True"),
        ({"rounds": 1.5}, r"rounds must be a whole number from 0 to .*, got 1\.5"),
        ({"clients": 9}, r"more clients \(9\) than users \(3\)"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**70}, "seed must be at most 9223372036854775807"),
        ({"privacy": 3}, "privacy must be a mode or a name, got 3"),
        ({"privacy": None}, "privacy must be a mode or a name, got None"),
    ],
)
def test_parameters(parameters, message):
    with pytest.raises(InputError, match=message):
        FedMC(**{**TINY, **parameters}).fit(table())


@pytest.mark.parametrize("preset", ["bayes", "fast", "paper"])
def test_a_rank_beyond_the_memory(preset, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**5)
    with pytest.raises(InputError, match=r"this run needs about .* of memory"):
        FedMC(rank=1000, clients=2, rounds=1, preset=preset).fit(table(item=[1, 2, 3, 4, 5]))


def test_numbers_of_numpy_are_numbers():
    FedMC(rank=np.int64(2), clients=np.int32(2), rounds=np.int16(1), seed=np.uint8(3)).fit(table())


BAD_CURVATURES = (0, -1, np.nan, np.inf, "x", None)


class Own:
    """A sound loss of one's own, of which the tests break a part."""

    curvature = 1.0

    def value(self, x, m):
        return np.square(x - m) / 2

    def gradient(self, x, m):
        return x - m

    def link(self, x):
        return x


@pytest.mark.parametrize(
    ("part", "message"),
    [
        *(({"curvature": bad}, "curvature of a loss.* must be a number from") for bad in BAD_CURVATURES),
        ({"gradient": lambda x, m: float(np.sum(x - m))}, r"must have the shape of x, \(2,\), got \(\)"),
        ({"gradient": lambda x, m: None}, r"must have the shape of x, \(2,\), got \(\)"),
    ],
)  # fmt: skip
def test_losses_of_ones_own(part, message):
    loss = Own()
    vars(loss).update(part)
    with pytest.raises(InputError, match=message):
        FedMC(**TINY, preset="fast", loss=loss).fit(table())


IDS = {
    "mixed types": ([1, "a", 2, "b", 3], "several kinds"),
    "lists": ([[1], [2], [3], [1], [2]], "user ids must be whole numbers or text"),
    "dicts": ([{}, {}, {}, {}, {}], "user ids must be whole numbers or text"),
    "beyond 64 bits": ([2**70, 2, 3, 1, 2], "whole numbers beyond 64 bits"),
    "fractions": ([1.5, 2, 3, 1, 2], "user ids must be whole numbers"),
    "missing": ([None, 2, 3, 1, 2], "missing|NaN"),
}


@pytest.mark.parametrize(("ids", "message"), IDS.values(), ids=IDS)
@pytest.mark.parametrize("read", [lambda t: FedMC(**TINY).fit(t), fedmc.split, lambda t: Ratings.from_dataframe(t)])
def test_ids_in_dataframes(read, ids, message):
    with pytest.raises(DataError, match=message):
        read(table(user=ids))


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([[1], [2, 3], [4], [5], [6]], "lists of different lengths"),
        (pd.Series([[1], [2], [3], [1], [2]]), r"user id 1 must be a whole number or a text, got \[1\]"),
        (pd.Series([{}, {}, {}, {}, {}]), "user id 1 must be a whole number or a text"),
        (["1", 1, 2, 3, 4], None),  # numpy makes texts of a list
        (np.array(["1", 1, 2, 3, 4], object), "mix numbers and strings that look alike"),
    ],
)
def test_ids_in_arrays(users, message):
    if message is None:
        assert Ratings.from_arrays(users, [1, 2, 3, 4, 5], [1.0] * 5).users.tolist() == ["1", "2", "3", "4"]
        return
    with pytest.raises(DataError, match=message):
        Ratings.from_arrays(users, [1, 2, 3, 4, 5], [1.0] * 5)


WIDE = pd.DataFrame(np.where(np.random.default_rng(0).random((50, 400)) < 0.1, 3.0, np.nan))


@pytest.mark.parametrize("names", [lambda c: c, "film {}".format], ids=["numbers", "names"])
@pytest.mark.parametrize("read", [lambda t: FedMC(**TINY).fit(t), fedmc.split, lambda t: Ratings.from_dataframe(t)])
def test_a_wide_dataframe_is_named_by_its_first_columns(read, names):
    with pytest.raises(DataError) as refused:
        read(WIDE.rename(columns=names))
    assert "400 columns" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("missing", ["rating", "item"])
def test_a_table_of_many_columns_is_named_by_the_first(missing):
    many = table(**{f"x{k}": list("abcde") for k in range(300)}).drop(columns=missing)
    with pytest.raises(DataError, match=rf"no {missing} column found: the table has 302 columns") as refused:
        fedmc.split(many)
    assert len(str(refused.value)) < 500


def test_tables_of_other_kinds():
    with pytest.raises(DataError, match="2-D array of ratings holds numbers"):
        FedMC(**TINY).fit(np.array([["a"]]))
    with pytest.raises(DataError, match="names of clients must be all numbers or all text, got NoneType, int"):
        FedMC(**TINY).fit(table(), clients={1: 0, 2: 1, 3: None})
    for seed in (1.5, "x", None, -1):
        with pytest.raises(InputError, match="seed must be"):
            fedmc.split(table(), 0.4, seed)


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        ([1, 2], [1], r"\b2\b.*\b1\b"),
        ([1, 2, 3], [1, 2], r"\b3\b.*\b2\b"),
        ([{}], [1], "user id 1 must be"),
        ([[1], [2, 3]], [1, 2], "lists of different lengths"),
        ([[1, 2]], [[1, 2]], "one-dimensional"),
        ([None], [1], "missing"),
    ],
)
@pytest.mark.parametrize("method", ["predict", "interval"])
def test_pairs(model, method, users, items, message):
    with pytest.raises(FedmcError, match=message):
        getattr(model, method)(users, items)


def test_a_single_id_stands_for_all(model):
    assert model.predict(1, [1, 2]).shape == (2,)
    assert model.predict([1, 2], 1).shape == (2,)


@pytest.mark.parametrize("n", [0, -1, 2.5, None, "3"])
def test_how_many_to_recommend(model, n):
    for method in (model.recommend, model.similar):
        with pytest.raises(InputError, match="n must be"):
            method(1, n)


def test_a_folder_that_is_missing(model, tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*missing.* create it first \(mkdir -p"):
        model.save(tmp_path / "missing" / "model.npz")
    with pytest.raises(InputError, match=r"is a folder: name a file in it"):
        model.save(tmp_path)
    for path in ("", None, 3, "a\0b"):
        with pytest.raises(InputError, match="must be a path such as"):
            model.save(path)
    with pytest.raises(InputError, match="cannot write the model to /proc/model"):
        model.save("/proc/model.npz")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_damaged(model, tmp_path):
    good, bad = tmp_path / "model.npz", tmp_path / "bad.npz"
    model.save(good)
    content = good.read_bytes()
    for part in (content[: len(content) // 2], content[:10], b"", b"text"):
        bad.write_bytes(part)
        with pytest.raises(ModelFileError, match=r"bad\.npz"):
            fedmc.load(bad)
    for path in (None, 3):
        with pytest.raises(InputError, match="named by its path"):
            fedmc.load(path)
    with pytest.raises(InputError, match=r"new users come as Ratings, got \[1, 2\]"):
        model.fold_in([1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "2.5"], "--rank takes a whole number or auto, got '2.5'"),
        (["--rank", "2000"], "rank must be at most 1000, got 2000"),
        (["--out", "/proc/run"], "cannot create the run folder /proc/run"),
    ],
)
def test_the_command_line(tmp_path, options, message):
    source = tmp_path / "ratings.csv"
    table().to_csv(source, index=False)
    done = command("train", source, "--rounds", "1", "--clients", "2", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
