"""`fedmc recommend --all --out FILE`: the recommendations of all users in one file are those of each user alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmc import FedMC
from fedmc.data.readers.writing import IN_BLOCKS, writing_rows
from tests.command import fedmc
from tests.conftest import planted

NAMES = ["user", "rank", "item", "score", "title"]
READ = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".parquet": pd.read_parquet,
    ".feather": pd.read_feather,
    ".jsonl": lambda path: pd.read_json(path, lines=True),
}
OPTIONS = {
    "plain": (),
    "cautious": ("--cautious",),
    "seen": ("--include-seen", "-n", "3"),
    "filters": ("--only", "1,2,3,4,5,6", "--exclude", "2"),
    "more than there are": ("-n", "1000"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A Bayesian model with titles, one of which needs a quote in CSV."""
    model = FedMC(3, clients=4, rounds=4).fit(planted()).model_
    titles = np.array([f'The "{item}", again' for item in model.items])
    path = tmp_path_factory.mktemp("all") / "model.npz"
    replace(model, titles=titles).save(path)
    return path


@pytest.mark.parametrize("ending", IN_BLOCKS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_all_are_those_of_each_user(saved, tmp_path, monkeypatch, ending, options):
    monkeypatch.setattr("fedmc.cli.recommend.BLOCK", 7)
    monkeypatch.setattr("fedmc.cli.recommend.SPREAD", 100)
    out = tmp_path / f"all{ending}"
    done = fedmc("recommend", saved, "--all", "--out", out, *options)
    assert done.returncode == 0, done.stderr
    found = READ[ending](out)
    assert list(found) == NAMES
    users = [str(user) for user in np.unique(planted().users)]
    alone = json.loads(fedmc("recommend", saved, *users, "--json", *options).stdout)
    expected = pd.DataFrame(alone)
    assert found.user.astype(str).tolist() == expected.user.tolist()
    for name in ("rank", "item", "title"):
        assert found[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(found.score, expected.score, atol=5.1e-5)
    assert done.stdout == f"{len(expected):,} recommendations to {len(users):,} users in {out}\n"


def test_at_a_node(saved, tmp_path):
    north = tmp_path / "north"
    north.mkdir()
    (north / "model.npz").write_bytes(saved.read_bytes())
    done = fedmc("node", "recommend", north, "--all", "--out", tmp_path / "a.parquet", "-n", 4)
    assert done.returncode == 0, done.stderr
    fedmc("recommend", saved, "--all", "--out", tmp_path / "b.parquet", "-n", 4)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), pd.read_parquet(tmp_path / "b.parquet"))


def test_what_is_refused(saved, tmp_path):
    (tmp_path / "there.csv").write_text("mine")
    for words, said in [
        (("--all",), "--all needs --out"),
        (("1", "--all", "--out", tmp_path / "x.csv"), "leave out the ids"),
        (("--all", "--out", tmp_path / "x.xlsx"), "unknown ending '.xlsx': choose one of .parquet, .feather"),
        (("--all", "--out", tmp_path / "there.csv"), "exists already: --overwrite"),
        (("--all", "--out", tmp_path / "nowhere" / "x.csv"), "nowhere"),
    ]:
        done = fedmc("recommend", saved, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert said in done.stderr
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]


@pytest.mark.parametrize("ending", IN_BLOCKS)
def test_a_file_is_whole_or_not_there(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    with pytest.raises(RuntimeError), writing_rows(path) as write:
        write({"a": np.array([1, 2])})
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with writing_rows(path) as write:
        write({"a": np.array([1, 2]), "b": np.array([0.123456, 2.0])})
        write({"a": np.array([3]), "b": np.array([4.0])})
    found = READ[ending](path)
    assert found.a.tolist() == [1, 2, 3]
    assert found.b[0] == pytest.approx(0.123456 if ending in (".parquet", ".feather") else 0.1235, abs=1e-12)
