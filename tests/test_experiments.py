"""Comparisons: the same for everybody, resumable, reproducible."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmc.errors import InputError
from fedmc.evaluation import methods, runner, tables
from fedmc.evaluation.methods import CENTRAL
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.paper import EXPERIMENTS, rank_for
from fedmc.evaluation.study import Case, Figure, Panel, Study
from fedmc.report import comparison, figures
from tests.command import fedmc
from tests.conftest import planted

FEDMC = str(Path(sys.executable).parent / "fedmc")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ratings.csv"
    entries = planted(users=120, density=0.8).matrix.tocoo()
    lines = [f"{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def study(source, methods=("fedmc", "fedmavg", "pooled", "alone"), **changes):
    cases = tuple(Case(name, name, {"rank": 2, "penalty_users": "l2:0.5"}) for name in methods)
    drawn = (Figure("curves", "Curves", (Panel("objective", "round"), Panel("test_rmse", "megabytes"))),)
    return Study(
        "A test", str(source), cases, drawn, **({"seeds": (1, 2), "clients": 4, "active": 2, "rounds": 6} | changes)
    )


def test_every_method_runs_under_one_plan(table, tmp_path):
    plan = study(table, methods.names("explicit"), seeds=(1,))
    lines = tables.write(plan, runner.run(plan, tmp_path / "out"), tmp_path / "out")
    assert [line.method for line in lines] == methods.names("explicit")
    by_name = {line.method: line for line in lines}
    assert by_name["pooled"].gap == 0
    assert by_name["fedmc"].test_rmse < by_name["alone"].test_rmse
    assert all(line.diverged == 0 for line in lines)
    outcomes = runner.load(tmp_path / "out")[1]
    for outcome in outcomes:
        assert [row["round"] for row in outcome.rows] == ([None] if outcome.method in CENTRAL else list(range(7)))


def test_the_same_plan_gives_the_same_csv(table, tmp_path):
    for name in ("a", "b"):
        tables.write(study(table), runner.run(study(table), tmp_path / name), tmp_path / name)
    for file in ("curves.csv", "summary.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    rows = list(csv.DictReader((tmp_path / "a" / "curves.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * 7 + 2 * 2
    assert "seconds" not in rows[0]


def test_what_is_there_is_not_run_again_unless_the_data_changed(table, tmp_path):
    copy = tmp_path / "ratings.csv"
    copy.write_text(table.read_text())
    plan, told = study(copy), []
    runner.run(plan, tmp_path / "out", on_round=told.append)
    assert told
    told.clear()
    runner.run(plan, tmp_path / "out", on_round=told.append)
    assert not told
    copy.write_text("\n".join(copy.read_text().splitlines()[:-1]))
    runner.run(plan, tmp_path / "out", on_round=told.append)
    assert told


def test_another_plan_or_another_folder_is_refused(table, tmp_path):
    runner.run(study(table, ("biases",)), tmp_path / "out")
    with pytest.raises(InputError, match="holds another comparison"):
        runner.run(study(table, ("biases",), rounds=7), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and not a comparison"):
        runner.run(study(table, ("biases",)), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(InputError, match="not a comparison"):
        runner.load(tmp_path / "mine")


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_numbers(table, tmp_path):
    options = [FEDMC, "compare", table, "--methods", "fedmc,fedmc-exact,scaffold,pooled", "--seeds", "1,2"]
    options += ["--rank", "2", "--clients", "6", "--active", "2", "--rounds", "120"]
    command = [*map(str, options), "--out"]
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = subprocess.Popen([*command, str(tmp_path / "killed")], **quiet)
    outcomes = tmp_path / "killed" / "outcomes"
    deadline = time.monotonic() + 120
    while not list(outcomes.glob("*.json")):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in outcomes.glob("*.json")}
    assert 0 < len(finished) < 8
    for place in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / place)], check=True, timeout=200, **quiet)
    for name, stamp in finished.items():
        assert (outcomes / name).stat().st_mtime_ns == stamp
    for file in ("curves.csv", "summary.csv"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert (tmp_path / "killed" / "report.html").stat().st_size > 10_000


def rows(*errors):
    return [{"round": k, "seconds": k, "up": 1e6 * k, "down": 1e6 * k, "test_rmse": e} for k, e in enumerate(errors)]


def test_rounds_to_one_percent_count_from_where_it_stays_there():
    plan = study("x", ("fedmc", "pooled"), seeds=(1,))
    central = Outcome("pooled", "pooled", 1, "", [{"round": None, "seconds": 1.0, "test_rmse": 1.0}], None)
    for errors, wanted in (((2, 1.005, 1.5, 1.01, 1.0), 3), ((2, 1.1, 1.02), None), ((1.0, 1.0), 0)):
        line = tables.summary(plan, [Outcome("fedmc", "fedmc", 1, "", rows(*errors), None), central])[0]
        assert line.rounds_to_1pc == wanted
        assert line.megabytes_to_1pc == (None if wanted is None else 2 * wanted)
        assert line.gap == pytest.approx(100 * (errors[-1] - 1))


def test_a_plan_survives_its_file(table):
    plan = study(table)
    assert Study.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_experiments_have_their_curves(name):
    plan = EXPERIMENTS[name]("demo", 5, 0.3)
    settings = {case.label: case.settings(1, 10) for case in plan.cases if case.kind.central is None}
    labels = set(settings)
    assert (plan.clients, plan.active, plan.rounds) == (100, 10, 100)
    if name == "convergence":
        assert {"FedMC-ADMM, beta = 0.3", "FedMC-ADMM, beta = 3", "FedMAvg", "FedMAvg, steps as printed"} < labels
        assert (
            {s.penalty_users for s in settings.values()} == {s.penalty_items for s in settings.values()} == {"l2:1e-06"}
        )
        assert {s.inner_steps for s in settings.values()} == {10}
        assert {s.start for s in settings.values()} == {"uniform"}
        assert len({s.beta for s in settings.values()}) == 5
    if name == "inner-steps":
        assert {s.inner_steps for s in settings.values()} == {5, 10, 15, 20, 25, 30}
        assert {s.passes for s in settings.values()} == {True, False}
    if name == "sparsity":
        assert [s.penalty_users for s in settings.values()] == [f"l1:{10.0**k}" for k in range(-6, 0)]
        for s in settings.values():
            users, items = s.penalties(1)
            assert items.l1 == pytest.approx(10 * users.l1 * 0.3)
        assert {panel.y for panel in plan.figures[0].panels} == {"objective", "test_rmse", "nonzeros"}
    for figure in plan.figures:
        for panel in figure.panels:
            assert set(panel.labels) <= {case.label for case in plan.cases}


def test_ranks_of_the_paper():
    assert [rank_for(name) for name in ("ml-1m/ratings.dat", "ml-10m", "netflix", "demo")] == [5, 8, 13, 5]


def test_passes_and_gram_give_the_same_curves(table, tmp_path):
    plan = EXPERIMENTS["inner-steps"](str(table), 2, 0.3, seeds=(1,), clients=4, active=2, rounds=5)
    by_label = {outcome.label: outcome for outcome in runner.run(plan, tmp_path / "out")}
    for N in (5, 30):
        ends = [by_label[label].rows[-1]["objective"] for label in (f"N = {N}", f"N = {N}, Gram")]
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_figures_and_report_of_a_half_finished_comparison(table, tmp_path):
    plan = study(table)
    outcomes = runner.run(plan, tmp_path / "out")
    (tmp_path / "out" / "outcomes" / "alone-2.json").unlink()
    page = comparison.write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "Not finished: 1 of 8 runs" in page
    assert page.count("<svg") == 2
    for ending in ("png", "pdf", "svg"):
        assert (tmp_path / "out" / "figures" / f"curves.{ending}").stat().st_size > 1000
    first, second = (figures.panels(plan.figures[0], outcomes) for _ in range(2))
    assert first == second
    assert "http" not in "".join(first).replace("http://www.w3.org", "")


def test_a_start_far_above_the_ends_is_shown_and_the_ends_are_magnified():
    panel = Panel("test_rmse", "round")
    outcomes = [Outcome(str(k), "fedmc", 1, "", rows(9.0, 1.2, 1.0 + k / 10), None) for k in (0, 1)]
    (place,) = figures.draw(Figure("x", "X", (panel,)), outcomes).axes
    assert place.get_ylim()[1] > 9.0
    (inset,) = place.child_axes
    low, high = inset.get_ylim()
    assert low < 1.0 < 1.1 < high < 2
    assert len(inset.get_lines()) == len(place.get_lines()) == 2


def test_ends_that_can_be_told_apart_are_not_magnified():
    outcomes = [Outcome(str(k), "fedmc", 1, "", rows(1.4, 1.2, 1.0 + k / 4), None) for k in (0, 1)]
    assert not figures.draw(Figure("x", "X", (Panel("test_rmse", "round"),)), outcomes).axes[0].child_axes


def test_a_saved_figure_says_what_was_run_on_which_data(table, tmp_path):
    runner.run(study(table, ("biases",)), tmp_path)
    comparison.write_report(tmp_path)
    drawn = (tmp_path / "figures" / "curves.svg").read_text()
    assert "A test" in drawn
    assert "4 clients, 2 a round; mean and range of 2 seeds" in drawn


def test_an_older_comparison_is_gone_on_with(table, tmp_path):
    """Its study.json has no columns, query and duplicates; its outcomes are still this study's."""
    runner.run(study(table, ("biases",)), tmp_path)
    path = tmp_path / "study.json"
    old = json.loads(path.read_text())
    for name in ("columns", "query", "duplicates"):
        del old[name]
    path.write_text(json.dumps(old))
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "outcomes").iterdir()}
    runner.run(study(table, ("biases",)), tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "outcomes").iterdir()} == stamps
    assert runner.load(tmp_path)[0] == study(table, ("biases",))


def test_compare_reads_what_train_reads(table, tmp_path):
    """Columns by name, pairs that come twice, a query: the same outcomes as of the plain table."""
    lines = table.read_text().splitlines()
    turned = [",".join(reversed(line.split(","))) for line in lines]
    (tmp_path / "other.csv").write_text("\n".join(["score,film,who", *turned]))
    (tmp_path / "twice.csv").write_text("\n".join(["user,item,rating", lines[0].rpartition(",")[0] + ",9", *lines]))
    words = ["--methods", "biases", "--seeds", "1", "--clients", "4", "--active", "2", "--rank", "2"]
    done = fedmc("compare", "other.csv", *words, "--columns", "who,film,score", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = fedmc("compare", "twice.csv", *words, "--out", "b", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--duplicates last" in refused.stderr
    done = fedmc("compare", "twice.csv", *words, "--duplicates", "last", "--out", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    fedmc("compare", table, *words, "--out", "c", cwd=tmp_path)
    errors = {place: runner.load(tmp_path / place)[1][0].rows[-1]["test_rmse"] for place in "abc"}
    assert errors["a"] == errors["b"] == errors["c"]
    assert runner.load(tmp_path / "a")[0].columns == ("who", "film", "score")
    failed = fedmc("compare", "other.csv", *words, "--query", "select 1", "--out", "d", cwd=tmp_path)
    assert "a query goes with a database" in failed.stderr


def test_a_password_is_not_written(tmp_path):
    made = study("postgresql://me:secret@host/db", ("biases",), query="select 1")
    assert "secret" not in json.dumps(made.to_dict())


@pytest.mark.slow
def test_reproduce_and_report_commands(table, tmp_path):
    def run(*words):
        return fedmc(*words, cwd=tmp_path)

    options = ["--data", table, "--rank", "2", "--rounds", "4", "--clients", "4", "--active", "2", "--seeds", "1"]
    done = run("reproduce", "sparsity", *options, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "figures" / "sparsity.pdf").exists()
    assert "lambda = 1e-01" in (tmp_path / "out" / "summary.csv").read_text()
    again = run("report", "out")
    assert again.stdout.strip().endswith("report.html")
    for words, message in (
        (("reproduce", "everything"), "'everything' is not one of"),
        (("compare", table, "--methods", "fedmc,magic"), "unknown method 'magic'"),
        (("compare", table, "--seeds", "1,x"), "--seeds takes whole numbers"),
        (("report", tmp_path), "not a run folder"),
    ):
        failed = run(*words)
        assert failed.returncode == 2
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_made_up_ratings_by_name():
    from fedmc.data.datasets import load_source

    ratings = load_source("like:ml-1m")
    assert (len(ratings.users), len(ratings.items), len(ratings)) == (6_040, 3_706, 1_000_209)
    with pytest.raises(InputError, match="unknown set 'ml-2m'"):
        load_source("like:ml-2m")


def test_without_held_out_ratings_there_is_no_error_and_no_nan(table, tmp_path):
    plan = study(table, test="random:0")
    lines = tables.write(plan, runner.run(plan, tmp_path / "out"), tmp_path / "out")
    assert all(line.test_rmse is line.gap is line.spread is None and not line.ranking for line in lines)
    assert lines[0].objective is not None
    assert "NaN" not in (tmp_path / "out" / "summary.json").read_text()
    said = comparison.describe(plan, runner.load(tmp_path / "out")[1], lines)
    assert said == ["There is no test RMSE: hold something out (--test)."]
