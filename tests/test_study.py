"""Studies from a file: what a file may say, that nothing depends on kills or processes, and what the tables say."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

import fedmc
from fedmc.data.partition import make_shards
from fedmc.errors import FedmcError, InputError
from fedmc.evaluation import compared, plan_file, runner, studies, tidy, workers
from fedmc.evaluation.outcomes import Outcome, file_names
from fedmc.evaluation.plan_file import plan_of, read_plan
from fedmc.evaluation.studies import Calls, run_plan
from fedmc.evaluation.study import Case, Study
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.command import fedmc as command
from tests.conftest import planted
from tests.test_plugin_package import install

SEEDED = "times.parquet", "times", "lock"  # what differs from run to run, or holds nothing


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ratings.csv"
    entries = planted(users=60, density=0.8).matrix.tocoo()
    lines = [f"{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def content(table, **changes):
    """A small study as a dictionary."""
    return {
        "study": {"name": "A test", "seeds": [1, 2], "clients": 5, "active": 3, "rounds": 4, "iterates": True},
        "data": {"small": {"source": str(table)}},
        "method": {"fast": {"preset": "fast", "penalty_users": ["l2:1", "l2:2"]}, "biases": {}},
        "grid": {"rank": 2},
    } | changes


@pytest.fixture(scope="module")
def one(table, tmp_path_factory):
    """The small study over one process, and what it told."""
    folder, told, clients = tmp_path_factory.mktemp("one") / "out", [], []
    results = fedmc.study(content(table), folder, on_round=told.append, on_client=clients.append)
    return results, told, clients


def files(folder):
    """All final files and their bytes, but times."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(SEEDED) & set(path.relative_to(folder).parts)
    }


FILE = """
[study]
seeds = [1, 2]
clients = 5
active = 3
rounds = {rounds}
iterates = true

[data.small]
source = "ratings.csv"

[method.fast]
preset = "fast"
penalty_users = ["l2:1", "l2:2"]

[method.paper]
preset = "paper"
beta = [0.3, 1.0]

[method.pooled]

[grid]
rank = [2, 3]
"""


# Resume


def start(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "fedmc", "study", "a.toml", *words], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def kill_and_resume(folder, seed, most):
    """Kill the study at random moments, then let it end; how often it was killed."""
    drawn, kills = random.Random(seed), 0
    for _ in range(most):
        process = start(folder, "--jobs", str(drawn.choice((1, 2))), "--out", f"killed-{seed}")
        try:
            assert process.wait(drawn.uniform(1.0, 3.0)) == 0
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert start(folder, "--jobs", "2", "--out", f"killed-{seed}").wait(200) == 0
    return kills


def whole_study(table, folder, rounds):
    (folder / "ratings.csv").write_text(table.read_text())
    (folder / "a.toml").write_text(FILE.format(rounds=rounds))
    assert start(folder, "--out", "whole").wait(200) == 0
    assert len([name for name in files(folder / "whole") if "/iterates/" in name]) == 16
    return folder


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    return whole_study(table, tmp_path_factory.mktemp("whole"), rounds=60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_random_moments_it_ends_with_the_same_files(whole, seed):
    assert kill_and_resume(whole, seed, most=1) > 0
    assert files(whole / f"killed-{seed}") == files(whole / "whole")


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_killed_often(table, tmp_path):
    folder = whole_study(table, tmp_path, rounds=400)
    kills = [kill_and_resume(folder, seed, most=12) for seed in range(20)]
    assert sum(kills) > 40
    for seed in range(20):
        assert files(folder / f"killed-{seed}") == files(folder / "whole")


def test_nothing_depends_on_processes(table, one, tmp_path):
    two = fedmc.study(content(table), tmp_path / "two", jobs=2)
    assert files(one[0].folder) == files(tmp_path / "two")
    assert one[0].rows == two.rows


def test_what_is_there_is_kept(table, one, tmp_path):
    folder, told = shutil.copytree(one[0].folder, tmp_path / "out"), []
    (folder / "small" / "outcomes" / "biases-2.json.part").write_text("{")  # of a killed process
    (folder / "ratings-old").mkdir()
    fedmc.study(content(table), folder, on_round=told.append)
    assert told == []
    assert files(folder) == files(one[0].folder)
    (folder / "small" / "iterates" / "fast-penalty-users-l2-1-2.npz").unlink()
    fedmc.study(content(table), folder, on_round=told.append)
    assert {(call["case"], call["seed"]) for call in told} == {("fast, penalty_users=l2:1", 2)}
    assert files(folder) == files(one[0].folder)
    assert not list(folder.glob("ratings-*"))


@pytest.mark.slow
def test_a_study_gains_methods_and_seeds_but_is_not_changed(table, one, tmp_path):
    folder, plan, told = shutil.copytree(one[0].folder, tmp_path / "out"), content(table), []
    larger = content(table, study=plan["study"] | {"seeds": [1, 2, 3]}, method=plan["method"] | {"fedavg": {}})
    fedmc.study(larger, folder, jobs=2, on_round=told.append)
    assert {(call["case"], call["seed"]) for call in told} == {
        *((f"fast, penalty_users=l2:{k}", 3) for k in (1, 2)), *(("fedavg", seed) for seed in (1, 2, 3))
    }  # fmt: skip
    fedmc.study(larger, tmp_path / "whole", jobs=2)
    assert files(folder) == files(tmp_path / "whole")
    for other in (content(table, study=plan["study"] | {"rounds": 5}), plan):
        with pytest.raises(InputError, match="holds another comparison"):
            fedmc.study(other, folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and holds no study"):
        fedmc.study(plan, tmp_path / "mine")


def test_two_commands_in_one_folder(table, tmp_path):
    with studies._locked(tmp_path / "out"), pytest.raises(InputError, match="another process runs the study"):
        fedmc.study(content(table), tmp_path / "out")


# Workers


def mortal(monkeypatch, label, seed, deaths):
    """Workers that are killed when they get this case, so many times."""
    died = []

    class Mortal(workers._Worker):
        def give(self, task):
            if (task.case.label, task.seed) == (label, seed) and len(died) < deaths:
                self.process.kill()
                self.process.join()  # a fast case would end first
                died.append(task.name)
            super().give(task)

    monkeypatch.setattr(workers, "_Worker", Mortal)
    return died


def test_a_worker_that_dies_is_replaced_once(table, one, tmp_path, monkeypatch):
    died, told = mortal(monkeypatch, "biases", 1, 1), []
    run_plan(
        plan_of(content(table)), tmp_path / "out", 1, Calls(on_death=lambda task, how: told.append((task.name, how)))
    )
    assert died == ["small, biases, seed 1"]
    assert told == [("small, biases, seed 1", "its process ended with code -9")]
    fedmc.study(content(table), tmp_path / "out")
    assert files(tmp_path / "out") == files(one[0].folder)


def test_a_case_that_ends_two_workers_is_named(table, tmp_path, monkeypatch):
    mortal(monkeypatch, "fast, penalty_users=l2:1", 2, 9)
    with pytest.raises(FedmcError, match=r"small, fast, .*, seed 2: its process ended with code -9, 2 times"):
        fedmc.study(content(table), tmp_path / "out")
    assert len(list((tmp_path / "out" / "small" / "outcomes").glob("*-1.json"))) == 3


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(table, tmp_path):
    (tmp_path / "ratings.csv").write_text(table.read_text())
    (tmp_path / "a.toml").write_text(FILE.format(rounds=100_000).replace("iterates = true", ""))
    process = start(tmp_path, "--out", "out")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    found: set[str] = set()
    while len(found) < 2:  # the worker, and the tracker of resources that Python starts with it
        assert time.monotonic() < deadline
        found = set(children.read_text().split()) if children.exists() else set()
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(alive(pid) for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


# What a study may hold


@pytest.mark.slow
def test_plug_ins_privacy_modes_objectives_and_callbacks(table, tmp_path, monkeypatch):
    folder = install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "ratings.csv").write_text(table.read_text())
    text = """
[study]
seeds = [1]
clients = 5
active = 3
rounds = 3
[data.small]
source = "ratings.csv"
[grid]
rank = 2
[method.fast]
preset = "fast"
penalty_users = "l2:1"
[method.own]
algorithm = "momentum"
loss = "pseudo-huber:0.5"
[method.hidden]
preset = "fast"
privacy = ["secagg", "dp", "dp+secagg"]
min_cohort = 3
active = 5
dp_rounds = 3
[method.all]
preset = "fast"
active = 5
[method.many]
preset = "fast"
privacy = "secagg"
min_cohort = 5
[method.differ]
preset = "fast"
penalty_users = "l2:1"
[method.differ.objectives.0]
penalty_users = "box:-0.01,0.01"
[method.differ.objectives.4]
penalty_users = "l2:50"
"""
    (tmp_path / "a.toml").write_text(text)
    assert start(tmp_path, "--out", "out").wait(200) == 0
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    ends = {(row["case"], row["seed"]): row for row in rows if row["round"] in (None, 3)}
    assert {row["set_privacy"] for row in rows} == {None, "secagg", "dp", "dp+secagg"}
    assert ends["own", 1]["test_rmse"] > 0
    assert ends["own", 1]["method"] == "momentum"
    assert abs(ends["differ", 1]["objective"] / ends["fast", 1]["objective"] - 1) > 0.01
    masked = ends["hidden, privacy=secagg", 1]["test_rmse"]
    assert masked == pytest.approx(ends["all", 1]["test_rmse"], rel=1e-4)
    assert ends["hidden, privacy=dp", 1]["test_rmse"] != ends["hidden, privacy=dp+secagg", 1]["test_rmse"]
    assert "5 clients" in ends["many", 1]["refused"]
    told = (tmp_path / "out" / "tables.md").read_text()
    assert "many was not run: 5 clients" in told


def test_rounds_and_clients_are_told_as_numbers(one):
    _, told_rounds, clients = one
    assert {call["case"] for call in told_rounds} == {"fast, penalty_users=l2:1", "fast, penalty_users=l2:2"}
    assert [call["round"] for call in told_rounds[:5]] == [0, 1, 2, 3, 4]
    json.dumps(told_rounds)  # nothing but plain values
    assert all(isinstance(value, str | int | float) for record in clients for value in record.values())
    for round in told_rounds:
        place = [round[name] for name in ("case", "seed", "round")]
        told = [call["client"] for call in clients if [call[name] for name in ("case", "seed", "round")] == place]
        assert told == round["participants"]
    assert all(0 < call["train_rmse"] < 5 and call["ratings"] > call["users"] > 0 for call in clients)


def test_every_iterate(table, one):
    kept = np.load(one[0].folder / "small" / "iterates" / "fast-penalty-users-l2-1-1.npz")
    assert kept["rounds"].tolist() == [0, 1, 2, 3, 4]
    plan = plan_of(content(table)).parts[0].study
    ratings = runner.table_of(plan)
    parts = runner.parts_of(plan, ratings, 1)
    engine = LocalEngine(make_shards(parts.train, parts.owner, "float64", parts.test))
    run = rounds(engine, plan.cases[0].settings(1, 3), last=4)
    np.testing.assert_array_equal(kept["V"], [round.V for round in itertools.islice(run, 5)])


def test_grids_of_budgets_and_several_data_sets(table, tmp_path):
    plan = plan_of(
        content(table, data={"a": {"source": str(table)}, "b": {"source": "demo", "clients": 7}})
        | {"grid": {"rank": [2, 3], "clients": [4, 5], "active": 2}}
    )
    studies = {part.name: (part.study.clients, part.study.active) for part in plan.parts}
    assert studies == {"a, clients=4": (4, 2), "a, clients=5": (5, 2), "b": (7, 2)}
    assert [case.label for case in plan.parts[0].study.cases] == [
        *(f"fast, penalty_users=l2:{k}, rank={r}" for k in (1, 2) for r in (2, 3)), "biases, rank=2", "biases, rank=3"
    ]  # fmt: skip
    assert plan.runs == 3 * 6 * 2


def test_an_own_entry_counts_before_the_grid(table):
    plan = plan_of(content(table, grid={"rank": [2, 3], "penalty_users": "l2:7"}))
    found = {case.label: case.options for case in plan.parts[0].study.cases}
    assert found["fast, penalty_users=l2:1, rank=2"]["penalty_users"] == "l2:1"
    assert "penalty_users" not in found["biases, rank=2"]


def test_events_and_ratings_in_one_file(table):
    events = {"source": str(table), "feedback": "implicit", "min_rating": 0.5}
    methods = {"ials": {"rank": 2}, "fast": {"preset": "fast"}, "popularity": {}}
    plan = plan_of(content(table, data={"r": {"source": str(table)}, "e": events}, method=methods, grid={}))
    cases = {part.name: [case.label for case in part.study.cases] for part in plan.parts}
    assert cases == {"r": ["fast", "popularity"], "e": ["ials", "popularity"]}
    assert [plan.measures_of(part.study)[0] for part in plan.parts] == ["test_rmse", "test_ndcg_20"]


WRONG = [
    ("study", {"sedes": [1]}, r"\[study\]: 'sedes' is not an entry of it: did you mean seeds\?"),
    ("study", {"seeds": []}, r"\[study\]: seeds must be whole numbers of at least 0, such as \[1, 2, 3\], got \[\]"),
    ("study", {"seeds": [1, 1]}, r"\[study\]: each seed counts once"),
    ("study", {"clients": "many"}, r"\[study\]: clients must be a whole number, got 'many'"),
    ("study", {"rounds": True}, r"\[study\]: rounds must be a whole number, got True"),
    ("study", {"rounds": 0}, r"\[data.small\]: rounds must be at least 1, got 0"),
    ("study", {"measures": ["speed"]}, r"\[study\]: measures must be some of objective, .* got \['speed'\]"),
    ("data", {"small": {}}, r"\[data.small\]: source is missing"),
    ("data", {"small": {"source": "demo", "min_rating": 4}}, r"\[data.small\]: min_rating needs feedback = 'implicit'"),
    ("data", {"small": {"source": "demo", "feedback": "implicit"}}, r"\[data.small\]: no method learns from implicit"),
    ("data", {"small": 3}, r"\[data.small\] must be a section, got 3"),
    ("method", {"fast": {"preset": "fast", "rnak": 3}}, r"\[method.fast\]: 'rnak' .* did you mean rank\?"),
    ("method", {"fast": {"preset": "fast", "rank": []}}, r"\[method.fast\]: rank is an empty list: give at least one"),
    ("method", {"fast": {"preset": "fast", "rank": "5"}}, r"\[method.fast\]: rank must be a whole number .* got '5'"),
    ("method", {"fast": {"preset": "fast", "rank": [2, 2]}}, r"\[method.fast\]: rank has a value twice"),
    ("method", {"fast": {"preset": "quick"}}, r"\[method.fast\]: unknown preset 'quick': choose one of"),
    ("method", {"mine": {"rank": 5}}, r"\[method.mine\]: nothing says which method this is: add method, algorithm or"),
    ("method", {"pooled": {"beta": 0.3}}, r"\[method.pooled\]: beta has no effect on pooled, which takes rank and"),
    ("method", {"b": {"preset": "bayes", "beta": 1.0}}, r"\[method.b\]: preset='bayes' has not all of the settings"),
    ("method", {"fast": {"objectives": {"0": {"penalty": "l2:1"}}}}, r"\[method.fast.objectives.0\]: 'penalty' is not"),
    (
        "method",
        {"fast": {"preset": "fast", "objectives": {"0": {"loss": "cube"}}}},
        r"objectives.0: unknown loss 'cube'",
    ),
    ("grid", {"rank": []}, r"\[grid\]: rank is an empty list"),
    ("grid", {"sparsity": [1]}, r"\[grid\]: 'sparsity' is not an entry of it"),
    ("grid", {"beta": [1.0, 2.0]}, r"\[grid\]: no method uses beta: leave it out"),
    ("grid", {"rank": [2], "clients": [2, "x"]}, r"\[grid\]: clients must be a whole number, got 'x'"),
    ("grids", {}, "the file: 'grids' is not an entry of it: did you mean grid?"),
]


@pytest.mark.parametrize(("section", "entries", "words"), WRONG, ids=[words[:40] for _, _, words in WRONG])
def test_what_a_file_may_not_say(section, entries, words, table):
    given = content(table)
    whole = section in ("data", "method", "grid", "grids")
    with pytest.raises(InputError, match=words):
        plan_of(given | {section: entries if whole else given[section] | entries})


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "a.toml"
    with pytest.raises(InputError, match=r"a.toml cannot be read: No such file"):
        read_plan(path)
    path.write_text("[study]\nseeds = [1,\n[data]\n")
    with pytest.raises(InputError, match=r"a.toml is not TOML: .*line 3"):
        read_plan(path)
    path.write_text("[study]\nrounds = 3.5\n")
    failed = command("study", path, cwd=tmp_path)
    assert failed.returncode == 2
    assert f"{path}, [study]: rounds must be a whole number, got 3.5" in failed.stderr
    assert not (tmp_path / "studies").exists()


def test_a_dry_run_lists_the_runs(table, tmp_path):
    (tmp_path / "ratings.csv").write_text(table.read_text())
    (tmp_path / "a.toml").write_text(FILE.format(rounds=3))
    done = command("study", "a.toml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a: 20 runs" in done.stdout
    assert not (tmp_path / "studies").exists()


def test_a_partition_that_cannot_be_leaves_no_outcomes(table, tmp_path):
    with pytest.raises(InputError, match="data set small: unknown partition 'odd'"):
        fedmc.study(content(table, study=content(table)["study"] | {"partition": "odd"}), tmp_path / "out")
    assert not (tmp_path / "out" / "small").exists()
    given = content(table, method={"fast": {"preset": "fast", "objectives": {"9": {"penalty_users": "l2:1"}}}})
    with pytest.raises(InputError, match="data set small: unknown client '9': choose one of 0, 1, 2, 3, 4"):
        fedmc.study(given, tmp_path / "out")


# Tables


def outcomes_of(values, measure="test_rmse"):
    """A study and its outcomes with these values by label, one for each seed."""
    seeds = tuple(range(1, 1 + max(map(len, values.values()))))
    study = Study("A", "x", tuple(Case(label, "fedmc") for label in values), (), seeds)
    found = [
        Outcome(label, "fedmc", seed, "", [{"round": 1, measure: value, "up": 1, "down": 1}], None)
        for label, row in values.items()
        for seed, value in zip(seeds, row, strict=False)
    ]
    return study, found


def test_means_spreads_and_tests_by_hand():
    study, found = outcomes_of({"a": [1.0, 2.0, 3.0, 4.0], "b": [1.1, 2.3, 3.2, 4.6], "c": [3.0, 3.5, 5.0, 6.5]})
    table = compared.compared(study, found, ("test_rmse",))
    (a,), (b,), (c,) = (table.rows[label] for label in "abc")
    assert (a.mean, a.best, a.p) == (2.5, True, None)
    assert a.spread == pytest.approx((5 / 3) ** 0.5)
    # b - a = 0.1, 0.3, 0.2, 0.6: mean 0.3, sd sqrt(0.14 / 3), t = 0.3 / (sd / 2) = 2.777; c - a: mean 2, t = 9.798
    raw = {"b": 2 * stats.t.sf(0.3 / ((0.14 / 3) ** 0.5 / 2), 3), "c": 2 * stats.t.sf(2 / ((0.5 / 3) ** 0.5 / 2), 3)}
    assert raw["b"] == pytest.approx(0.0692, abs=1e-4)
    assert raw["c"] == pytest.approx(0.0023, abs=1e-4)
    assert c.p == pytest.approx(2 * raw["c"])  # Holm: the smallest of two is doubled, the other stays
    assert b.p == pytest.approx(raw["b"])
    assert not a.bold
    study, found = outcomes_of({"a": [1.0, 2.0, 3.0, 4.0], "c": [3.0, 3.5, 5.0, 6.5]})
    rows = compared.compared(study, found, ("test_rmse",)).rows
    assert rows["a"][0].bold
    assert rows["c"][0].p == pytest.approx(raw["c"])


def test_of_a_rank_metric_more_is_better():
    study, found = outcomes_of({"a": [0.1, 0.2], "b": [0.3, 0.5]}, "test_ndcg_20")
    rows = compared.compared(study, found, ("test_ndcg_20",)).rows
    assert rows["b"][0].best
    assert not rows["b"][0].bold  # t = 5 with one degree of freedom: p = 0.126
    assert rows["a"][0].p == pytest.approx(0.1257, abs=1e-4)


def test_no_test_without_a_spread_and_no_bold_without_a_test():
    for values in ({"a": [1.0], "b": [2.0]}, {"a": [1.0, 2.0], "b": [2.0, 3.0]}):
        study, found = outcomes_of(values)
        rows = compared.compared(study, found, ("test_rmse",)).rows
        assert rows["a"][0].best
        assert not rows["a"][0].bold
        assert rows["b"][0].p is None
    study, found = outcomes_of({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    assert compared.compared(study, found, ("test_rmse",)).rows["b"][0].p == 1.0


def test_a_run_that_failed_has_no_mean():
    study, found = outcomes_of({"a": [1.0, 2.0], "b": [0.5, 0.5]})
    table = compared.compared(study, [*found[:3], found[3]._replace(diverged="too large")], ("test_rmse",))
    assert table.rows["b"][0].mean is None
    assert table.notes == ("b diverged with the seeds 2.",)
    assert "| b      | –" in compared.markdown("x", table)


def test_holms_correction():
    assert compared.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert compared.holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_markdown_and_latex():
    study, found = outcomes_of({"l2_a": [1.0, 2.0, 3.0, 4.0], "c|d": [3.0, 3.5, 5.0, 6.5]})
    table = compared.compared(study, found, ("test_rmse",))
    text = compared.markdown("Data", table)
    assert "## Data (n = 4 seeds)" in text
    assert "| l2_a   | **2.5000 ± 1.2910** | best   |" in text
    assert "| c\\|d   | 4.5000 ± 1.5811     | 0.0023 |" in text
    tex = compared.latex("Data & more", table)
    assert "l2\\_a & \\textbf{2.5000 $\\pm$ 1.2910} & best \\\\" in tex
    assert "\\caption{Data \\& more ($n = 4$ seeds)." in tex
    assert tex.count("{") == tex.count("}")


def test_headings():
    assert compared.heading("test_ndcg_20") == "test NDCG@20"
    assert compared.heading("test_rmse") == "test RMSE"
    assert compared.heading("objective") == "objective"


def test_columns_keep_types_and_gaps():
    assert tidy.column([1, None, 2.5]).tolist() == [1.0, None, 2.5]
    assert tidy.column(["auto", 0.3]).tolist() == ["auto", "0.3"]
    assert tidy.column([True, None]).tolist() == [True, None]


def test_labels_that_would_share_a_file_do_not():
    names = file_names(["x=1", "x=-1", "y", "z" * 300])
    assert names["y"] == "y"
    assert len(set(names.values())) == 4
    assert max(map(len, names.values())) < 120


def test_results_are_tidy(one):
    results, _, _ = one
    folder = results.folder
    rows = pq.read_table(folder / "results.parquet").to_pylist()
    assert len(rows) == 2 * 2 * 5 + 2
    assert {name: values[0] for name, values in results.rows.items()} == rows[0]
    row = rows[4]
    assert (row["data"], row["case"], row["method"], row["seed"]) == ("small", "fast, penalty_users=l2:1", "fedmc", 1)
    assert (row["clients"], row["set_penalty_users"], row["set_rank"], row["round"]) == (5, "l2:1", 2, 4)
    stored = json.loads((folder / "small" / "outcomes" / "fast-penalty-users-l2-1-1.json").read_text())
    assert row["test_rmse"] == stored["rows"][4]["test_rmse"]
    times = pq.read_table(folder / "times.parquet").to_pylist()
    assert [t["round"] for t in times] == [r["round"] for r in rows]
    assert all(t["seconds"] > 0 for t in times)


# The documentation

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "study.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.mark.slow
def test_the_documented_examples_run(tmp_path):
    (tmp_path / "ranks.toml").write_text(block("toml"))
    done = command("study", "ranks.toml", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "studies" / "ranks"
    rows = pq.read_table(folder / "results.parquet").to_pylist()
    assert {row["set_rank"] for row in rows} == {5, 10}
    assert len({(row["case"], row["seed"]) for row in rows}) == 6 * 3
    (tmp_path / "two.py").write_text(block("python"))
    done = subprocess.run([sys.executable, "two.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"fast, rank=\d+: 0\.\d{4}, worst client and round \d\.\d{4}", done.stdout)) == 2


def test_the_page_names_every_entry_of_a_file():
    named = set(re.findall(r"`([a-z_]+)", PAGE))
    entries = {"name", "seeds", "measures", "iterates", "label", "method", "algorithm", "preset", *plan_file.SOURCE}
    assert entries - named == set()
