"""`fedmc reproduce`: the published code's choices, prepared shards as a source, CPU time, the tables' own measures."""

from __future__ import annotations

import csv
import itertools
import json

import numpy as np
import pytest

from fedmc.algorithms.settings import Settings
from fedmc.cli import compare
from fedmc.data.catalogue import Catalogue
from fedmc.data.partition import assign_users
from fedmc.data.prepared import open_prepared, writing
from fedmc.data.prepared_table import table_of
from fedmc.data.synthetic import Recipe, make_ratings, write_shards
from fedmc.errors import DataError, InputError
from fedmc.evaluation import runner, tables
from fedmc.evaluation.copies import objective_at_copies
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.paper import EXPERIMENTS
from fedmc.evaluation.study import Case, Figure, Panel, Study
from fedmc.report import comparison
from fedmc.training.rounds import rounds
from tests.command import fedmc
from tests.conftest import local_engine, planted

SMALL = {"seeds": (1,), "clients": 4, "active": 2, "rounds": 3}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder of four prepared shards, a quarter of each held out."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    write_shards(Recipe(60, 30, 700, rank=2, seed=3), folder, 4, 0.25)
    return folder


def test_the_objective_at_the_copies_is_the_formula():
    engine = local_engine(planted(), 3)
    settings = Settings.preset(
        "paper", rank=2, active=2, beta=0.3, penalty_users="l1:0.2", penalty_items="l2:0.5", seed=4
    )
    (*_, last) = itertools.islice(rounds(engine, settings), 4)
    expected = 0.0
    for shard, state in zip(engine.shards, engine.states, strict=True):
        entries = shard.by_user.tocoo()
        errors = entries.data - np.sum(state.U[entries.row] * state.W[entries.col], axis=1)
        expected += (errors @ errors / 2 + 0.2 * np.abs(state.U).sum()) / 3
    expected += 0.25 * np.sum(last.V**2)
    assert objective_at_copies(engine, last.broadcast) == pytest.approx(expected, rel=1e-12)
    assert objective_at_copies(engine, last.broadcast) != pytest.approx(last.diagnostics.objective, rel=1e-3)


def test_clients_without_a_copy_have_no_such_objective():
    engine = local_engine(planted(), 3)
    settings = Settings.preset("paper", rank=2, active=2, algorithm="fedmavg", penalty_users="l2:1")
    (*_, last) = itertools.islice(rounds(engine, settings), 3)
    assert objective_at_copies(engine, last.broadcast) is None


def test_start_scale_scales_the_first_factors():
    made = []
    for scale in (1.0, 0.01):
        engine = local_engine(planted(), 3)
        settings = Settings.preset("paper", rank=2, active=2, start_scale=scale)
        start = next(rounds(engine, settings))
        made.append((start.V, engine.states[1].U))
    for whole, small in zip(*made, strict=True):
        np.testing.assert_allclose(small, 0.01 * whole, rtol=1e-12)
    assert "start_scale" not in Settings.preset("paper").to_dict()  # earlier versions do not know it
    for wrong in (0, 1.5, "small"):
        with pytest.raises(InputError, match="start_scale"):
            Settings.preset("paper", start_scale=wrong)


def test_shards_are_one_table_with_their_clients(shards):
    found = table_of(shards, group="client")
    whole, owner = make_ratings(Recipe(60, 30, 700, rank=2, seed=3)), found.groups[1]
    assert (len(found), len(found.users), len(found.items)) == (700, 60, 30)
    pattern = found.matrix.copy()
    pattern.data[:] = 1
    assert (pattern.toarray() == (whole.matrix.toarray()[np.argsort(whole.users)] != 0)).all()
    opened = open_prepared(shards)
    for client, (shard, ids) in enumerate(zip(opened.shards, opened.ids, strict=True)):
        np.testing.assert_array_equal(np.sort(ids), found.users[owner == client])
        rows = np.searchsorted(found.users, ids)
        both = shard.by_user.toarray() + shard.test.toarray()
        np.testing.assert_array_equal(found.matrix[rows].toarray(), both)
    assert any("held-out ratings are in it" in note for note in found.notes)
    with pytest.raises(DataError, match="column:client keeps their clients"):
        table_of(shards, group="dept")


def test_users_in_several_shards_stay_apart(tmp_path):
    matrix = planted(users=5, items=4).matrix.astype(np.float32)
    with writing(tmp_path / "both", Catalogue(np.arange(4))) as writer:
        for _ in range(2):
            writer.add(np.arange(5), matrix)
        writer.finish({})
    found = table_of(tmp_path / "both")
    np.testing.assert_array_equal(found.matrix.toarray(), np.vstack([matrix.toarray()] * 2))


def test_a_study_of_shards_keeps_their_clients(shards, tmp_path):
    plan = EXPERIMENTS["size"](str(shards), 2, partition="column:client", **SMALL)
    table = runner.table_of(plan)
    parts = runner.parts_of(plan, table, 1)
    np.testing.assert_array_equal(parts.owner, table.groups[1])
    assert (parts.owner != assign_users(60, 4, 1)).any()
    lines = tables.write(plan, runner.run(plan, tmp_path / "out"), tmp_path / "out")
    assert [line.diverged for line in lines] == [0] * len(plan.cases)


def test_the_published_choices_differ_from_the_papers_one_at_a_time():
    plan = EXPERIMENTS["published"]("demo", 5, 0.3)
    settings = {case.label: case.settings(1, 10).to_dict() | {"method": case.method} for case in plan.cases}

    def changed(one, other):
        return {key for key in settings[one].keys() | settings[other].keys() if key not in ("algorithm", "method")
                and settings[one].get(key) != settings[other].get(key)}  # fmt: skip

    ours, theirs = "FedMC-ADMM, the paper's", "FedMAvg, the paper's"
    assert changed(ours, "FedMC-ADMM, rank 50") == {"rank"}
    assert changed(ours, "FedMC-ADMM, start 0.0002") == {"start_scale"}
    assert changed(ours, "FedMC-ADMM, beta = 10000") == {"beta"}
    assert changed(theirs, "FedMAvg, steps / p") == set()
    assert settings["FedMAvg, steps / p"]["algorithm"] == "fedmavg-printed"
    code = {"normalise", "start_scale", "penalty_items"}
    assert changed(ours, "FedMC-ADMM, the code's") == code | {"rank", "beta"}
    assert changed(theirs, "FedMAvg, the code's") == code
    assert changed("FedMC-ADMM, the code's", "FedMC-ADMM, the code's but rank 5") == {"rank"}


def test_tables_lead_with_what_the_study_is_about(tmp_path):
    source = tmp_path / "ratings.csv"
    entries = planted(users=40).matrix.tocoo()
    source.write_text("".join(f"{u},{i},{x}\n" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)))
    for name, leading in (
        ("published", ["method", "objective", "objective_at_copies", "test_rmse"]),
        ("sparsity", ["method", "nonzeros", "objective", "test_rmse"]),
        ("inner-steps", ["method", "cpu_seconds_to_common", "seconds_to_common", "objective", "test_rmse"]),
        ("scenario", ["method", "test_rmse"]),
    ):
        plan = EXPERIMENTS[name](str(source), 2, 0.3, **SMALL)
        lines = tables.write(plan, runner.run(plan, tmp_path / name), tmp_path / name)
        assert comparison.headings_of(plan)[: len(leading)] == leading
        own = {key for key in leading if key in comparison.OWN}
        assert own <= {key for line in lines for key in line.record()}
        header = next(csv.reader((tmp_path / name / "summary.csv").read_text().splitlines()))
        assert not [key for key in header if "seconds" in key]  # they differ from run to run


def test_how_soon_an_objective_is_reached_that_all_reach():
    cases = Case("slow", "fedmc"), Case("fast", "fedmc")
    plan = Study(
        "A", "x", cases, (Figure("f", "F", (Panel("objective", "cpu_seconds"), Panel("objective", "seconds"))),), (1,)
    )

    def outcome(label, *objectives):
        rows = [
            {"round": k, "seconds": 10 * k, "cpu_seconds": k, "up": 0, "down": 0, "objective": value}
            for k, value in enumerate(objectives)
        ]
        return Outcome(label, "fedmc", 1, "", rows, None)

    slow, fast = tables.summary(plan, [outcome("slow", 9, 7, 5, 4), outcome("fast", 9, 4.5, 4, 3)])
    assert (slow.own["cpu_seconds_to_common"], fast.own["cpu_seconds_to_common"]) == (3, 2)
    assert fast.own["seconds_to_common"] == 20


def test_cpu_time_is_kept_beside_seconds(shards, tmp_path):
    plan = EXPERIMENTS["size"](str(shards), 2, **SMALL)
    runner.run(plan, tmp_path / "out")
    for outcome in runner.load(tmp_path / "out")[1]:
        spent = [row["cpu_seconds"] for row in outcome.rows]
        assert spent[0] >= 0
        assert spent == sorted(spent)
        assert spent[-1] > 0
    kept = json.loads(next((tmp_path / "out" / "outcomes").glob("*.json")).read_text())
    assert not [name for row in kept["rows"] for name in row if "seconds" in name]
    path = next((tmp_path / "out" / "times").glob("*.json"))
    older = json.loads(path.read_text())
    del older["cpu_seconds"]  # of an earlier version
    path.write_text(json.dumps(older))
    found = {o.label: o for o in runner.load(tmp_path / "out")[1]}
    assert [None] in [[row["cpu_seconds"] for row in one.rows][:1] for one in found.values()]
    assert all(row["seconds"] is not None for one in found.values() for row in one.rows)


def test_all_reads_the_data_once_and_gives_each_experiment_a_folder(shards, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(compare, "_run", lambda study, folder, table: ran.append((study, folder, table)))
    compare.reproduce("all", data=str(shards), rank=2, seeds="1", clients=4, active=2, rounds=3, out=tmp_path)
    assert [folder.name for _, folder, _ in ran] == list(EXPERIMENTS)
    assert len({id(table) for _, _, table in ran}) == 1
    by_name = {folder.name: study for study, folder, _ in ran}
    assert by_name["scenario"].partition == "power:1"
    assert by_name["sparsity"].partition == "uniform"
    assert {study.rounds for study in by_name.values()} == {3}
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and not a comparison"):
        compare.reproduce("size", data=str(shards), seeds="1", out=tmp_path / "one")


@pytest.mark.nightly
def test_all_experiments_with_one_command(shards, tmp_path):
    words = ["--data", shards, "--rank", "2", "--rounds", "2", "--clients", "4", "--active", "2", "--seeds", "1"]
    done = fedmc("reproduce", "all", *words, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(EXPERIMENTS)
    assert all((tmp_path / "out" / name / "report.html").is_file() for name in EXPERIMENTS)
    assert "prepared shards as one table" in done.stderr
