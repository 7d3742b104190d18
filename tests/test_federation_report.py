"""Reports of a federation's run: the server's, which holds what the server knows, and an organisation's own."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc import FedMC, Ratings
from fedmc.algorithms.settings import Settings
from fedmc.cli import federation_train
from fedmc.cli.federation_demo import NAMES, set_up
from fedmc.evaluation import biases
from fedmc.federation.node import models
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.node.store import Store
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.setup.layout import load_node, load_server
from fedmc.privacy.dp.ledger import Ledger
from fedmc.report import html
from fedmc.report.federation import write_report
from tests.command import fedmc
from tests.conftest import planted
from tests.test_report import open_page

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports") / "made"
    set_up(folder, planted(), ("plain", "secagg"))
    return folder


@pytest.fixture
def server(made):
    return load_server(made / "server")


def new_run(config, name, rounds=6, privacy=None, **more):
    """A run's folder, as after so many rounds; the best round is the one before the last."""
    settings = Settings.preset("fast", rank=3, active=3, **(privacy or {"privacy": "secagg", "min_cohort": 3}))
    folder = RunFolder(config.runs / name)
    folder.write_plan(
        RunPlan(f"{name}-0a1b", settings, list(NAMES), [1, 2, 3], "a-hash", 15, rounds, 1, 60.0, 3, start_from="before")
    )
    with open(folder.path / "history.jsonl", "w", encoding="utf-8") as file:
        for number in range(rounds + 1):
            rmse = 0.5 + 0.01 * abs(rounds - 1 - number)
            line = {"number": number, "seconds": 2.0, "bytes_up": 1_000_000, "bytes_down": 3_000_000}
            file.write(json.dumps(line | {"participants": [0, 2], "objective": 2.0, "test_rmse": rmse} | more) + "\n")
    left_out = [{"round": 2, "organisation": "south", "client": 1, "why": "offline"}]
    folder.say(state="finished", round=rounds, has_model=["north", "east"], absent=left_out)
    return folder


def test_the_server_s_report_says_what_ran(server):
    run = new_run(server, "first")
    done = fedmc("report", server.folder, "--run", "first")
    assert done.returncode == 0, done.stderr
    assert f"report in {run.path / 'report.html'}" in done.stdout
    page = (run.path / "report.html").read_text(encoding="utf-8")
    for words in (
        "The run is finished after 6 of 6 rounds.",
        "The best test RMSE is 0.5000, in round 5; the model is that of round 6, with 0.5100.",
        "3 organisations sent 7.0 MB and received 21.0 MB in all; the rounds took 14.0 seconds, 2.00 at the median.",
        "The model is with north, east.",
        "best: round 5",
        "sums, each over at least 3 honest clients",
        "every sum covers at least 3 honest ones",
        "goes on from</td><td class=\"words\">before<",
        "south</td><td>offline",
        "north, south, east",
    ):  # fmt: skip
        assert words in page, words
    before = page
    assert fedmc("report", run.path).returncode == 0  # the folder of the run itself
    assert (run.path / "report.html").read_text(encoding="utf-8") == before
    assert not list(run.path.glob("*.part*"))


def test_the_epsilon_that_is_spent(server):
    dp = {"privacy": "dp", "epsilon": 5, "dp_rounds": 6}
    run = new_run(server, "noised", privacy=dp, epsilon=1.25)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "Spent so far: epsilon 1.25." in page
    assert "differentially private" in page


def test_texts_from_outside_are_escaped_and_broken_values_are_left_out(server):
    run = new_run(server, f"hostile-{EVIL.replace('/', '')}")
    entries = [5, {"organisation": EVIL, "why": "x"}, {"round": EVIL, "organisation": "east", "why": EVIL}]
    run.say(state="failed", why=f"{EVIL}\x1b[2J", absent=entries, has_model=[EVIL], at=EVIL)
    with open(run.path / "history.jsonl", "a", encoding="utf-8") as file:
        file.write(f'7\n{{"number": 7, "test_rmse": "{EVIL}", "seconds": NaN, "participants": "{EVIL}"}}\n{{"numb')
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "east" in page


def test_a_run_without_a_round_and_an_unknown_run(server, made):
    run = new_run(server, "empty")
    (run.path / "history.jsonl").unlink()
    assert "no round yet" in fedmc("report", run.path).stderr
    done = fedmc("report", made / "server", "--run", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no run nothing" in done.stderr
    assert "leave out --run x" in fedmc("report", run.path, "--run", "x").stderr


def test_a_report_that_cannot_be_written_does_not_fail_the_run(server, monkeypatch, capsys):
    run = new_run(server, "unwritable")
    monkeypatch.setattr(federation_train, "WRITE_REPORT", "tests.test_federation_report:broken")
    federation_train._write_page(run)
    assert "was not written" in (said := capsys.readouterr().err)
    assert f"fedmc report {run.path}" in said
    monkeypatch.undo()
    federation_train._write_page(run)
    assert (run.path / "report.html").is_file()
    assert capsys.readouterr().err == f"report in {run.path / 'report.html'}\n"


def broken(folder):
    raise RuntimeError(f"no figures for {folder}")


def test_it_opens_offline(browser, server, node):
    new_run(server, "shown")
    for path in (write_report(server.runs / "shown"), node_report(node)):
        page, said, asked = open_page(browser, path, 400)
        assert said == []
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.close()


# --- at a node


@pytest.fixture(scope="module")
def node(made):
    """A node with the models of two runs on its own ratings, the second one better."""
    config = load_node(made / NAMES[0])
    prepared = open_folder(config).prepared
    shard = prepared.shards[0]
    own = Ratings(prepared.ids[0], prepared.catalogue.items, shard.by_user)
    for run, rounds in (("june-0a1b", 1), ("july-2c3d", 15)):
        model = FedMC(rank=3, clients=3, rounds=rounds).fit(own).model_
        titles = np.array([f"Film {item} {EVIL}" for item in own.items.tolist()])
        models.keep(config, run, replace(model, titles=titles))
        os.utime(config.path(models.FOLDER) / f"{run}.npz", (rounds, rounds))
    return config


def node_report(config, *options):
    done = fedmc("report", config.folder, *options)
    assert done.returncode == 0, done.stderr
    assert f"report in {config.path('report.html')}" in done.stdout
    return config.path("report.html")


def test_the_node_s_report_has_its_own_measurements(node):
    page = node_report(node).read_text(encoding="utf-8")
    prepared = open_folder(node).prepared
    shard = prepared.shards[0]
    rows, columns = shard.test.tocoo().coords
    users, items = prepared.ids[0][rows], prepared.catalogue.items[columns]
    for run in ("july-2c3d", "june-0a1b"):
        predicted = models.load(node.path(models.FOLDER) / f"{run}.npz").predict(users, items)
        rmse = float(np.sqrt(np.mean((predicted - shard.test.data) ** 2)))
        assert f">{html.short(rmse)}</td>" in page, run
    for words in (
        "This page is about run july-2c3d.", f"held out</td><td class=\"words\">{shard.test.nnz}<",
        f"ratings</td><td class=\"words\">{shard.by_user.nnz}<", "in use", "90 %", "Privacy plain",
        "config.toml sets no epsilon",
        "<h2>Example recommendations</h2>", "<li>Film ", "&lt;img src=x",
        f"from {shard.test.nnz} held-out pairs",
    ):  # fmt: skip
        assert words in page, words
    assert "<img" not in page
    assert stat.S_IMODE(node.path("report.html").stat().st_mode) == 0o600


def test_a_node_compares_with_its_own_averages_and_a_model_of_its_own(node):
    prepared = open_folder(node).prepared
    shard = prepared.shards[0]
    rows, columns = shard.test.tocoo().coords
    ends = models.load(node.path(models.FOLDER) / "july-2c3d.npz").rating_range
    fitted = np.clip(biases.fit([shard]).predict(shard.users[rows], columns), *ends)
    own = html.short(float(np.sqrt(np.mean((fitted - shard.test.data) ** 2))))
    page = unescape(node_report(node).read_text(encoding="utf-8"))
    assert re.search(f"<td>biases only: [^<]*</td><td [^>]*>{own}</td>", page)
    assert "this organisation alone" not in page
    page = node_report(node, "--alone").read_text(encoding="utf-8")
    (alone,) = re.findall(r"<td>this organisation alone: [^<]*</td><td [^>]*>([\d.]+)</td>", page)
    ratings = Ratings(prepared.ids[0], prepared.catalogue.items, shard.by_user)
    model = FedMC(rank=3, clients=1, active=1, rounds=50).fit(ratings).model_
    predicted = model.predict(prepared.ids[0][rows], prepared.catalogue.items[columns], unknown="prior")
    assert float(alone) == pytest.approx(np.sqrt(np.mean((predicted - shard.test.data) ** 2)), abs=2e-3)
    assert f"Beside a model of its own data alone, with {alone}, that is " in page
    assert f"Beside biases only, with {own}, that is " in page
    done = fedmc("report", node.folder.parent / "server", "--alone")
    assert (done.returncode, "leave out --alone" in done.stderr) == (2, True)


def test_a_named_run_at_a_node(node):
    page = node_report(node, "--run", "june").read_text(encoding="utf-8")
    assert "This page is about run june-0a1b." in page
    assert "the model before" not in page
    assert "there is no run &#x27;" not in page
    done = fedmc("report", node.folder, "--run", "may")
    assert done.returncode == 2
    assert "choose from july-2c3d, june-0a1b" in done.stderr


def test_a_node_without_runs_and_what_a_server_wrote_into_its_journal(made):
    config = load_node(made / NAMES[1])
    page = node_report(config).read_text(encoding="utf-8")
    assert "taken part in no run yet" in page
    with Store(config.path("state")) as store:
        store._database.execute(
            "INSERT INTO journal (run, settings, description, asked) VALUES (?, '', ?, 0)", ("evil-1", f"{EVIL}\x1b")
        )
    page = node_report(config).read_text(encoding="utf-8")
    assert "&lt;img" in page
    assert "<img" not in page
    assert "\x1b" not in page


def test_the_budget_of_a_node(made):
    config = made / NAMES[2] / "config.toml"
    config.write_text(config.read_text().replace("# epsilon = 1.0 ", "epsilon = 2.0 "))
    loaded = load_node(config.parent)
    assert "Nothing of epsilon 2 is spent" in node_report(loaded).read_text(encoding="utf-8")
    with Ledger(loaded.path("ledger.sqlite"), 2.0, 1e-6) as ledger:
        ledger.release("a", 20.0, lambda: b"x")
        spent = ledger.spent()
    assert f"Epsilon {spent:.4g} of 2 is spent" in node_report(loaded).read_text(encoding="utf-8")
