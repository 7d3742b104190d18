"""Penalties, constraint sets and losses of single clients. `test_paper_letter` holds their iterates to the paper's."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmc import FedMC, Objective, Settings, load
from fedmc.algorithms import registry
from fedmc.algorithms.objectives import by_number
from fedmc.errors import InputError
from fedmc.problem import penalties
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import local_engine, planted

CLIENTS = 4
TAKE = [
    name
    for name in registry.names()
    if not registry.of_events(name) and name not in ("dp", "bayes", "gibbs") and name in registry.BUILT_IN
]


def last_of(settings, own, number=4):
    shards = local_engine(planted(), CLIENTS).shards
    engine = LocalEngine(shards, objectives=own)
    *_, last = itertools.islice(rounds(engine, settings), number + 1)
    return engine, last


@pytest.mark.parametrize("mode", [{"active": 3}, {"active": CLIENTS, "privacy": "secagg", "min_cohort": 3}])
@pytest.mark.parametrize("name", TAKE)
def test_an_objective_equal_to_the_runs_changes_no_bit(name, mode):
    """And one that differs changes the model: in every algorithm whose clients have a penalty."""
    settings = Settings.preset("fast", rank=2, algorithm=name, penalty_users="l2:3", penalty_items="auto", **mode)
    _, plain = last_of(settings, {})
    _, same = last_of(settings, {1: Objective("l2:3", "square"), 2: Objective(penalties.l2(3.0))})
    assert same.V.tobytes() == plain.V.tobytes()
    assert same.diagnostics == plain.diagnostics
    _, other = last_of(settings, {1: Objective("l2:300")})
    assert np.abs(other.V - plain.V).max() > 1e-4


def test_a_constraint_holds_at_its_client_only():
    settings = Settings.preset("paper", rank=3, active=CLIENTS, algorithm="exact")
    engine, _ = last_of(settings, {2: Objective("box:0.4,0.6")})
    spans = [(state.U.min(), state.U.max()) for state in engine.states]
    assert 0.4 <= spans[2][0] <= spans[2][1] <= 0.6
    assert all(low < 0.4 or high > 0.6 for k, (low, high) in enumerate(spans) if k != 2)


def ratings():
    table = planted()
    rows = table.rows()
    return table.users[rows], table.items[table.matrix.indices], table.matrix.data


def model(objectives, clients=None, **more):
    given = {"preset": "fast", "rounds": 5, "clients": CLIENTS} | more
    return FedMC(3, objectives=objectives, **given).fit(ratings(), clients=clients)


def test_objectives_by_number_by_name_and_by_a_function():
    names = {user: "west" if user < 25 else "east" for user in range(40)}
    by_name = model({"west": {"penalty_users": "box:-0.05,0.05"}}, names)
    of_west = by_name.model_.U[:25]
    free = [0, 1, 2, 4]  # the fourth column of [u, 1, b] is fixed
    assert np.abs(of_west[:, free]).max() <= 0.05 < np.abs(by_name.model_.U[25:][:, free]).max()
    function = model(lambda name: Objective("box:-0.05,0.05") if name == "west" else None, names)
    assert function.model_.U.tobytes() == by_name.model_.U.tobytes()
    drawn = model({0: Objective("box:-0.05,0.05")})
    mine = drawn.client_of_user_ == 0
    assert np.abs(drawn.model_.U[mine][:, free]).max() <= 0.05 < np.abs(drawn.model_.U[~mine][:, free]).max()


def test_the_bayesian_preset_falls_back(caplog):
    fitted = model({0: Objective("l2:5")}, preset="bayes")
    assert fitted.model_.settings.preset_name == "fast"
    assert "preset 'bayes' has no penalties or losses that differ by client: using preset 'fast'" in caplog.text


@pytest.mark.parametrize(
    ("own", "given", "words"),
    [
        ({9: Objective("l2:1")}, {}, "unknown client '?9'?: choose one of 0, 1, 2, 3"),
        ({0: "l2:1"}, {}, "an objective has loss and penalty_users, got 'l2:1'"),
        ({0: {"penalty": "l2:1"}}, {}, "an objective has loss and penalty_users"),
        ("l2:1", {}, "objectives must be a mapping or a function of a client, got 'l2:1'"),
        ({0: Objective("l3:1")}, {}, "unknown penalty 'l3'"),
        ({0: Objective(loss="huber")}, {}, "needs the square loss, got huber: use update='exact'"),
        ({0: Objective(loss="logistic")}, {"preset": "paper", "loss": "huber"}, "have different links"),
        ({0: Objective("l2:1")}, {"privacy": "dp"}, "dp has no penalty or loss that could differ by client"),
        (
            {0: Objective("l2:1")},
            {"preset": "bayes", "algorithm": "gibbs"},
            "gibbs has no penalty_users that could differ",
        ),
        ({0: Objective("auto")}, {}, "penalty_users='auto' chooses one penalty for all clients"),
        ({0: Objective("l2:1")}, {"penalty_users": "auto"}, "penalty_users='auto' chooses one penalty for all clients"),
    ],
)
def test_what_cannot_be_is_refused(own, given, words):
    with pytest.raises(InputError, match=words):
        model(own, **given)


def test_names_are_looked_up_in_the_order_of_the_clients():
    assert by_number({"b": Objective("l2:1")}, ["a", "b"]) == {1: Objective("l2:1")}
    assert by_number(None, ["a"]) == {}


def train(tmp_path, sections, *options):
    """`fedmc train` on a table of two departments with this file: what it printed, and the model or None."""
    users, items, numbers = ratings()
    lines = [
        f"{u},{i},{r},{'west' if u < 25 else 'east'}"
        for u, i, r in zip(users.tolist(), items.tolist(), numbers.tolist(), strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["user,item,rating,office", *lines]) + "\n", encoding="utf-8")
    (tmp_path / "own.toml").write_text(sections, encoding="utf-8")
    out = tmp_path / "run"
    given = ["table.csv", "--objectives", "own.toml", "--rounds", "4", "--rank", "3", "--test", "0", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "fedmc", "train", *given, *options], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert (done.returncode == 0) == out.exists()
    return done.stdout + done.stderr, load(out / "model.npz") if out.exists() else None


def test_the_command_line_takes_names_and_numbers(tmp_path):
    """By name with a partition by column, else by number."""
    own = '[{}]\npenalty_users = "box:-0.05,0.05"\n'
    said, by_name = train(tmp_path, own.format("west"), "--partition", "column:office")
    assert "preset 'bayes' has no penalties or losses that differ by client: using preset 'fast'" in said
    west = np.array([int(user) < 25 for user in by_name.users])
    assert np.abs(by_name.U[west][:, [0, 1, 2, 4]]).max() <= 0.05 < np.abs(by_name.U[~west][:, [0, 1, 2, 4]]).max()
    assert 'objectives = "own.toml"' in (tmp_path / "run" / "settings.toml").read_text(encoding="utf-8")
    said, _ = train(tmp_path, own.format("1"), "--clients", "4", "--overwrite", "--preset", "paper")
    assert "run saved" in said


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ("[9]\npenalty_users = 'l2:1'", "own.toml: unknown client '9': choose one of 0, 1, 2, 3"),
        ("[1]\npenalty_users = 'l9:1'", "own.toml, [1]: unknown penalty 'l9'"),
        ("[1", "own.toml is not TOML"),
        ("[1]\nbeta = 3", "own.toml: an objective has loss and penalty_users"),
    ],
)
def test_the_command_line_refuses(tmp_path, sections, words):
    said, _ = train(tmp_path, sections, "--clients", "4")
    assert words in said
    assert "Traceback" not in said
