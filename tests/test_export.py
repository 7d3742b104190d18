"""Exports: the code of their README, which knows nothing of fedmc, predicts and recommends as the model does."""

from __future__ import annotations

import json
import re
import sys
from contextlib import chdir
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedmc import FedMC, Ratings
from fedmc.data.datasets import load_source
from fedmc.errors import InputError
from fedmc.exporting import FORMS, export
from fedmc.exporting.content import link_of
from fedmc.problem.losses import Huber, Logistic, Square
from tests.command import fedmc
from tests.conftest import planted

RNG = np.random.default_rng(0)


def named() -> Ratings:
    ratings = planted(users=40, items=16)
    return Ratings(
        np.array([f"user {i:02}" for i in ratings.users]), np.array([f"f {i}é" for i in ratings.items]), ratings.matrix
    )


def liked() -> Ratings:
    ratings = planted()
    return Ratings.from_arrays(*ratings.matrix.nonzero(), (ratings.matrix.data > 3).astype(float))


def with_days() -> Ratings:
    ratings = planted()
    times = RNG.integers(0, 20, ratings.matrix.nnz) * 86_400
    return Ratings.from_arrays(*ratings.matrix.nonzero(), ratings.matrix.data, times=times)


def bayes(ratings: Ratings, **given):
    return FedMC(3, clients=4, rounds=4, **given).fit(ratings).model_


def with_features():
    ratings = planted()
    ids = {"user": ratings.users, "item": ratings.items}
    tables = {side: pa.table({"id": some, "x": RNG.normal(size=len(some))}) for side, some in ids.items()}
    estimator = FedMC(3, clients=4, rounds=4)
    return estimator.fit(ratings, user_features=tables["user"], items=tables["item"]).model_


def events() -> Ratings:
    ratings = planted()
    return Ratings.from_arrays(*ratings.matrix.nonzero(), np.abs(ratings.matrix.data) + 0.1)


EVENTS = {"feedback": "implicit", "clients": 4, "rounds": 3}
MODELS = {
    "bayes": lambda: bayes(named()),
    "bayes, features": with_features,
    "bayes, days": lambda: bayes(with_days()),
    "bayes, not implicit": lambda: bayes(planted(), implicit=False),
    "bayes, float32": lambda: bayes(planted(), dtype="float32"),
    "fast": lambda: bayes(planted(), preset="fast", penalty_users="l2:0.5"),
    "paper": lambda: bayes(planted(), preset="paper"),
    "logistic": lambda: bayes(liked(), preset="fast", loss="logistic", normalise="none", penalty_users="l2:0.1"),
    "ials": lambda: FedMC(3, **EVENTS).fit(events()).model_,
    "ease": lambda: FedMC(3, **EVENTS, algorithm="ease:3").fit(events()).model_,
}
BAYESIAN = [name for name in MODELS if name.startswith("bayes")]
BY_FACTORS = [name for name in MODELS if name != "ease"]
MADE: dict[str, object] = {}


def model_of(kind):
    if kind not in MADE:
        MADE[kind] = MODELS[kind]()
    return MADE[kind]


def exported(model, folder, to, **given):
    """What the README's code defines, run in the folder of the export, where there is no fedmc."""
    files = export(model, folder, to, **given)
    assert sorted(files) == sorted(path.name for path in folder.iterdir())
    text = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert "fedmc" not in code
    names: dict[str, object] = {}
    with chdir(folder):
        exec(compile(code, "README.md", "exec"), names)
    return names


def everything(model):
    users, items = len(model.users), len(model.items)
    return np.repeat(np.arange(users), items), np.tile(np.arange(items), users)


def close(kind):
    return 1e-5 if "float32" in kind else 1e-6


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("to", ["npz", "parquet"])
def test_the_formula_predicts_and_recommends_as_the_model(kind, to, tmp_path):
    model = model_of(kind)
    found = exported(model, tmp_path / "out", to)
    rows, columns = everything(model)
    assert np.array_equal(found["user_ids"], model.users)
    assert np.array_equal(found["item_ids"], model.items)
    np.testing.assert_allclose(
        found["predict"](rows, columns),
        model.predict(model.users[rows], model.items[columns]),
        atol=close(kind),
        rtol=0,
    )
    ids, scores = model.recommend(model.users, 5)
    for row in range(0, len(model.users), 7):
        best, there = found["recommend"](row, 5), np.isfinite(scores[row])
        assert np.array_equal(model.items[best], ids[row][there])
        np.testing.assert_allclose(found["predict"](row, best), scores[row][there], atol=close(kind))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("to", ["npz", "parquet"])
def test_items_only_has_no_user(kind, to, tmp_path):
    model = model_of(kind)
    found = exported(model, tmp_path / "out", to, items_only=True)
    assert not [name for name in found if "user" in name or "seen" in name]
    if to == "npz":
        with np.load(tmp_path / "out" / "model.npz") as file:
            assert not [name for name in file if "user" in name or "seen" in name]
    else:
        assert not (tmp_path / "out" / "users.parquet").exists()
    r, every = model.settings.rank, np.arange(len(model.items))
    row = model.U[3]
    biased = model.settings.biases
    given = (model.seen[[3]].indices,) if not len(row) else (row[:r], row[r + 1]) if biased else (row, 0.0)
    np.testing.assert_allclose(
        found["predict"](*given, every), model.predict(model.users[3], model.items), atol=close(kind)
    )


@pytest.mark.parametrize("kind", BAYESIAN)
@pytest.mark.parametrize("to", ["npz", "parquet"])
def test_standard_deviations_and_intervals(kind, to, tmp_path):
    model = model_of(kind)
    found = exported(model, tmp_path / "out", to, posterior=True)
    rows, columns = everything(model)
    users, items = model.users[rows], model.items[columns]
    _, std = model.predict(users, items, return_std=True)
    np.testing.assert_allclose(found["std"](rows, columns), std, atol=close(kind))
    low, high = found["interval"](rows, columns, 0.8)
    expected = model.interval(users, items, 0.8)
    np.testing.assert_allclose(low, expected.low, atol=close(kind))
    np.testing.assert_allclose(high, expected.high, atol=close(kind))


@pytest.mark.parametrize("to", FORMS)
def test_titles_stand_beside_the_items(to, tmp_path):
    fast = model_of("fast")
    titles = [f"Film № {i}" if i % 3 else "" for i in fast.items]
    titles[1] = "half of a pair: \ud800"
    found = exported(replace(fast, titles=np.array(titles)), tmp_path / "out", to)
    assert found["item_titles"].tolist() == ["", "half of a pair: ?", *titles[2:]]


def test_days_are_left_out_with_a_note(tmp_path):
    model = model_of("bayes, days")
    export(model, tmp_path / "out", "npz")
    assert model.posterior.days is not None
    for name in ("README.md", "metadata.json"):
        assert "biases of users by day are left out" in (tmp_path / "out" / name).read_text()


@pytest.mark.parametrize("kind", BY_FACTORS)
@pytest.mark.parametrize("to", ["faiss", "hnsw"])
def test_an_index_finds_the_best_items(kind, to, tmp_path):
    """All of them: a graph of so few items is searched whole."""
    model = model_of(kind)
    found = exported(model, tmp_path / "out", to)
    ids, scores = model.recommend(model.users, 5)
    for row in range(0, len(model.users), 7):
        (best, ratings), there = found["recommend"](row, 5), np.isfinite(scores[row])
        np.testing.assert_allclose(ratings, scores[row][there], atol=1e-4)
        assert set(model.items[best]) == set(ids[row][there])
    own = exported(model, tmp_path / "items", to, items_only=True)
    factors = found["user_factors"][0]
    assert own["search"](factors, 3)[0].tolist() == found["search"](factors, 3)[0].tolist()


def test_the_graph_of_hnsw_is_searched_with_its_own_number_of_candidates(tmp_path):
    import faiss

    export(model_of("fast"), tmp_path / "out", "hnsw")
    index = faiss.read_index(str(tmp_path / "out" / "index.faiss"))
    assert (index.hnsw.efSearch, index.metric_type) == (128, faiss.METRIC_INNER_PRODUCT)


def onnx_given(model, found, rows):
    """Users as the graphs of this model take them: rows, or what they had."""
    return rows if len(model.U[0]) else [model.seen[[row]].indices for row in rows]


@pytest.mark.parametrize("kind", MODELS)
def test_onnx_graphs_predict_and_recommend_as_the_model(kind, tmp_path):
    model = model_of(kind)
    found = exported(model, tmp_path / "out", "onnx")
    rows, columns = everything(model)
    some = np.arange(0, len(model.users), 7)
    with chdir(tmp_path / "out"):
        predicted = found["predict"](onnx_given(model, found, rows), columns)
        best, ratings = found["recommend"](onnx_given(model, found, some), 5)
    np.testing.assert_allclose(
        predicted, model.predict(model.users[rows], model.items[columns]), atol=close(kind), rtol=0
    )
    ids, scores = model.recommend(model.users[some], 5)
    assert np.array_equal(model.items[best][best >= 0], ids[np.isfinite(scores)])
    assert np.array_equal(best >= 0, np.isfinite(scores))
    np.testing.assert_allclose(ratings, scores, atol=close(kind))


def test_onnx_single_precision_and_vectors(tmp_path):
    model = model_of("bayes")
    found = exported(model, tmp_path / "out", "onnx", items_only=True, dtype="float32")
    r = model.settings.rank
    factors, bias = model.U[:, :r].astype(np.float32), model.U[:, r + 1].astype(np.float32)
    with chdir(tmp_path / "out"):
        predicted = found["predict"](factors, bias, np.full(len(model.users), 2))
        best, ratings = found["recommend"](factors, bias, np.split(model.seen.indices, model.seen.indptr[1:-1]), 99)
    assert predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, model.predict(model.users, model.items[2]), atol=1e-5)
    assert best.shape == (len(model.users), len(model.items))
    left = len(model.items) - np.diff(model.seen.indptr)
    assert np.array_equal((best >= 0).sum(axis=1), left)
    assert np.array_equal(np.isfinite(ratings), best >= 0)


def test_half_the_size_in_single_precision(tmp_path):
    model = model_of("bayes")
    found = exported(model, tmp_path / "out", "npz", dtype="float32")
    assert found["user_factors"].dtype == found["item_bias"].dtype == np.float32
    rows, columns = everything(model)
    expected = model.predict(model.users[rows], model.items[columns])
    np.testing.assert_allclose(found["predict"](rows, columns), expected, atol=1e-5)


@pytest.mark.parametrize("loss", [Square(), Huber(0.5), Logistic()])
def test_links_are_known_by_their_values(loss):
    assert link_of(loss) == ("logistic" if isinstance(loss, Logistic) else "identity")


class Cubed(Square):
    """A loss with a link that no export knows."""

    def __str__(self):
        return "cubed"

    def link(self, x):
        return x**3


def test_a_link_of_ones_own(tmp_path):
    fast = model_of("fast")
    model = replace(fast, settings=fast.settings.replace(loss=Cubed()))
    with pytest.raises(InputError, match=r"link of loss cubed has no operator in ONNX: choose to='npz' or 'parquet'"):
        export(model, tmp_path / "out", "onnx")
    found = exported(model, tmp_path / "out", "npz")
    assert "that of loss cubed, to be applied by the reader" in (tmp_path / "out" / "README.md").read_text()
    raw = found["score"](np.arange(3), 1)
    rating = np.clip(raw**3 * model.scaling.scale + model.scaling.mean, *model.rating_range)
    np.testing.assert_allclose(rating, model.predict(model.users[:3], model.items[1]), atol=1e-9)


@pytest.mark.parametrize("to", FORMS)
def test_nothing_is_left_behind_by_an_export_that_fails(to, tmp_path, monkeypatch):
    model = model_of("fast")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"exists and is not a folder of `fedmc export`"):
        export(model, tmp_path / "mine", to, overwrite=True)
    export(model, tmp_path / "out", "npz")
    before = (tmp_path / "out" / "model.npz").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        export(model, tmp_path / "out", to)
    monkeypatch.setattr("fedmc.exporting.readme.page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(model, tmp_path / "out", to, overwrite=True)
    assert (tmp_path / "out" / "model.npz").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_refusals_name_the_cure(tmp_path, monkeypatch):
    fast, ease = model_of("fast"), model_of("ease")
    for to in ("faiss", "hnsw"):
        with pytest.raises(InputError, match=r"a model of ease:3\S* has .* choose to='npz', 'parquet' or 'onnx'"):
            export(ease, tmp_path / "out", to)
    with pytest.raises(InputError, match=r"unknown form of exports 'csv': choose one of npz, parquet"):
        export(fast, tmp_path / "out", "csv")
    with pytest.raises(InputError, match=r"dtype must be float32 or float64, got 'int8'"):
        export(fast, tmp_path / "out", "npz", dtype="int8")
    with pytest.raises(InputError, match=r"needs a Bayesian model: train with preset='bayes'"):
        export(fast, tmp_path / "out", "npz", posterior=True)
    with pytest.raises(InputError, match=r"to='hnsw' holds no standard deviations.* choose to='npz' or 'parquet'"):
        export(model_of("bayes"), tmp_path / "out", "hnsw", posterior=True)
    for to, library in (("faiss", "faiss"), ("hnsw", "faiss"), ("onnx", "onnx")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(InputError, match=rf"package {library}: pip install 'fedmc\[{library}\]'"):
            export(fast, tmp_path / "out", to)
    monkeypatch.setattr("fedmc.exporting.onnx_graphs.MOST", 1 << 20)
    monkeypatch.delitem(sys.modules, "onnx")
    with pytest.raises(InputError, match=r"an ONNX file at most 2 GB: choose items_only=True"):
        export(fast, tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path):
    model = model_of("bayes")
    model.save(tmp_path / "model.npz")
    words = ["export", tmp_path / "model.npz", "--out", tmp_path / "out", "--to"]
    done = fedmc(*words, "parquet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["files"][0] == "items.parquet"
    assert pq.read_table(tmp_path / "out" / "users.parquet")["user"].to_pylist() == model.users.tolist()
    again = fedmc(*words, "npz")
    assert again.returncode == 2
    assert "exists already: choose another path, or --overwrite to replace it" in again.stderr
    assert fedmc(*words, "npz", "--items-only", "--posterior", "--overwrite").returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "metadata.json", "model.npz"]
    model_of("fast").save(tmp_path / "model.npz")
    refused = fedmc(*words, "npz", "--posterior", "--overwrite")
    assert (refused.returncode, "--posterior needs a Bayesian model" in refused.stderr) == (2, True)


def test_the_command_at_a_node_exports_its_own_users(tmp_path):
    model = model_of("bayes")
    model.save(tmp_path / "model.npz")
    done = fedmc("node", "export", tmp_path, "--to", "npz", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out" / "model.npz") as file:
        assert file["user_ids"].tolist() == model.users.tolist()
    (tmp_path / "model.npz").unlink()
    early = fedmc("node", "export", tmp_path, "--to", "npz", "--out", tmp_path / "again")
    assert (early.returncode, "it comes at the end of a training run" in early.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.realdata
def test_recall_of_hnsw_on_movielens_1m(data_folder, tmp_path):
    """At least 0.95 of the 20 best of all items, and of those that a user has not rated; as in `fedmc recommend`."""
    ratings = load_source(str(data_folder / "ml-1m" / "ratings.dat"))
    model = FedMC(10, clients=10, rounds=10).fit(ratings).model_
    found = exported(model, tmp_path / "out", "hnsw")
    some = np.arange(0, len(model.users), 12)
    every, _ = model.recommend(model.users[some], 20, exclude_seen=False)
    unseen, _ = model.recommend(model.users[some], 20)
    shares: dict[str, list[float]] = {"all": [], "unseen": []}
    for place, row in enumerate(some):
        rows, _ = found["search"](found["user_factors"][row], 20)
        left, _ = found["recommend"](row, 20)
        shares["all"].append(np.isin(model.items[rows], every[place]).sum() / 20)
        shares["unseen"].append(np.isin(model.items[left], unseen[place]).sum() / 20)
        assert not np.isin(left, found["seen"][row]).any()
    assert {name: np.mean(one) >= 0.95 for name, one in shares.items()} == {"all": True, "unseen": True}
