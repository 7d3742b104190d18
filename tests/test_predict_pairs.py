"""`fedmc predict --pairs FILE --out FILE`: many pairs from a table into a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fedmc import FedMC, Ratings
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture(scope="module")
def model():
    return FedMC(3, clients=4, rounds=4).fit(planted()).model_


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path / "model.npz")
    return tmp_path / "model.npz"


def drawn(model, number=50):
    rng = np.random.default_rng(1)
    return rng.choice(model.users, number), rng.choice(model.items, number)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("source", ["pairs.csv", "pairs.parquet", "bare.csv"])
def test_pairs_in_their_order_with_intervals(model, saved, tmp_path, ending, source, monkeypatch):
    monkeypatch.setattr("fedmc.cli.predict_pairs.BLOCK", 20)
    users, items = drawn(model)
    table = pa.table({"user": users, "item": items})
    if source.endswith("parquet"):
        pq.write_table(table, tmp_path / source)
    else:
        options = pa.csv.WriteOptions(include_header=source != "bare.csv")
        pa.csv.write_csv(table, tmp_path / source, options)
    out = tmp_path / f"out{ending}"
    done = fedmc("predict", saved, "--pairs", tmp_path / source, "--out", out, "--interval", "0.8", "--std")
    assert (done.returncode, done.stdout) == (0, f"50 predictions in {out}\n"), done.stderr
    parse = pa.csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ",")
    found = pq.read_table(out) if ending == ".parquet" else pa.csv.read_csv(out, parse_options=parse)
    assert found.column_names == ["user", "item", "prediction", "std", "low", "high"]
    assert found["user"].to_pylist() == users.tolist()
    assert found["item"].to_pylist() == items.tolist()
    expected = model.interval(users, items, 0.8)
    exact = 1e-12 if ending == ".parquet" else 5.1e-5
    for name, values in zip(("prediction", "low", "high"), expected, strict=True):
        np.testing.assert_allclose(found[name].to_numpy(), values, atol=exact)
    _, std = model.predict(users, items, return_std=True)
    np.testing.assert_allclose(found["std"].to_numpy(), std, atol=exact)


@pytest.mark.parametrize("texts", [False, True])
def test_unknown_ids_are_refused_or_predicted_by_the_prior(texts, tmp_path):
    ratings = planted()
    if texts:
        names = [
            np.array([f"{side} {i:02}" for i in ids]) for side, ids in (("u", ratings.users), ("i", ratings.items))
        ]
        ratings = Ratings(*names, ratings.matrix)
    model = FedMC(3, clients=4, rounds=4).fit(ratings).model_
    model = replace(model, titles=np.array([f"Film {i}" for i in model.items]))
    model.save(tmp_path / "model.npz")
    users, items = [str(model.users[3]), "nobody"], [str(model.items[2]), str(model.items[4])]
    lines = [f"{user},{item}\n" for user, item in zip(users, items, strict=True)]
    (tmp_path / "pairs.csv").write_text("".join(["user,item\n", *lines]))
    words = ["predict", tmp_path / "model.npz", "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "out.parquet"]
    refused = fedmc(*words)
    assert refused.returncode == 2
    assert "unknown user nobody" in refused.stderr
    assert not (tmp_path / "out.parquet").exists()
    done = fedmc(*words, "--unknown", "prior")
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "out.parquet")
    np.testing.assert_allclose(found["prediction"].to_numpy(), model.predict(users, items, unknown="prior"), atol=1e-12)
    assert [str(user) for user in found["user"].to_pylist()] == users
    assert found["title"].to_pylist() == [f"Film {item}" for item in items]


def test_refusals_leave_nothing_behind(saved, tmp_path):
    (tmp_path / "pairs.csv").write_text("user,item\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    before = sorted(tmp_path.iterdir())
    pairs = ["--pairs", tmp_path / "pairs.csv"]
    for words, said in (
        ([1, 2, "--out", tmp_path / "out.csv"], "give one (--pairs FILE)"),
        ([*pairs, "--out", tmp_path / "out.xlsx"], "unknown ending '.xlsx': choose one of .parquet, .feather, .csv"),
        ([*pairs, "--out", tmp_path / "pairs.csv"], "exists already: --overwrite to replace it"),
        ([*pairs, "--out", tmp_path / "out.csv", "--interval", "2"], "--interval must lie between 0 and 1"),
        (["--pairs", tmp_path / "none.csv", "--out", tmp_path / "out.csv"], "there is no file"),
        (["--pairs", tmp_path / "empty.csv", "--out", tmp_path / "out.csv"], "is empty"),
    ):
        done = fedmc("predict", saved, *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before
