"""The command: what it prints, what it leaves behind, and how it refuses. Real processes only where they matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmc.cli import COMMANDS
from fedmc.cli.lazy import Entry, LazyGroup, in_flags
from fedmc.cli.lazy import load as load_command
from fedmc.model import load
from tests.command import fedmc
from tests.conftest import planted

FEDMC = str(Path(sys.executable).parent / "fedmc")
FAST = ["--clients", "4", "--rounds", "3", "--rank", "2"]


def run(*arguments, cwd, code=0):
    done = fedmc(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def refuse(*arguments, cwd, message):
    """Exit code 2, the reason on stderr, no traceback."""
    done = run(*arguments, cwd=cwd, code=2)
    assert message in " ".join(done.stderr.split()), done.stderr


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV with header and string users."""
    path = tmp_path_factory.mktemp("table") / "ratings.csv"
    entries = planted().matrix.tocoo()
    lines = [f"u{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    path.write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(table):
    run("train", table, *FAST, "--out", "run", cwd=table.parent)
    return table.parent / "run"


def test_train_leaves_a_run_folder_and_ends_with_json(table, tmp_path):
    done = run("train", table, *FAST, "--out", "run", "--json", cwd=tmp_path)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert {"test_rmse", "train_rmse", "objective", "rounds", "seconds", "bytes_up", "bytes_down"} <= set(result)
    assert result["rounds"] == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "baselines.json",
        "coverage.json",
        "data.json",
        "history.jsonl",
        "model.npz",
        "ranking.json",
        "settings.toml",
    ]
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert settings["rank"] == 2
    assert settings["preset_name"] == "bayes"
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [record["number"] for record in history] == [0, 1, 2, 3]
    assert history[-1]["test_rmse"] == result["test_rmse"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_tune_says_what_it_may_cost_and_what_it_chose(table, tmp_path):
    options = ["--clients", "4", "--ranks", "1,2", "--trials", "2", "--rounds", "4"]
    done = run("tune", table, *options, "--json", cwd=tmp_path)
    assert "at most 2 trials of 4 rounds for each of 2 rank(s)" in done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert f"chosen: --rank {result['rank']} --penalty-users {result['penalty_users']}" in done.stdout
    assert result["validation_rmse"] == min(trial["validation_rmse"] for trial in result["trials"])
    assert {trial["rank"] for trial in result["trials"]} == {1, 2}
    refuse("tune", table, "--ranks", "1,x", cwd=tmp_path, message="--ranks takes whole numbers")
    refuse("tune", table, "--trials", "0", cwd=tmp_path, message="at least 1 trial, got 0")


def test_train_chooses_its_penalty_when_asked_to(table, tmp_path):
    done = run("train", table, *FAST, "--penalty-users", "auto", "--out", "run", cwd=tmp_path)
    assert "at most 6 trials of 10 rounds" in done.stderr
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert settings["penalty_users"].startswith("l2:")
    assert f": {settings['penalty_users']}, validation RMSE" in done.stderr


def test_test_rmse_is_that_of_the_saved_model(table, tmp_path):
    from fedmc.data.loading import read_source
    from fedmc.data.splits import at_random as split

    result = json.loads(run("train", table, *FAST, "--out", "run", "--json", cwd=tmp_path).stdout.splitlines()[-1])
    _, test = split(read_source(table), 0.2, 0)
    entries = test.matrix.tocoo()
    predicted = load(tmp_path / "run" / "model.npz").predict(test.users[entries.row], test.items[entries.col])
    assert np.sqrt(np.mean((predicted - entries.data) ** 2)) == pytest.approx(result["test_rmse"], rel=1e-9)


def test_diagnostics_are_in_the_history(table, tmp_path):
    options = [
        "--preset",
        "paper",
        "--diagnostics",
        "--out",
        "run",
        "--beta",
        "0.5",
        "--penalty-users",
        "l1:0.1",
    ]
    run("train", table, *FAST, *options, cwd=tmp_path)
    last = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    wanted = {
        "lagrangian",
        "primal_residual",
        "dual_residual",
        "stationarity",
        "certified",
        "nonzeros_users",
        "nonzeros_items",
    }
    assert wanted <= set(last)


def test_predict_recommend_evaluate_info(trained, table):
    model = load(trained / "model.npz")
    done = run("predict", "run", "u3", "5", "6", cwd=table.parent)
    lines = done.stdout.splitlines()
    assert lines[0] == "user,item,prediction"
    assert lines[1] == f"u3,5,{model.predict('u3', 5)[0]:.4f}"
    pairs = table.parent / "pairs.csv"
    pairs.write_text("user,item\nu3,5\nu4,6\n")
    assert run("predict", "run/model.npz", "--pairs", pairs, cwd=table.parent).stdout.splitlines()[1] == lines[1]
    best = json.loads(run("recommend", "run", "u3", "u4", "-n", "2", "--json", cwd=table.parent).stdout)
    assert [row["item"] for row in best[:2]] == model.recommend("u3", 2)[0].tolist()
    assert run("recommend", "run", "u3", "-n", "2", cwd=table.parent).stdout.startswith("user,rank,item,score\nu3,1,")
    whole = json.loads(run("evaluate", "run", table, "--include-seen", "--json", cwd=table.parent).stdout)
    assert whole["ratings"] == len(planted())
    result = json.loads(run("evaluate", "run", table, "--json", cwd=table.parent).stdout)
    assert result["ratings"] == round(0.2 * len(planted()))
    history = (trained / "history.jsonl").read_text().splitlines()
    assert result["rmse"] == pytest.approx(json.loads(history[-1])["test_rmse"])
    assert 0 < result["rmse"] < 2
    assert json.loads(run("info", "run", "--json", cwd=table.parent).stdout)["users"] == 40
    assert "rank" in run("info", "run", cwd=table.parent).stdout


def test_evaluate_folds_in_new_users(trained, table):
    old, new = table.parent / "old.csv", table.parent / "new.csv"
    old.write_text("user,item,rating\nnewcomer,1,4\nnewcomer,2,2\n")
    new.write_text("user,item,rating\nnewcomer,3,3\n")
    result = json.loads(run("evaluate", "run", new, "--fold-in", old, "--json", cwd=table.parent).stdout)
    assert result["ratings"] == 1
    refuse("evaluate", "run", new, cwd=table.parent, message="such as user newcomer")


def test_same_seed_same_model(table, tmp_path):
    for name in ("a", "b"):
        run("train", table, *FAST, "--out", name, "--seed", "7", cwd=tmp_path)
    one, other = (load(tmp_path / name / "model.npz") for name in ("a", "b"))
    assert one.V.tobytes() == other.V.tobytes()
    assert one.U.tobytes() == other.U.tobytes()


def test_interrupt_stops_after_the_round_and_keeps_the_run(table, tmp_path):
    command = [FEDMC, "train", table, "--clients", "4", "--rounds", "1000000", "--out", "run", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "run.part" / "history.jsonl"
    deadline = time.monotonic() + 100
    while not (history.is_file() and history.read_text().count("\n") > 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads(out.strip().splitlines()[-1])
    assert result["stopped"] == "interrupted"
    assert 3 <= result["rounds"] < 1000000
    assert load(tmp_path / "run" / "model.npz").settings.rank == 20
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == result["rounds"] + 1


HEADER = "user,item,rating\n"
BAD_FILES = {
    "empty": ("", "is empty"),
    "header only": (HEADER, "no ratings"),
    "missing column": ("user,item,points\n1,2,3\n", "no rating column found"),
    "not a number": (HEADER + "1,2,3\n1,3,good\n", "line 3: the rating should be a number, got 'good'"),
    "NaN": (HEADER + "1,2,3\n1,3,nan\n", "line 3: the rating must be finite, got 'nan'"),
    "infinite": (HEADER + "1,2,3\n1,3,-inf\n", "line 3: the rating must be finite, got '-inf'"),
    "duplicates": (HEADER + "1,2,3\n1,2,4\n", "(--duplicates last or --duplicates mean)"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    text, message = BAD_FILES[name]
    (tmp_path / "bad.csv").write_text(text)
    refuse("train", "bad.csv", "--out", "run", cwd=tmp_path, message=message)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


BAD_OPTIONS = {
    "rank": (["--rank", "0"], "rank must be at least 1, got 0"),
    "clients above users": (["--clients", "41"], "more clients (41) than users (40): at most 40 clients"),
    "no clients": (["--clients", "0"], "number of clients must be at least 1, got 0"),
    "active above clients": (["--active", "5"], "active must lie in 1..4 (the number of clients), got 5"),
    "beta zero": (["--beta", "0"], "beta, unless 'auto', must be a number from 1e-12 to 1e+12, got 0.0"),
    "beta negative": (["--beta=-1"], "beta, unless 'auto', must be a number from 1e-12 to 1e+12, got -1.0"),
    "beta words": (["--beta", "much"], "beta must be a number above 0 or 'auto', got 'much'"),
    "penalty": (["--penalty-users", "l9:1"], "unknown penalty 'l9': choose one of"),
    "preset": (["--preset", "slow"], "'slow' is not one of 'bayes', 'fast', 'paper'"),
    "rank words": (["--rank", "many"], "--rank takes a whole number or auto, got 'many'"),
    "columns": (["--columns", "user,item,stars"], "there is no column 'stars'"),
    "same column": (["--columns", "user,user,rating"], "three different columns"),
    "huge rank": (["--rank", "100000"], "rank must be at most 1000, got 100000"),
    "logistic on stars": (["--loss", "logistic"], "this loss takes ratings from 0.0 to 1.0"),
    "validation share": (["--validation", "0.0001"], "leaves no rating to validate on"),
    "test share": (["--test", "1.5"], "below 1, got 1.5"),
    "patience": (["--patience", "3"], "add --validation"),
    "privacy": (["--privacy", "much"], "'much' is not one of 'plain', 'secagg', 'dp', 'dp+secagg'"),
    "too few to hide among": (
        ["--privacy", "secagg"],
        "4 clients, of whom 1 may work together with the server, are too few to hide among, min_cohort is 8: lower it",
    ),
    "too few honest ones": (["--privacy", "secagg", "--min-cohort", "4"], "are too few to hide among, min_cohort is 4"),
    "small cohort": (["--privacy", "secagg", "--min-cohort", "2"], "min_cohort must be at least 3"),
    "epsilon": (["--privacy", "dp", "--epsilon", "0"], "epsilon must lie between 0.01 and 1000, got 0.0"),
    "range of ratings": (["--privacy", "dp", "--ratings", "5"], "--ratings takes two numbers, LOW,HIGH, got '5'"),
    "clip": (["--clip", "0.5"], "clip must be 0 (off) or at least 1, got 0.5"),
    "clip in hiding": (["--privacy", "secagg", "--clip", "2"], "cannot clip single clients"),
    "client without ratings": (["--clients", "40", "--test", "0.99"], "has no training ratings"),
}


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ([], "privacy plain: "),
        (
            ["--privacy", "secagg", "--min-cohort", "3"],
            "privacy secagg: the server sees sums, each over at least 3 honest clients, and no client's own message",
        ),
        (["--privacy", "dp", "--epsilon", "3"], "privacy dp: what leaves a client is (epsilon 3, delta 1e-06)-diff"),
        (["--clip", "1"], "privacy plain: "),
    ],
)
def test_a_run_says_what_it_may_claim(table, tmp_path, options, claim):
    done = run("train", table, *FAST, *options, "--out", "run", "--json", cwd=tmp_path)
    assert claim in done.stderr
    spent = json.loads(done.stdout.splitlines()[-1])["epsilon"]
    assert spent == (pytest.approx(3, abs=1e-3) if "dp" in options else None)


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(table, tmp_path, name):
    options, message = BAD_OPTIONS[name]
    refuse("train", table, *FAST, *options, "--out", "run", cwd=tmp_path, message=message)
    assert list(tmp_path.iterdir()) == []


def test_missing_file(tmp_path):
    refuse("train", "nowhere.csv", cwd=tmp_path, message="there is no file nowhere.csv")


def test_duplicates_can_be_settled(tmp_path):
    rows = [f"{u},{i},{(u * i) % 5 + 1}" for u in range(8) for i in range(6)]
    (tmp_path / "twice.csv").write_text(HEADER + "\n".join([*rows, "1,2,5"]) + "\n")
    for way in ("last", "mean"):
        run(
            "train",
            "twice.csv",
            "--clients",
            "2",
            "--rounds",
            "1",
            "--duplicates",
            way,
            "--out",
            way,
            cwd=tmp_path,
        )
    refuse("train", "twice.csv", "--duplicates", "first", "--out", "x", cwd=tmp_path, message="'first' is not one of")


def test_unknown_ids(trained, table):
    refuse("predict", "run", "nobody", "5", cwd=table.parent, message="unknown user nobody")
    refuse("predict", "run", "u3", "99", cwd=table.parent, message="unknown item 99")
    refuse("predict", "run", "u3", "x", cwd=table.parent, message="unknown item x")
    (table.parent / "binary").write_bytes(bytes(range(256)))
    refuse("predict", "run", "--pairs", "binary", cwd=table.parent, message="binary")
    refuse("predict", "run", "u3", cwd=table.parent, message="at least one item")
    refuse("recommend", "run", "nobody", cwd=table.parent, message="unknown user nobody")
    refuse("recommend", "run", "u3", "-n", "0", cwd=table.parent, message="n must be at least 1, got 0")


def test_bad_model_files(trained, table, tmp_path):
    whole = (trained / "model.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "foreign.npz", x=np.zeros(2))
    refuse("info", "cut.npz", cwd=tmp_path, message="cut.npz is not a whole fedmc model file")
    refuse("info", "foreign.npz", cwd=tmp_path, message="not a fedmc model")
    refuse("info", table, cwd=tmp_path, message="not a whole fedmc model file")
    np.save(tmp_path / "array.npy", np.zeros(3))
    refuse("info", "array.npy", cwd=tmp_path, message="not a whole fedmc model file")
    refuse("info", "none.npz", cwd=tmp_path, message="there is no model file none.npz")
    refuse("info", ".", cwd=tmp_path, message="holds no model.npz")


def test_an_existing_run_is_refused_and_kept(table, tmp_path):
    run("train", table, *FAST, "--out", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "model.npz").read_bytes()
    refuse("train", table, *FAST, "--out", "run", cwd=tmp_path, message="run exists already")
    assert (tmp_path / "run" / "model.npz").read_bytes() == before
    refuse("train", "nowhere.csv", "--out", "run", "--overwrite", cwd=tmp_path, message="no file")
    assert (tmp_path / "run" / "model.npz").read_bytes() == before
    run("train", table, *FAST, "--seed", "5", "--out", "run", "--overwrite", cwd=tmp_path)
    assert (tmp_path / "run" / "model.npz").read_bytes() != before
    run("train", table, *FAST, "--out", ".", "--overwrite", cwd=tmp_path / "run")
    assert load(tmp_path / "run" / "model.npz").settings.seed == 0
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    refuse("train", table, *FAST, "--out", "precious", "--overwrite", cwd=tmp_path, message="not a run folder")
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_what_stands_in_the_way_is_kept(table, tmp_path):
    (tmp_path / "run.part").mkdir()
    (tmp_path / "run.part" / "thesis.txt").write_text("years of work")
    run("train", table, *FAST, "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run.part" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.part"]


def test_json_is_json_also_where_the_objective_is_infinite(table, tmp_path):
    options = [
        "--preset",
        "paper",
        "--beta",
        "auto",
        "--diagnostics",
        "--penalty-users",
        "box:2,3",
        "--json",
        "--out",
        "run",
    ]
    done = run("train", table, *FAST, *options, cwd=tmp_path)
    for line in [done.stdout.strip().splitlines()[-1], *(tmp_path / "run" / "history.jsonl").read_text().splitlines()]:
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_divergence_keeps_the_last_finite_model(table, tmp_path):
    options = [
        "--preset",
        "paper",
        "--clients",
        "4",
        "--active",
        "2",
        "--rounds",
        "2000",
        "--beta",
        "1e-9",
        "--measure-every",
        "1",
        "--out",
        "run",
    ]
    refuse("train", table, *options, cwd=tmp_path, message="raise beta")
    model = replace(load(tmp_path / "run" / "model.npz"), rating_range=None)  # as training measures: not clipped
    assert np.isfinite(model.U).all()
    assert np.isfinite(model.V).all()
    last = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert last["number"] < 2000
    from fedmc.data.loading import read_source
    from fedmc.data.splits import at_random as split

    train, _ = split(read_source(table), 0.2, 0)
    predicted = model.predict(train.users[train.rows()], train.items[train.matrix.indices])
    assert np.sqrt(np.mean((predicted - train.matrix.data) ** 2)) == pytest.approx(last["train_rmse"], rel=1e-6)


def every_command(table=COMMANDS, before=()):
    for name, entry in table.items():
        yield (*before, name), entry
        if isinstance(entry, LazyGroup):
            yield from every_command(entry.table, (*before, name))


@pytest.mark.parametrize("words", [words for words, _ in every_command()], ids=" ".join)
def test_help_of_every_command(tmp_path, words):
    said = run(*words, "--help", cwd=tmp_path).stdout
    assert said.startswith(f"Usage: fedmc {' '.join(words)} ")
    assert "\\" not in said
    assert "Positional" not in said


def test_every_option_and_argument_is_explained():
    for words, entry in every_command():
        if isinstance(entry, Entry):
            for parameter in load_command(entry, words[-1]).params:
                assert parameter.help, (words, parameter.name)


def test_help_and_version(tmp_path):
    for command in ("train", "evaluate", "predict", "recommend", "info", "demo"):
        assert command in run("--help", cwd=tmp_path).stdout
        assert "Usage" in run(command, "--help", cwd=tmp_path).stdout
    assert run("--version", cwd=tmp_path).stdout.startswith("fedmc 0.")
    assert "[required]" in run("train", "--help", cwd=tmp_path).stdout
    assert "[default: 10]" in run("train", "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["federation", "tarin"], "No such command 'tarin'. Did you mean 'train'?"),
        (["train", "x.csv", "--overwirte"], "No such option '--overwirte'. Did you mean '--overwrite'?"),
        (["nothing-like-it"], "No such command 'nothing-like-it'."),
    ],
)
def test_a_mistyped_word_gets_one_suggestion(tmp_path, words, message):
    done = run(*words, cwd=tmp_path, code=2)
    assert done.stderr.splitlines()[-1] == f"Error: {message}"


def test_errors_name_the_options_of_their_command():
    def said(message):
        return in_flags(message, load_command(COMMANDS["train"], "train").params)

    assert said("use update='exact', or spill=FOLDER") == "use --update exact, or --spill FOLDER"
    assert said("choose another path, or overwrite=True to replace it").endswith("or --overwrite to replace it")
    assert said("it needs a query: query='select ...'") == "it needs a query: --query 'select ...'"
    assert said("penalty_items='auto': give penalty_items") == "--penalty-items auto: give penalty_items"
    assert said("host/db?query=1 and entry='all' stay") == "host/db?query=1 and entry='all' stay"


def test_a_command_without_its_extra_says_which(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "fedmc.cli.node_start", raising=False)
    for name in [name for name in sys.modules if name.startswith(("fedmc.federation.flower", "flwr."))]:
        monkeypatch.delitem(sys.modules, name)
    refuse("node", "start", cwd=tmp_path, message="pip install 'fedmc[flower]'")


@pytest.mark.parametrize("words", [["--help"], ["federation", "--help"], ["--version"]])
def test_help_imports_no_library_of_numbers_or_networks(words):
    code = (
        "import sys\nfrom fedmc.cli import main\n"
        f"try: main({words})\nexcept SystemExit: pass\n"
        "heavy = ('numpy', 'scipy', 'numba', 'pyarrow', 'matplotlib', 'flwr', 'cryptography', 'rich')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_installed_script(table, tmp_path):
    """One real process each for success, a refusal by the parser and one by the library."""
    for words, code, said in (
        (["--version"], 0, "fedmc 0."),
        (["train", str(table), "--preset", "slow"], 2, "is not one of"),
        (["info", "none.npz"], 2, "error: there is no model file none.npz"),
    ):
        done = subprocess.run([FEDMC, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("share", ["0.25", "random:0.25"])
def test_a_split_has_two_spellings_everywhere(table, tmp_path, share):
    run("train", table, *FAST, "--test", share, "--validation", share, "--out", "run", cwd=tmp_path)
    seen = load(tmp_path / "run" / "model.npz").seen.nnz
    assert seen == len(planted()) - round(0.25 * len(planted())) - round(0.25 * (0.75 * len(planted())))
    done = run("prepare", table, "--split", share, "--out", "shards", cwd=tmp_path)
    assert f"{len(planted()) - round(0.25 * len(planted()))} ratings" in done.stdout.replace(",", "")
    run("tune", table, "--clients", "4", "--ranks", "1", "--trials", "1", "--rounds", "1", "--validation", share,
        "--test", share, cwd=tmp_path)  # fmt: skip
    refuse("tune", table, "--validation", "last:2", cwd=tmp_path, message="a share such as 0.2 or random:0.2 is needed")


def test_both_recommend_commands_take_the_same_number(trained, table):
    spellings = [("-n", "2"), ("--n", "2"), ("--number", "2")]
    best = {run("recommend", "run", "u3", *words, cwd=table.parent).stdout for words in spellings}
    assert len(best) == 1
    at_node = {run("node", "recommend", trained, "u3", *words, cwd=table.parent).stdout for words in spellings}
    assert at_node == best


def test_a_read_only_place_is_said(table, tmp_path):
    (tmp_path / "file").write_text("")
    refuse("train", table, *FAST, "--out", "file/run", cwd=tmp_path, message="file")


def test_the_module_is_the_command(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fedmc", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == fedmc("--version", cwd=tmp_path).stdout
