"""Comparisons of methods of events: one harness, the same figures as each method has by itself."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import fedmc
from fedmc.algorithms.ease import check_items
from fedmc.data.feedback import EventOptions
from fedmc.errors import InputError
from fedmc.evaluation import methods, pooled_events, runner, tables
from fedmc.evaluation.harness import NAMES, Parts, ranking_of
from fedmc.evaluation.ranked import ranked
from fedmc.evaluation.study import Case, Study
from fedmc.problem.ranking import CUTOFFS
from fedmc.report import comparison
from tests.command import fedmc as command

USERS, ITEMS, CLIENTS = 60, 30, 4
OF_EVENTS = ["ials", "ease", "fcf", "fedrecon", "pfedrec", "pooled-ials", "alone-ials", "nearest", "popularity"]


def planted_events(seed=0):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    best = np.argsort(-(U @ V.T + 0.3 * rng.normal(size=(USERS, ITEMS))), axis=1)[:, :9]
    return [(f"u{user}", int(item)) for user in range(USERS) for item in best[user]]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("events") / "buys.csv"
    path.write_text("\n".join(["user,item", *(f"{user},{item}" for user, item in planted_events())]) + "\n")
    return path


def study(source, names=OF_EVENTS, **changes):
    cases = tuple(Case(methods.find(name).label, name, {"rank": 3}) for name in names)
    usual = {"seeds": (1,), "clients": CLIENTS, "active": 2, "rounds": 12, "events": EventOptions()}
    return Study("Events", str(source), cases, (), **(usual | changes))


@pytest.fixture(scope="module")
def compared(table, tmp_path_factory):
    folder, plan = tmp_path_factory.mktemp("compared") / "out", study(table)
    return plan, runner.run(plan, folder), folder


def test_every_method_of_events_is_ranked_by_one_harness(compared):
    plan, outcomes, folder = compared
    lines = {line.label: line for line in tables.write(plan, outcomes, folder)}
    assert list(lines) == [methods.find(name).label for name in OF_EVENTS]
    wanted = {f"test_{name}_{K}" for K in CUTOFFS for name in ("ndcg", "recall", "hit_rate", "map", "mrr")}
    for line in lines.values():
        assert line.test_rmse is None
        assert wanted <= line.ranking.keys()
        assert line.ranking["test_popular_ndcg_20"] == pytest.approx(lines["popularity"].ranking["test_ndcg_20"])
    ndcg = {label: line.ranking["test_ndcg_20"] for label, line in lines.items()}
    for better in ("iALS", "EASE", "FCF", "FedRecon", "pooled iALS", "nearest items"):
        assert ndcg[better] > ndcg["popularity"]
    assert ndcg["iALS"] > ndcg["each client alone"]
    assert lines["pooled iALS"].gap == 0
    assert lines["iALS"].gap == pytest.approx(100 * (ndcg["iALS"] / ndcg["pooled iALS"] - 1))


def parts_of(table):
    from fedmc.data import partition, splits
    from fedmc.data.datasets import load_source

    events = load_source(str(table), events=EventOptions())
    return Parts(*splits.parse("random:0.2", events, 1), partition.parse("uniform", events, CLIENTS, 1))


def test_the_figures_are_those_of_a_trained_model(compared, table):
    """iALS of the comparison is that of the estimator: same clients, weights and metrics."""
    parts, (_, outcomes, _) = parts_of(table), compared
    owner = dict(zip(parts.train.users.tolist(), parts.owner.tolist(), strict=True))
    model = fedmc.FedMC(feedback="implicit", rank=3, clients=CLIENTS, active=2, rounds=12, seed=1)
    model.fit(parts.train, clients=owner)
    entries = parts.test.matrix.tocoo()
    found = ranked(model.model_, parts.test.users[entries.row], parts.test.items[entries.col])
    row = next(outcome.rows[-1] for outcome in outcomes if outcome.label == "iALS")
    for K in CUTOFFS:
        for name in ("ndcg", "recall", "hit_rate", "map", "mrr"):
            assert row[f"test_{name}_{K}"] == pytest.approx(getattr(found.model[K], name), rel=1e-9)
        assert row[f"test_popular_ndcg_{K}"] == pytest.approx(found.popularity[K].ndcg, rel=1e-9)


def test_ease_takes_one_round_and_is_exact(compared, table):
    """Its rankings are those of the dense formula."""
    parts, (_, outcomes, _) = parts_of(table), compared
    outcome = next(outcome for outcome in outcomes if outcome.label == "EASE")
    assert [row["round"] for row in outcome.rows] == [0, 1]
    X = (parts.train.matrix.toarray() > 0).astype(float)
    P = np.linalg.inv(X.T @ X + 500 * np.eye(ITEMS))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0)
    scores = np.where(X > 0, -np.inf, X @ B)
    figures = ranking_of(np.argsort(-scores, axis=1, kind="stable")[:, :20].astype(np.int32), parts)
    assert outcome.rows[-1]["test_ndcg_20"] == pytest.approx(figures["test_ndcg_20"], rel=1e-9)


def test_gradient_methods_have_the_weights_of_ials(table):
    parts = parts_of(table)
    events = parts.train.matrix
    weights = pooled_events.defaults_for(USERS, ITEMS, events.nnz).weights
    for name in ("fcf", "fedrecon", "ials"):
        case = Case(name, name, {"rank": 3})
        assert case.kind.suited(case.settings(1, 2), parts).make_algorithm().weights == weights
    given = Case("fcf", "fcf:0.2,0.02", {"rank": 3})
    assert given.kind.suited(given.settings(1, 2), parts).make_algorithm().weights == (0.2, 0.02)


def test_a_method_that_cannot_run_is_told_and_the_others_run(table, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmc.algorithms.ease.MAX_ITEMS", 10)
    with pytest.raises(InputError, match="at most 10 items"):
        check_items(ITEMS)
    plan = study(table, ("ease", "popularity"))
    runner.run(plan, tmp_path / "out")
    page = comparison.write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "EASE was not run: ease takes at most 10 items, got 30" in page
    lines = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [line["method"] for line in lines] == ["EASE", "popularity"]
    assert lines[0]["refused"].startswith("ease takes at most 10 items")
    assert "test_ndcg_20" not in lines[0]
    assert lines[1]["test_ndcg_20"] > 0


def test_events_and_ratings_are_not_mixed(table):
    with pytest.raises(InputError, match="fedavg does not learn from events"):
        study(table, ("ials", "fedavg"))
    with pytest.raises(InputError, match="ials does not learn from ratings"):
        study(table, ("ials", "popularity"), events=None)


def test_the_usual_methods_by_feedback():
    assert methods.usual("implicit") == OF_EVENTS
    assert "ials-blocks" in methods.names("implicit")
    explicit = methods.usual("explicit")
    assert {"fedmc", "pooled", "alone", "biases", "nearest", "popularity"} < set(explicit)
    assert not {"ials", "ease", "pooled-ials"} & set(explicit)


def test_a_study_of_events_survives_its_file(table):
    plan = study(table, events=EventOptions(weights={"view": 1, "buy": 3}, min_rating=2), confidence_scale="log")
    assert Study.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def rows(*values):
    return [{"round": k, "seconds": k, "up": 1e6 * k, "down": 0, "test_ndcg_20": v} for k, v in enumerate(values)]


@pytest.mark.parametrize(("values", "wanted"), [((0.1, 0.199, 0.1, 0.198, 0.21), 3), ((0.1, 0.19), None)])
def test_rounds_to_one_percent_of_a_measure_that_rises(values, wanted):
    plan = study("x", ("ials", "pooled-ials"))
    central = runner.Outcome(
        "pooled iALS", "pooled-ials", 1, "", [{"round": None, "seconds": 1, "test_ndcg_20": 0.2}], None
    )
    line = tables.summary(plan, [runner.Outcome("iALS", "ials", 1, "", rows(*values), None), central])[0]
    assert line.rounds_to_1pc == wanted
    assert line.megabytes_to_1pc == wanted


def test_compare_command_on_events(table, tmp_path):
    words = ["--rank", "3", "--clients", "4", "--active", "2", "--rounds", "6", "--seeds", "1,2"]
    done = command("compare", table, "--feedback", "implicit", *words, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for heading in ("NDCG@10", "NDCG@20", "Recall@10", "HR@20", "MAP@10", "MRR@20", "popularity", "nearest items"):
        assert heading in done.stdout
    assert "RMSE" not in done.stdout
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "has the highest test NDCG@20 of the federated methods" in page
    assert "that of popularity" in page
    assert "Hit rate" not in page
    assert "test NDCG@20 by communication round" in page
    curves = list(csv.DictReader((tmp_path / "out" / "curves.csv").read_text().splitlines()))
    assert set(NAMES) <= set(curves[0])
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {one["method"] for one in found} == {methods.find(name).label for name in OF_EVENTS}
    chosen = command("compare", table, "--methods", "ials:0.2,0.02,popularity", *words, "--out", "b", cwd=tmp_path)
    assert chosen.returncode == 0, chosen.stderr
    assert "iALS 0.2,0.02" in chosen.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "(two columns: user and item): train on them with --feedback implicit"),
        (["--feedback", "implicit", "--methods", "fedavg"], "fedavg does not learn from events: leave it out, or"),
        (["--methods", "ials,fedavg", "--feedback", "implicit"], "fedavg does not learn from events"),
        (["--feedback", "implicit", "--methods", "magic"], "unknown method 'magic'"),
        (["--feedback", "implicit", "--rank", "0"], "rank must be at least 1, got 0"),
        (["--feedback", "implicit", "--penalty", "l2:1"], "--penalty l2:1 is for ratings, not for events: --methods"),
    ],
)
def test_compare_refuses_with_the_cure(words, message, table, tmp_path):
    done = command("compare", table, *words, "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_models_of_ratings_are_ranked_too(tmp_path):
    """Every method of ratings has ranking metrics after its last round, beside those of popularity."""
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    chosen = rng.random((USERS, ITEMS)) < 0.5
    lines = [f"{u},{i},{U[u] @ V[i]:.3f}" for u, i in zip(*np.nonzero(chosen), strict=True)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    words = ["--methods", "fedmc,fedmc-bayes,pooled,alone,biases,popularity,nearest", "--seeds", "1"]
    words += ["--rank", "2", "--clients", "4", "--active", "2", "--rounds", "6", "--out", "out"]
    done = command("compare", "ratings.csv", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {one["method"]: one for one in json.loads((tmp_path / "out" / "summary.json").read_text())}
    assert len(found) == 7
    popular = found["popularity"]["test_ndcg_20"]
    for name, one in found.items():
        assert 0 < one["test_ndcg_20"] <= 1
        assert one["test_popular_ndcg_20"] == pytest.approx(popular)
        assert (one["test_rmse"] is None) == (name in ("popularity", "nearest items"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Ranking</h2>" in page
    assert "that of popularity" in page


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("leave:1000", "'leave:1000' holds out none of 540 ratings or events: a user keeps one"),
        ("random:0", "events are compared by how those held out are ranked: hold some out"),
    ],
)
def test_a_split_that_holds_out_nothing_is_refused(table, tmp_path, test, message):
    with pytest.raises(ValueError, match=message):
        runner.run(study(table, ["popularity"], test=test), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_compare_says_how_events_were_read(tmp_path):
    lines = [f"{u},{i},{('view', 'purchase', 'return')[k % 3]}" for k, (u, i) in enumerate(planted_events())]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item,event", *lines]) + "\n")
    words = ["--methods", "popularity", "--event-weights", "view=1,buy=5", "--clients", "4", "--seeds", "1"]
    done = command("compare", "shop.csv", "--feedback", "implicit", *words, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for note in (
        "events: 180 user-item pairs of 60 users and 29 items (event types view 1, buy 5); confidence 1 each",
        "events: 360 of 540 rows are left out: their type has no weight",
        "events: no row has the event type 'buy', which has a weight",
    ):
        assert note in done.stderr


def test_one_seed_has_no_spread(compared):
    plan, outcomes, _ = compared
    assert {line.spread for line in tables.summary(plan, outcomes)} == {None}
