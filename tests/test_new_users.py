"""Protocols of ranking: leave-last-out, last k, a share of each user's items, and users who are folded in."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedmc
from fedmc.data import splits
from fedmc.data.feedback import EventOptions
from fedmc.data.loading import as_ratings
from fedmc.data.prepare import Plan, federation_of, read_parts, write_prepared
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.evaluation import final
from fedmc.evaluation.ranked import popularity_of, ranked
from fedmc.model import load
from tests.test_cli import refuse, run

USERS, ITEMS = 60, 24
FAST = ["--clients", "4", "--rounds", "4", "--rank", "3"]


def events(seed=0):
    """(user, item, time): users like the items near them, and have between 1 and 9."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    best = np.argsort(-(U @ V.T + 0.3 * rng.normal(size=(USERS, ITEMS))), axis=1)
    return [(u, int(i), int(rng.integers(10**6))) for u in range(USERS) for i in best[u][: 1 + u % 9]]


def table(seed=0):
    users, items, times = (np.array(column) for column in zip(*events(seed), strict=True))
    return Ratings.from_arrays(users, items, np.ones(len(users)), times)


@pytest.fixture
def log(tmp_path):
    lines = [f"u{u},{i},{t}" for u, i, t in events()]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,timestamp", *lines, ""]))
    return tmp_path


def sizes(ratings):
    return np.diff(ratings.matrix.indptr)


def test_a_share_of_each_users_items():
    whole = table()
    rest, held_out = splits.share(whole, 0.3, 5)
    n = sizes(whole)
    np.testing.assert_array_equal(sizes(held_out), np.minimum(np.round(0.3 * n), n - 1))
    assert sizes(rest).min() == 1
    others = splits.share(whole, 0.3, 6)[1]
    assert (others.matrix != held_out.matrix).nnz > 0
    for part in (0, 1, -0.2, np.nan):
        with pytest.raises(InputError, match="above 0 and below 1"):
            splits.share(whole, part, 0)


def test_split_in_python_takes_every_protocol():
    whole = table()
    for how, held_out in ((0.2, None), ("last:1", 1), ("leave:2", 2), ("share:0.5", None), ("date:1970-01-05", None)):
        rest, test = fedmc.split(whole, how, seed=3)
        assert len(rest) + len(test) == len(whole)
        assert len(test) > 0
        if held_out is not None:
            assert set(sizes(test)) == {0, held_out}
    for one, other in zip(fedmc.split(whole, 0.2, 3), splits.at_random(whole, 0.2, 3), strict=True):
        np.testing.assert_array_equal(one.matrix.toarray(), other.matrix.toarray())
    for how, message in (("users:0.1", "folds new users in"), ("half", "unknown split"), ("share:x", "not a number")):
        with pytest.raises(InputError, match=message):
            fedmc.split(whole, how)


def test_new_users_take_no_part_in_training():
    whole = table()
    new = splits.new_users(whole, 0.25, 7)
    assert (len(new.train.users), len(new.known.users)) == (45, 15)
    assert new.known.users.tolist() == new.hidden.users.tolist()
    assert not np.isin(new.known.users, new.train.users).any()
    rows = np.flatnonzero(np.isin(whole.users, new.train.users))
    np.testing.assert_array_equal(new.train.users, whole.users[rows])
    np.testing.assert_array_equal(new.train.matrix.toarray(), whole.matrix.toarray()[rows])
    rest = np.setdiff1d(np.arange(USERS), rows)
    theirs = new.known.matrix + new.hidden.matrix
    np.testing.assert_array_equal(theirs.toarray(), whole.matrix.toarray()[rest])
    assert new.train.times.sum() + new.known.times.sum() + new.hidden.times.sum() == whole.times.sum()
    n = sizes(whole)[rest]
    np.testing.assert_array_equal(sizes(new.hidden), np.minimum(np.round(0.2 * n), n - 1))
    for part in (0, 1, 1.5, 0.001, 0.999):
        with pytest.raises(InputError, match="users"):
            splits.new_users(whole, part, 0)


def test_strong_generalisation_at_the_command_line(log):
    """The figures are those of the model that was saved, with the new users folded in."""
    words = ["train", "log.csv", "--feedback", "implicit", *FAST, "--test", "users:0.25", "--seed", "3", "--out", "run"]
    done = run(*words, "--report", "--json", cwd=log)
    result = json.loads(done.stdout.splitlines()[-1])
    model = load(log / "run" / "model.npz")
    assert len(model.users) == 45
    whole = as_ratings(read(log), events=EventOptions())
    new = splits.new_users(whole, 0.25, 3)
    assert not np.isin(new.known.users, model.users).any()
    rows = new.hidden.rows()
    pairs = new.hidden.users[rows], new.hidden.items[new.hidden.matrix.indices]
    expected = ranked(model.fold_in(new.known), *pairs, popularity=popularity_of(model))
    assert result["test_ndcg_20"] == pytest.approx(expected.model[20].ndcg)
    assert result["test_popular_recall_10"] == pytest.approx(expected.popularity[10].recall)
    assert result["test_users"] == expected.users
    assert "test NDCG@20" in done.stdout
    assert final.load(log / "run")["test_ndcg_20"] == result["test_ndcg_20"]
    page = (log / "run" / "report.html").read_text(encoding="utf-8")
    assert f"NDCG@20 of {result['test_ndcg_20']:.4f}" in page
    assert "<h2>Ranking</h2>" in page


def read(folder):
    lines = (folder / "log.csv").read_text().splitlines()[1:]
    users, items, times = zip(*(line.split(",") for line in lines), strict=True)
    return np.array(users), np.array(items, int), np.ones(len(users)), np.array(times, int)


def test_training_does_not_depend_on_what_new_users_have(log):
    """Other events of the held-out users: the same model to the bit."""
    words = ["--feedback", "implicit", *FAST, "--test", "users:0.25", "--seed", "3"]
    run("train", "log.csv", *words, "--out", "a", cwd=log)
    held_out = set(splits.new_users(as_ratings(read(log), events=EventOptions()), 0.25, 3).known.users.tolist())
    lines = (log / "log.csv").read_text().splitlines()
    others = [f"{line.split(',')[0]},{k % ITEMS},1" if line.split(",")[0] in held_out else line
              for k, line in enumerate(lines)]  # fmt: skip
    (log / "log.csv").write_text("\n".join([*others, ""]))
    run("train", "log.csv", *words, "--out", "b", cwd=log)
    a, b = (load(log / name / "model.npz") for name in "ab")
    assert a.users.tolist() == b.users.tolist()
    assert a.V.tobytes() == b.V.tobytes()


@pytest.mark.parametrize("test", ["last:1", "last:2", "share:0.3", "leave:1", "0.2"])
def test_every_protocol_at_the_command_line(test, log):
    words = ["train", "log.csv", "--feedback", "implicit", *FAST, "--test", test, "--out", "run", "--json"]
    result = json.loads(run(*words, cwd=log).stdout.splitlines()[-1])
    whole = table()
    held_out = whole if test == "0.2" else splits.parse(test, whole, 0)[1]
    expected = round(0.2 * len(whole)) if test == "0.2" else len(held_out)
    model = load(log / "run" / "model.npz")
    assert len(whole) - model.seen.nnz == expected
    assert 0 < result["test_ndcg_20"] < 1
    assert result["test_popular_ndcg_20"] > 0


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("train", ["--test", "users:0"], "the share of users to hold out must be above 0 and below 1, got 0"),
        ("train", ["--test", "users:x"], "split 'users:x': 'x' is not a number"),
        ("train", ["--test", "users:0.9", "--clients", "30"], "more clients (30) than users (6): at most 6 clients"),
        ("train", ["--test", "share:2"], "the share of each user must be above 0 and below 1, got 2"),
        ("train", ["--validation", "users:0.1"], "folds new users in after training"),
        ("compare", ["--test", "users:0.1", "--seeds", "1"], "folds new users in after training"),
        ("prepare", ["--test", "users:0.1"], "prepared shards hold no users outside of training"),
    ],
)
def test_refusals(command, words, message, log):
    given = ["--feedback", "implicit", "--clients", "4", *words, "--out", "out"]
    refuse(command, "log.csv", *given, cwd=log, message=message)
    assert not (log / "out").exists()


def test_new_users_are_in_no_shard(tmp_path, log):
    plan = Plan(str(log / "log.csv"), split="users:0.25", clients=4, events=EventOptions(), confidence_scale="none")
    federation = federation_of(plan, "float64")
    new = federation.new_users
    assert sum(len(shard.users) for shard in federation.shards) == len(federation.users) == 45
    assert not np.isin(new.known.users, federation.users).any()
    assert all(shard.test is None for shard in federation.shards)
    alone = federation_of(plan._replace(partition="one-user"), "float64")
    assert [len(shard.users) for shard in alone.shards] == [1] * 45
    with pytest.raises(InputError, match="hold no users outside of training"):
        write_prepared(tmp_path / "shards", read_parts(plan))


def test_models_of_ratings_are_ranked_at_the_end(log):
    """Training prints and stores how a model of ratings ranks, beside popularity."""
    lines = [f"u{u},{i},{1 + (u + i) % 5}" for u, i, _ in events()]
    (log / "stars.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    for test in ("0.3", "users:0.25"):
        words = ["train", "stars.csv", *FAST, "--test", test, "--out", "run", "--overwrite", "--report", "--json"]
        done = run(*words, cwd=log)
        result = json.loads(done.stdout.splitlines()[-1])
        stored = final.load(log / "run")
        assert stored["test_ndcg_20"] == result["test_ndcg_20"] > 0
        assert f"test NDCG@20 {result['test_ndcg_20']:.4f} (popularity" in " ".join(done.stdout.split())
        assert "The model ranks what it has not seen" in (log / "run" / "report.html").read_text(encoding="utf-8")
        if test == "0.3":
            found = json.loads(run("evaluate", "run", "stars.csv", "--ranking", "--json", cwd=log).stdout)
            for name in ("ndcg_20", "recall_10", "map_20", "popular_ndcg_20", "coverage_10"):
                assert found[name] == pytest.approx(result[f"test_{name}"])
    run("train", "stars.csv", *FAST, "--test", "0", "--out", "bare", cwd=log)
    assert not (log / "bare" / "ranking.json").exists()


@pytest.mark.parametrize("partition", ["uniform", "one-user"])
def test_many_users_are_thinned(partition, log):
    plan = Plan(
        str(log / "log.csv"),
        split="leave:1",
        clients=4,
        partition=partition,
        events=EventOptions(),
        confidence_scale="none",
    )
    federation = federation_of(plan, "float64")
    everybody = {user for user in final._held_out(federation, 10**6)[0].tolist()}
    some = {user for user in final._held_out(federation, 20)[0].tolist()}
    assert some < everybody
    assert 10 <= len(some) <= 20


def test_a_damaged_file_is_told(tmp_path):
    (tmp_path / "ranking.json").write_text("[1]")
    with pytest.raises(InputError, match=r"ranking\.json is damaged"):
        final.load(tmp_path)
