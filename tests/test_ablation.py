"""What each part of a model is worth: the variants, their order, their files, and where they are shown."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data.matrices import narrow
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.training import ablation
from fedmc.training.ablation import ALL, NOTHING, PARTS, Inputs, Variant
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.tuning import held_out
from tests.command import fedmc
from tests.conftest import planted

SETTINGS = Settings.preset("bayes", rank=2, active=3)
RATED, EVENTS, USERS, ITEMS, DAYS = PARTS


def world(seed=0, users=90, items=30):
    """Ratings that features of users and items explain, and what they were made from."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(users, 1)), rng.normal(size=(items, 1))
    full = 3 + x + y.T + 0.3 * rng.normal(size=(users, items))
    rows, columns = np.nonzero(rng.random(full.shape) < 0.12)
    ratings = Ratings.from_arrays([*rows, *range(users)], [*columns, *(np.arange(users) % items)],
                                  [*full[rows, columns], *full[range(users), np.arange(users) % items]],
                                  duplicates="last")  # fmt: skip
    return ratings, x, y


def shards_of(ratings, features=None, seen=None, clients=3):
    return make_shards(ratings, np.arange(len(ratings.users)) % clients, "float64", None, None, features, seen)


def test_each_variant_lacks_one_part_and_the_last_lacks_all():
    ratings, x, y = world()
    seen = narrow(sparse.csr_array(np.eye(*ratings.matrix.shape, dtype=np.int8)))
    timed = replace(ratings, times=np.arange(len(ratings)) * 10_000)
    found = ablation.variants(Inputs(shards_of(timed, x, seen), SETTINGS, y))
    assert list(found) == [NOTHING, *PARTS, ALL]

    def has(given):
        return {
            RATED: given.settings.implicit,
            EVENTS: given.settings.implicit and given.shards[0].also_seen is not None,
            USERS: given.shards[0].features is not None,
            ITEMS: given.item_features is not None,
            DAYS: given.shards[0].days is not None,
        }

    assert all(has(found[NOTHING]).values())
    assert not any(has(found[ALL]).values())
    for name in PARTS:
        lacks = {part for part, there in has(found[name]).items() if not there}
        assert lacks == ({RATED, EVENTS} if name == RATED else {name})
        assert [shard.by_user.nnz for shard in found[name].shards] == [s.by_user.nnz for s in found[NOTHING].shards]


def test_what_is_not_there_is_not_left_out():
    ratings = planted()
    assert list(ablation.variants(Inputs(shards_of(ratings), SETTINGS))) == [NOTHING, RATED]
    plain = Inputs(shards_of(ratings), SETTINGS.replace(implicit=False))
    assert list(ablation.variants(plain)) == [NOTHING]
    with_events = plain._replace(shards=shards_of(ratings, None, ratings.matrix.astype(np.int8)))
    assert list(ablation.variants(with_events)) == [NOTHING]


def test_features_that_explain_the_ratings_are_worth_something():
    ratings, x, y = world()
    heard = []
    found = ablation.ablation(shards_of(ratings, x), SETTINGS, y, on_variant=heard.append)
    assert found == heard
    assert [one.without for one in found] == [NOTHING, RATED, USERS, ITEMS, ALL]
    everything, *others = found
    assert everything.loss == 0
    for one in others:
        assert one.loss == pytest.approx(100 * (one.validation_rmse / everything.validation_rmse - 1))
    loss = {one.without: one.loss for one in found}
    assert loss[USERS] > 3
    assert loss[ITEMS] > 1
    assert loss[ALL] > max(loss[USERS], loss[ITEMS])


def test_it_is_the_error_of_a_run_on_the_kept_ratings():
    shards = shards_of(planted())
    found = ablation.ablation(shards, SETTINGS, number=5)
    running = rounds(LocalEngine(held_out(shards, 0.1, SETTINGS.seed)), SETTINGS)
    expected = next(round for round in running if round.number == 5).diagnostics.validation_rmse
    assert found[0].validation_rmse == expected
    assert ablation.ablation(shards, SETTINGS, number=5)[1].validation_rmse == found[1].validation_rmse


def test_rounds_of_a_variant():
    assert ablation.rounds_of_a_variant(SETTINGS, 3) == 20
    assert ablation.rounds_of_a_variant(SETTINGS.replace(active=10), 100) == 100


def test_an_interrupted_one_keeps_what_is_done():
    shards, done = shards_of(planted()), []
    found = ablation.ablation(shards, SETTINGS, number=3, on_variant=done.append, interrupted=lambda: bool(done))
    assert [one.without for one in found] == [NOTHING]
    assert ablation.ablation(shards, SETTINGS, number=3, interrupted=lambda: True) == []


def test_other_models_are_refused():
    with pytest.raises(InputError, match="an ablation needs the algorithm of preset 'bayes', got 'curvature'"):
        ablation.ablation(shards_of(planted()), Settings.preset("fast", rank=2, active=3))


def test_files(tmp_path):
    found = [Variant(NOTHING, 0.9, 0.0, 1.5), Variant(USERS, math.inf, math.nan, 2.0)]
    assert ablation.load(tmp_path) == []
    ablation.save(found, tmp_path)
    first, second = ablation.load(tmp_path)
    assert first == found[0]
    assert second.validation_rmse == math.inf
    assert math.isnan(second.loss)
    assert found[0].in_words() == "with everything: validation RMSE 0.9000"
    assert Variant(USERS, 0.99, 10.0, 2.0).in_words() == "without user features: validation RMSE 0.9900 (+10.00 %)"
    for damaged in ("{}", "[1]", '{"variants": [1]}', '{"variants": [{"without": "x"}]}', "nothing",
                    '{"variants": [{"without": "x", "validation_rmse": "a", "loss": 1, "seconds": 1}]}'):  # fmt: skip
        (tmp_path / ablation.FILE).write_text(damaged)
        with pytest.raises(InputError, match="is damaged"):
            ablation.load(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablation")
    ratings, x, _ = world()
    entries = ratings.matrix.tocoo()
    lines = [f"{u},{i},{r}" for u, i, r in zip(entries.row, entries.col, entries.data, strict=True)]
    (folder / "ratings.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    (folder / "users.csv").write_text("user,income\n" + "".join(f"{k},{value}\n" for k, value in enumerate(x[:, 0])))
    side = "--user-features", folder / "users.csv"
    options = "--rank", 2, "--clients", 3, "--rounds", 8, "--ablation", "--report", "--json", "--out", folder / "run"
    done = fedmc("train", folder / "ratings.csv", *side, *options)
    assert done.returncode == 0, done.stderr
    return folder / "run", done


def test_train_says_what_each_part_is_worth(run):
    folder, done = run
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [one["without"] for one in summary["worth"]] == [NOTHING, RATED, USERS, ALL]
    assert "ablation: runs of 20 rounds, validated on 10% of each client's ratings" in done.stderr
    assert "with everything: validation RMSE" in done.stderr
    assert "without user features: validation RMSE" in done.stderr
    assert summary["worth"] == json.loads((folder / "ablation.json").read_text())["variants"]


def test_info_and_report_show_it(run):
    folder, _ = run
    text = fedmc("info", folder).stdout
    assert "prior_means    who rated what (7 directions), 1 user feature" in text
    assert "what each part is worth" in text
    assert "user features" in text
    assert [one["without"] for one in json.loads(fedmc("info", folder, "--json").stdout)["worth"]][:2] == [
        NOTHING,
        RATED,
    ]
    assert "worth" not in json.loads(fedmc("info", folder / "model.npz", "--json").stdout)
    page = (folder / "report.html").read_text()
    assert "What each part is worth" in page
    assert "who rated what" in page


def test_command_refuses_other_models(tmp_path):
    done = fedmc("train", "demo", "--preset", "fast", "--ablation", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "an ablation needs" in done.stderr
    assert not (tmp_path / "run").exists()
