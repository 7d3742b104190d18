"""What a new user tries on the first day, by public names and commands alone.

Each test is one complaint; the details have tests of their own (named in the docstrings).
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import fedmc as package
from fedmc import FedMC, Ratings
from fedmc.errors import FedmcError
from tests.command import fedmc

SMALL = dict(rank=3, clients=4, rounds=5)


@pytest.fixture(scope="module")
def frame():
    """Ratings with planted factors, an item for each user that nobody else rated, and times."""
    rng = np.random.default_rng(0)
    full = 3 + rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) / np.sqrt(3)
    users, items = np.nonzero(rng.random(full.shape) < 0.5)
    common = pd.DataFrame({"user": users, "item": items, "rating": full[users, items].round(1)})
    rare = pd.DataFrame({"user": range(60), "item": range(100, 160), "rating": 3.0})
    return pd.concat([common, rare], ignore_index=True).assign(time=lambda found: found.index)


@pytest.fixture(scope="module")
def fitted(frame):
    return FedMC(**SMALL).fit(frame[["user", "item", "rating"]])


def refused(*words, cwd):
    """The messages of a command that must fail with an error and without a traceback."""
    done = fedmc(*words, cwd=cwd)
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    return done.stderr


# --- the report of a run (test_run_report.py)


@pytest.fixture(scope="module")
def report(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "data"
    folder.mkdir()
    frame.to_csv(folder / "sales.csv", index=False)
    source, run = folder / "sales.csv", folder / "run"
    for words in (("train", source, "--rank", "2", "--clients", "4", "--rounds", "3", "--out", run), ("report", run)):
        done = fedmc(*words)
        assert done.returncode == 0, done.stderr
    return run / "report.html", folder


def test_the_title_of_a_report_is_no_path(report):
    html, folder = report[0].read_text(encoding="utf-8"), str(report[1])
    for tag in ("title", "h1"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert "sales" in found[1]
        assert folder not in found[1]
        assert "/" not in found[1]


def test_a_report_carries_the_privacy_claim_and_names_a_baseline(report):
    html = report[0].read_text(encoding="utf-8")
    summary = html[: html.index("<h2")]
    assert "the server sees each client&#x27;s messages" in summary
    assert "averages of users and items" in summary


# --- scikit-learn (test_sklearn.py)


def test_cross_validation_gives_numbers(frame):
    X, y = frame[["user", "item"]], frame["rating"]
    scores = cross_val_score(FedMC(**SMALL), X, y, cv=KFold(3, shuffle=True, random_state=0))
    assert np.isfinite(scores).all()
    assert (scores > -y.std()).all()


def test_a_grid_search_picks_by_a_score(frame):
    X, y = frame[["user", "item"]], frame["rating"]
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(FedMC(**SMALL), {"rank": [1, 3], "preset": ["bayes", "fast"]}, cv=folds).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])


def test_a_pipeline_predicts(frame):
    X, y = frame[["user", "item"]], frame["rating"]
    pipeline = make_pipeline(FunctionTransformer(), FedMC(**SMALL)).fit(X, y)
    assert pipeline.predict(X).shape == y.shape


def test_the_checks_of_scikit_learn_run_to_their_end():
    estimator = FedMC(rank=2, rounds=2, clients=1, columns=(0, 1), duplicates="mean")
    # Its reason stands in test_sklearn.py.
    array_api = {"check_array_api_input": "numpy arrays only"}
    found = check_estimator(estimator, expected_failed_checks=array_api, on_fail=None, on_skip=None)
    assert len(found) > 40
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []


def test_a_random_state_is_a_seed(frame):
    X, y = frame[["user", "item"]], frame["rating"]
    first, again, other = (FedMC(**SMALL, random_state=seed).fit(X, y).predict(X) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


# --- splits and tables (test_tables.py)


def test_split_takes_what_fit_takes(frame):
    table = frame[["user", "item", "rating"]]
    for given in (table, tuple(table.to_numpy().T), table.pivot_table("rating", "user", "item").to_numpy()):
        train, test = package.split(given, 0.2, seed=0)
        assert len(train) + len(test) == len(table)
        assert len(test) > 0


def test_other_splits_are_public(frame):
    for split in (package.last, package.leave):
        train, test = split(frame, 2)
        assert len(train) + len(test) == len(frame)
        assert len(test) > 0
    train, test = package.since(frame, "1970-01-01T00:05")
    assert (len(train), len(test)) == (300, len(frame) - 300)


def test_a_dataframe_with_any_column_names_becomes_ratings(frame):
    renamed = frame.rename(columns={"user": "Wer", "item": "Was", "rating": "Wie gut"})
    ratings = Ratings.from_dataframe(renamed, user="Wer", item="Was", rating="Wie gut")
    assert len(ratings) == len(frame)


# --- a wide matrix (test_wide.py)


def test_a_wide_matrix_is_refused_and_read_on_request(tmp_path):
    rng = np.random.default_rng(0)
    cells = np.where(rng.random((50, 12)) < 0.6, rng.uniform(-10, 10, (50, 12)).round(2), 99)
    counted = np.column_stack([(cells != 99).sum(axis=1), cells])
    np.savetxt(tmp_path / "jester.csv", counted, delimiter=",", fmt="%.2f")
    train = ("train", "jester.csv", "--rank", "2", "--clients", "4", "--rounds", "2", "--out")
    assert "--wide" in refused(*train, "long", cwd=tmp_path)
    assert not (tmp_path / "long").exists()
    done = fedmc(*train, "run", "--wide", "--missing", "99", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{(cells != 99).sum()} ratings" in done.stderr + done.stdout


# --- errors in place of exceptions (test_refusals.py, test_postgres.py)


@pytest.mark.parametrize("rank", ["2.5", "2000"])
def test_a_rank_out_of_bounds(frame, tmp_path, rank):
    with pytest.raises(FedmcError, match=rank):
        FedMC(**SMALL | {"rank": float(rank) if "." in rank else int(rank)}).fit(frame[["user", "item", "rating"]])
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    assert rank in refused("train", "ratings.csv", "--rank", rank, "--out", "run", cwd=tmp_path)


def test_ids_of_mixed_types(frame):
    mixed = frame.assign(user=[user if user % 2 else f"u{user}" for user in frame["user"]])
    with pytest.raises(FedmcError, match="user"):
        FedMC(**SMALL).fit(mixed[["user", "item", "rating"]])


def test_saving_into_a_missing_folder(fitted, tmp_path):
    with pytest.raises(FedmcError, match="nowhere"):
        fitted.save(str(tmp_path / "nowhere" / "model.npz"))


def test_lists_of_different_lengths_do_not_broadcast(fitted):
    with pytest.raises(FedmcError, match="2"):
        fitted.predict([1, 2], [1])


def test_a_wide_dataframe_gives_a_short_message(frame):
    wide = frame.pivot_table("rating", "user", "item").set_axis(range(80), axis=1)
    wide = pd.concat([wide.add_prefix(f"part {number} ") for number in range(5)], axis=1)
    with pytest.raises(FedmcError) as caught:
        FedMC(**SMALL).fit(wide)
    assert len(str(caught.value)) < 600
