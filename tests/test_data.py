"""Partitions, splits, catalogues, prepared shards and made-up ratings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc.data import catalogue as catalogues
from fedmc.data import partition, prepare, prepared, splits, synthetic
from fedmc.data.catalogue import Catalogue, align
from fedmc.data.datasets import insteval
from fedmc.data.prepare import Plan, read_parts
from fedmc.data.ratings import Ratings
from fedmc.data.readers.writing import write_table
from fedmc.errors import DataError, FedmcError, InputError
from tests import command
from tests.conftest import examples, planted


def fedmc(*arguments, cwd, code=0):
    done = command.fedmc(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def timed(users=30, items=12, seed=0, density=0.4):
    ratings = planted(users, items, seed=seed, density=density)
    times = np.random.default_rng(seed).integers(0, 10**9, len(ratings))
    return Ratings(ratings.users, ratings.items, ratings.matrix, times)


PARTITIONS = ["uniform", "one-user", "dirichlet:0.3", "power:1.2"]
SPLITS = ["random:0.3", "last:2", "leave:1", "share:0.3", "date:1985-06-01"]


@pytest.mark.parametrize("words", PARTITIONS)
@given(users=st.integers(8, 60), clients=st.integers(1, 8), seed=st.integers(0, 50))
@examples(20)
def test_partitions_cover_every_user_once(words, users, clients, seed):
    ratings = planted(users, 6)
    owner = partition.parse(words, ratings, clients, seed)
    count = users if words == "one-user" else clients
    assert len(owner) == users
    assert sorted(set(owner.tolist())) == list(range(count))
    assert np.array_equal(owner, partition.parse(words, ratings, clients, seed))
    shards = partition.make_shards(ratings, owner, "float64")
    assert sum(shard.by_user.nnz for shard in shards) == len(ratings)


def test_unequal_partitions_are_unequal():
    ratings = planted(400, 5)
    sizes = {words: np.bincount(partition.parse(words, ratings, 10, 0)) for words in PARTITIONS}
    assert np.ptp(sizes["uniform"]) <= 1
    assert sizes["power:1.2"][0] > 5 * sizes["power:1.2"][-1]
    assert sizes["dirichlet:0.3"].max() > 3 * np.median(sizes["dirichlet:0.3"])


def test_partition_by_file_and_column(tmp_path):
    ratings = planted(6, 4)
    (tmp_path / "map.csv").write_text("".join(f"{u},{'odd' if u % 2 else 'even'}\n" for u in range(6)))
    assert partition.parse(f"file:{tmp_path / 'map.csv'}", ratings, 1, 0).tolist() == [0, 1] * 3
    (tmp_path / "map.csv").write_text("0,a\n1,a\n")
    with pytest.raises(DataError, match="names no client for user 2"):
        partition.parse(f"file:{tmp_path / 'map.csv'}", ratings, 1, 0)
    (tmp_path / "map.csv").write_text("0,a,b\n")
    with pytest.raises(DataError, match="line 1: expected user,client"):
        partition.parse(f"file:{tmp_path / 'map.csv'}", ratings, 1, 0)
    with pytest.raises(DataError, match="no column"):
        partition.parse("column:site", ratings, 1, 0)
    for words in ("thirds", "dirichlet:x", "dirichlet:0", "power:-1"):
        with pytest.raises(InputError):
            partition.parse(words, ratings, 2, 0)
    departments = insteval()
    assert len(departments) == 73_421
    sizes = np.bincount(partition.parse("column:dept", departments, 1, 0))
    assert len(sizes) == 14
    assert sizes.sum() == 1128


@pytest.mark.parametrize("words", SPLITS)
@given(seed=st.integers(0, 30))
@examples(20)
def test_splits_cover_every_rating_once_in_any_order_of_rows(words, seed):
    ratings = timed(seed=seed)
    rest, held_out = splits.parse(words, ratings, seed)
    assert len(rest) + len(held_out) == len(ratings)
    assert ((rest.matrix + held_out.matrix) != ratings.matrix).nnz == 0
    assert rest.times.sum() + held_out.times.sum() == ratings.times.sum()
    order = np.random.default_rng(seed).permutation(len(ratings))
    columns = ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices], ratings.matrix.data, ratings.times
    shuffled = Ratings.from_arrays(*(column[order] for column in columns))
    for one, other in zip((rest, held_out), splits.parse(words, shuffled, seed), strict=True):
        assert one.matrix.indices.tolist() == other.matrix.indices.tolist()
        assert one.matrix.data.tolist() == other.matrix.data.tolist()
        assert one.times.tolist() == other.times.tolist()


def test_what_splits_hold_out():
    ratings = timed()
    rest, late = splits.last(ratings, 2)
    for row in range(len(ratings.users)):
        theirs, kept = (part.times[part.matrix.indptr[row] : part.matrix.indptr[row + 1]] for part in (late, rest))
        if len(theirs) == 0:
            assert len(kept) <= 2
        else:
            assert len(theirs) == 2
            assert kept.max() <= theirs.min()
    _, left = splits.leave(ratings, 1, 0)
    assert set(np.diff(left.matrix.indptr)) <= {0, 1}
    before, after = splits.since(ratings, "1985-06-01")
    assert before.times.max() < np.datetime64("1985-06-01").astype("datetime64[s]").astype(int) <= after.times.min()
    for words, message in (
        ("last:0", "at least 1"),
        ("last:x", "not a number"),
        ("date:soon", "looks like"),
        ("half", "unknown split"),
    ):
        with pytest.raises(InputError, match=message):
            splits.parse(words, ratings, 0)
    with pytest.raises(DataError, match="needs times"):
        splits.last(planted(), 1)


def test_no_statistic_of_the_test_ratings_reaches_training(tmp_path):
    """Other values in the held-out ratings: the same model to the bit."""
    models = []
    for shift in (0, 100):
        ratings = planted()
        _, held_out = splits.at_random(ratings, 0.3, 0)
        ratings.matrix.data[:] += shift * (held_out.matrix.toarray() != 0)[ratings.rows(), ratings.matrix.indices]
        write_table(ratings, tmp_path / f"{shift}.csv")
        fedmc("train", f"{shift}.csv", "--test", "0.3", "--clients", "4", "--rounds", "3", "--out", shift, cwd=tmp_path)
        with np.load(tmp_path / str(shift) / "model.npz") as file:
            models.append(file["V"].tobytes())
    assert models[0] == models[1]


def test_catalogue(tmp_path):
    one, two = Catalogue.of([3, 1, 2]), Catalogue.of([5, 3])
    assert one.items.tolist() == [1, 2, 3]
    assert one.hash == Catalogue.of([1, 2, 3, 3]).hash != two.hash
    assert Catalogue.of(["1", "2", "3"]).hash != one.hash
    assert Catalogue.of(one.items, two.items).items.tolist() == [1, 2, 3, 5]
    assert Catalogue.of(one.items, ["a"]).items.tolist() == ["1", "2", "3", "a"]
    one.save(tmp_path / "c.json")
    assert catalogues.load(tmp_path / "c.json").hash == one.hash
    content = json.loads((tmp_path / "c.json").read_text())
    for damage in ({"items": [1, 2, 4]}, {"hash": "0"}, {"version": 9}, {"format": "x"}, {"items": None}):
        (tmp_path / "c.json").write_text(json.dumps(content | damage))
        with pytest.raises(DataError):
            catalogues.load(tmp_path / "c.json")
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(DataError, match="not a whole catalogue"):
        catalogues.load(tmp_path / "c.json")


def test_align_reports_what_is_outside():
    ratings = Ratings.from_arrays(["a", "a", "b"], [10, 20, 30], [1.0, 2.0, 3.0])
    wide, report = align(ratings, Catalogue.of([5, 10, 20, 25, 30]))
    assert report is None
    assert wide.matrix.toarray().tolist() == [[0, 1, 2, 0, 0], [0, 0, 0, 0, 3]]
    with pytest.raises(
        DataError, match=r"2 ratings are of 2 items outside of the catalogue \(20, 30\).*unknown_items='drop'"
    ):
        align(ratings, Catalogue.of([10]))
    kept, report = align(ratings, Catalogue.of([10]), "drop")
    assert len(kept) == 1
    assert "2 ratings" in report
    with pytest.raises(InputError, match="unknown way"):
        align(ratings, Catalogue.of([10]), "ignore")


@pytest.fixture
def shards(tmp_path):
    write_table(timed(), tmp_path / "t.csv")
    plan = Plan(str(tmp_path / "t.csv"), split="random:0.2", clients=4)
    parts = read_parts(plan)
    prepare.write_prepared(tmp_path / "shards", parts)
    return tmp_path / "shards", parts


def test_prepared_shards_are_the_shards(shards):
    path, parts = shards
    opened = prepared.open_prepared(path)
    for made, shard, ids in zip(
        partition.make_shards(parts.train, parts.owner, np.float32, parts.test), opened.shards, opened.ids, strict=True
    ):
        assert ids.tolist() == parts.train.users[made.users].tolist()
        for name in ("by_user", "by_item", "test"):
            one, other = getattr(made, name), getattr(shard, name)
            assert one.data.tolist() == other.data.tolist()
            assert one.indices.tolist() == other.indices.tolist()
            assert one.indptr.tolist() == other.indptr.tolist()
            assert not other.indices.flags.owndata
    prepared.verify(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["shards", "t.csv"]


@given(seed=st.integers(0, 2**32 - 1), words=st.sampled_from(PARTITIONS), split=st.sampled_from(SPLITS[:3]))
@examples(15)
def test_any_order_of_rows_gives_the_same_shards_and_hashes(tmp_path_factory, seed, words, split):
    folder = tmp_path_factory.mktemp("orders")
    write_table(timed(density=0.9), folder / "a.csv")  # dense, so that every split leaves each user some ratings
    header, *lines = (folder / "a.csv").read_text().splitlines()
    order = np.random.default_rng(seed).permutation(len(lines))
    (folder / "b.csv").write_text("\n".join([header, *(lines[k] for k in order)]) + "\n")
    hashes = []
    for name in "ab":
        plan = Plan(str(folder / f"{name}.csv"), split=split, partition=words, clients=4)
        prepare.write_prepared(folder / name, read_parts(plan))
        manifest = prepared.read_manifest(folder / name)
        hashes.append((manifest["catalogue"], [entry["sha256"] for entry in manifest["shards"]]))
    assert hashes[0] == hashes[1]


def test_damaged_shards_are_refused(shards):
    path, _ = shards
    shard = sorted(path.glob("*.shard"))[1]
    whole = shard.read_bytes()
    for damaged in (whole[:-1], whole + b"x", b"\xff" + whole[1:], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        shard.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged: prepare the shards again"):
            prepared.open_prepared(path)
    middle = bytearray(whole)
    middle[len(whole) // 2] ^= 0xFF
    shard.write_bytes(middle)
    with pytest.raises(DataError, match="is damaged"):
        prepared.verify(path)
    shard.unlink()
    with pytest.raises(DataError, match="is damaged"):
        prepared.open_prepared(path)
    manifest = path / "manifest.json"
    text = manifest.read_text()
    for changed in (text.replace('"clients": 4', '"clients": 5'), text[:-5], "[]", ""):
        manifest.write_text(changed)
        with pytest.raises(DataError):
            prepared.open_prepared(path)


def test_a_crash_while_preparing_leaves_the_old_ones(shards):
    path, parts = shards
    before = (path / "manifest.json").read_text()
    with pytest.raises(RuntimeError), prepared.writing(path, Catalogue(parts.train.items), overwrite=True) as writer:
        writer.add(parts.train.users, parts.train.matrix)
        raise RuntimeError("the power went")
    assert (path / "manifest.json").read_text() == before
    assert len(list(path.parent.iterdir())) == 2
    with pytest.raises(InputError, match="exists already"):
        prepare.write_prepared(path, parts)


def test_training_from_prepared_shards_equals_training_from_the_table(shards, tmp_path):
    """The same split and clients, mapped or made anew: the same model to the bit."""
    path, _ = shards
    options = ["--rounds", "3", "--rank", "2", "--dtype", "float32"]
    fedmc("train", path, *options, "--out", "a", cwd=tmp_path)
    fedmc("train", "t.csv", *options, "--clients", "4", "--test", "0.2", "--out", "b", cwd=tmp_path)
    arrays = [np.load(tmp_path / run / "model.npz") for run in "ab"]
    for name in ("users", "items", "U", "V", "seen_indices", "seen_indptr"):
        assert arrays[0][name].tobytes() == arrays[1][name].tobytes(), name
    for array in arrays:
        array.close()


RECIPE = synthetic.Recipe(users=300, items=80, ratings=6000, rank=3, noise=0.5)


def test_synthetic_ratings_are_as_asked():
    ratings = synthetic.make_ratings(RECIPE)
    assert ratings.matrix.shape == (300, 80)
    assert len(ratings) == 6000
    assert np.diff(ratings.matrix.indptr).min() >= 1
    assert ratings.matrix.has_canonical_format
    again, other = synthetic.make_ratings(RECIPE), synthetic.make_ratings(synthetic.Recipe(300, 80, 6000, seed=1))
    assert (ratings.matrix != again.matrix).nnz == 0
    assert (ratings.matrix != other.matrix).nnz > 0
    popular = np.sort(np.bincount(ratings.matrix.indices, minlength=80))
    assert popular[-8:].sum() > 3 * popular[:40].sum() / 5
    rounded = synthetic.make_ratings(synthetic.Recipe(300, 80, 6000, scale=(0.5, 5.0, 0.5))).matrix.data
    assert set(np.unique(rounded)) <= set(np.arange(1, 11) / 2)
    assert synthetic.Recipe(300, 80, 6000, noise=0.3, scale=(1, 5, 1)).noise_floor == pytest.approx(
        np.sqrt(0.09 + 1 / 12)
    )


def test_the_planted_model_errs_by_the_noise():
    """The best model of the planted kind, fitted to all ratings of a full-enough table, comes near the noise."""
    from fedmc.algorithms.settings import Settings
    from fedmc.evaluation.pooled import pooled_rmse

    recipe = synthetic.Recipe(users=2000, items=150, ratings=120_000, rank=2, noise=0.5)
    train, test = splits.at_random(synthetic.make_ratings(recipe), 0.1, 0)
    rmse = pooled_rmse(train, test, Settings.preset("fast", rank=2, penalty_users="l2:1"))
    assert 0.98 * recipe.noise_floor < rmse < 1.08 * recipe.noise_floor


def test_synthetic_shards(tmp_path):
    synthetic.write_shards(RECIPE, tmp_path / "s", 7, test=0.25)
    opened = prepared.open_prepared(tmp_path / "s")
    assert len(opened.shards) == 7
    assert sorted(np.concatenate(opened.ids).tolist()) == list(range(300))
    assert sum(s.by_user.nnz + s.test.nnz for s in opened.shards) == 6000
    assert opened.about["noise_floor"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 0}, "users must be at least 1"),
        ({"ratings": 10}, "between 300 .one per user."),
        ({"ratings": 20_000}, "60 % full"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"scale": (5.0, 1.0, 1.0)}, "LOW,HIGH,STEP"),
    ],
)
def test_recipes_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        synthetic.Recipe(**({"users": 300, "items": 80, "ratings": 6000} | changes))


def test_the_commands(tmp_path):
    fedmc(
        "data",
        "synth",
        "--users",
        60,
        "--items",
        20,
        "--ratings",
        500,
        "--scale",
        "1,5,1",
        "--out",
        "a.csv",
        cwd=tmp_path,
    )
    fedmc("data", "synth", "--users", 60, "--items", 30, "--ratings", 500, "--out", "b.parquet", cwd=tmp_path)
    said = fedmc("data", "synth", "--like", "ml-1m", "--out", "big", cwd=tmp_path)
    assert "1,000,209 ratings" in said
    assert f"{synthetic.like('ml-1m').noise_floor:.4f} (RMSE)" in said
    assert len(list((tmp_path / "big").glob("*.shard"))) == 100
    assert "20 items" in fedmc("catalogue", "make", "a.csv", "--out", "a.json", cwd=tmp_path)
    fedmc("catalogue", "make", "b.parquet", "--out", "b.json", cwd=tmp_path)
    assert "30 items" in fedmc("catalogue", "merge", "a.json", "b.json", "--out", "all.json", cwd=tmp_path)
    assert "all 20 items" in fedmc("catalogue", "check", "all.json", "a.csv", cwd=tmp_path)
    assert "outside of the catalogue" in fedmc("catalogue", "check", "a.json", "b.parquet", cwd=tmp_path, code=2)
    fedmc("prepare", "a.csv", "--catalogue", "all.json", "--out", "one", cwd=tmp_path)
    assert prepared.open_prepared(tmp_path / "one").shards[0].by_user.shape == (60, 30)
    assert "--unknown-items drop" in fedmc(
        "prepare", "b.parquet", "--catalogue", "a.json", "--out", "x", cwd=tmp_path, code=2
    )
    said = fedmc("prepare", "b.parquet", "--catalogue", "a.json", "--unknown-items", "drop", "--out", "x", cwd=tmp_path)
    assert "dropped:" in said
    split = ["--partition", "power:1", "--clients", "3", "--split", "random:0.2"]
    fedmc("prepare", "a.csv", *split, "--out", "three", cwd=tmp_path)
    assert "exists already" in fedmc("prepare", "a.csv", "--out", "three", cwd=tmp_path, code=2)
    fedmc("train", "three", "--rounds", "2", "--rank", "2", "--out", "run", cwd=tmp_path)
    fedmc(
        "train",
        "a.csv",
        "--partition",
        "one-user",
        "--rounds",
        "1",
        "--rank",
        "2",
        "--test",
        "leave:1",
        "--out",
        "r2",
        cwd=tmp_path,
    )
    assert "exist" in fedmc("data", "synth", "--like", "ml-1m", "--out", "big", cwd=tmp_path, code=2)
    assert "say --users" in fedmc("data", "synth", "--out", "y", cwd=tmp_path, code=2)
    assert "leave --users" in fedmc(
        "data", "synth", "--like", "ml-1m", "--users", 5, "--out", "y", cwd=tmp_path, code=2
    )
    assert "'imdb' is not one of" in fedmc("data", "synth", "--like", "imdb", "--out", "y", cwd=tmp_path, code=2)


def test_a_damaged_shard_stops_training(shards, tmp_path):
    path, _ = shards
    shard = next(iter(sorted(path.glob("*.shard"))))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert "is damaged" in fedmc("train", path, "--out", "run", cwd=tmp_path, code=2)


def test_errors_are_ours():
    with pytest.raises(FedmcError, match="not a folder of prepared shards"):
        prepared.open_prepared("/")
