"""The node's page and metrics: what they say of a real run, to whom, and what no metric of either end may say."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from prometheus_client.parser import text_string_to_metric_families

from fedmc.algorithms.messages import TASKS
from fedmc.algorithms.settings import Settings
from fedmc.cli.federation_demo import set_up
from fedmc.federation.node import models, tally
from fedmc.federation.node.organisation import make_node, open_folder
from fedmc.federation.node.store import Store
from fedmc.federation.node.tally import Tally
from fedmc.federation.pages.http import Limits
from fedmc.federation.pages.node_page import node_pages
from fedmc.federation.pages.node_snapshot import Connection, NodeLook
from fedmc.federation.pages.operator import operator_pages
from fedmc.federation.presence import Presence
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.federation.server.signing import Counter, Signer
from fedmc.federation.setup import layout, members, request_key
from fedmc.federation.statuses import STATUS
from fedmc.federation.wire import Reply, encode_reply, to_bytes
from tests.conftest import planted
from tests.test_operator_page import EVIL, events_request, first_data

NAMES = ("north", "south", "east")
SETTINGS = {
    "plain": Settings.preset("fast", rank=2, active=3, update="exact"),
    "secagg": Settings.preset("fast", rank=2, active=3, update="exact", privacy="secagg", min_cohort=3),
    "dp": Settings.preset("fast", rank=2, active=3, privacy="dp", epsilon=5, dp_rounds=2),
    "dp+secagg": Settings.preset("fast", rank=2, active=3, privacy="dp+secagg", epsilon=5, dp_rounds=2, min_cohort=3),
}
# Every metric of both ends. What a mode's claim does not allow, or what there is only in some modes, is named below.
SERVER_METRICS = {
    "fedmc_node_online", "fedmc_certificate_expiry_seconds", "fedmc_round", "fedmc_rounds_planned", "fedmc_run_state",
    "fedmc_bytes", "fedmc_last_round_timestamp",
}  # fmt: skip
NODE_METRICS = {
    "fedmc_node_connected", "fedmc_node_source_changed", "fedmc_node_runs", "fedmc_node_messages", "fedmc_node_bytes",
    "fedmc_node_last_message_timestamp", "fedmc_node_model_timestamp",
}  # fmt: skip
MEASURED = {"fedmc_rmse"}, {"fedmc_node_model_rmse"}  # of the server, of a node: never under differential privacy
SPENT = {"fedmc_epsilon_spent"}, {"fedmc_node_epsilon_allowed", "fedmc_node_epsilon_spent"}  # only under it
NOT_HERE = {"fedmc_ndcg"}  # events only
LABELS = {  # and their values; of single organisations only the server says something, and only who is online
    "fedmc_node_online": {"organisation": NAMES},
    "fedmc_run_state": {"state": ("running", "finished", "stopped", "failed", "diverged", "broken_off", "not_begun")},
    "fedmc_node_runs": {"state": ("awaiting_approval", "approved", "active", "finished", "ended", "rejected")},
    "fedmc_bytes": {"direction": ("up", "down")},
    "fedmc_node_bytes": {"direction": ("up", "down")},
    "fedmc_rmse": {"part": ("test", "validation", "train")},
    "fedmc_node_messages": {
        "outcome": ("answered", "refused"),
        "task": (*TASKS, "open", "unreadable"),
    },
}  # fmt: skip


class Federation:
    """A server and nodes on their folders, without Flower: a run's messages are function calls."""

    def __init__(self, folder, mode):
        self.settings, dp = SETTINGS[mode], "dp" in mode
        set_up(folder, planted(users=90, density=0.5), (mode,), NAMES)
        self.stack, self.mode = ExitStack(), mode
        self.server = layout.load_server(folder / "server")
        for name in NAMES:
            path = folder / name / "config.toml"
            text = path.read_text().replace("# epsilon = 1.0", "epsilon = 6.0") if dp else path.read_text()
            path.write_text(re.sub(r"^test = .*$", "", text, flags=re.MULTILINE) if dp else text)
        self.configs = [layout.load_node(folder / name) for name in NAMES]
        self.opened = [open_folder(one) for one in self.configs]
        self.tallies = []
        for config, opened in zip(self.configs, self.opened, strict=True):
            store = self.stack.enter_context(Store(config.path("state")))
            node = make_node(config, opened, store)
            self.tallies.append(self.stack.enter_context(closing(Tally(config.path("state"), node.answer_bytes))))
        self.config, self.connection = self.configs[0], Connection()
        self.look = NodeLook(self.config, self.opened[0].prepared, self.connection)
        self.pages = node_pages(self.look, 0, Limits(pace=0.1))
        self.address = self.pages.start()
        self.stack.callback(self.pages.end)
        self.token = self.pages.site.token

    def exchange(self, contents, max_bytes, needed):
        return {k: self.tallies[k].answer_bytes(content) for k, content in contents.items()}

    def train(self, name="first", rounds=2):
        keys = members.load(self.server.folder).identities if "secagg" in self.mode else ()
        items = self.server.catalogue()
        plan = RunPlan(
            f"{name}-id", self.settings, list(NAMES), [1, 2, 3], items.hash, len(items), rounds, 1, 60.0, 3,
            tuple(keys), self.server.oldest_protocol,
        )  # fmt: skip
        self.run = RunFolder(self.server.runs / name)
        self.run.write_plan(plan)
        signer = Signer(request_key.load(self.server.folder), Counter(self.server.path(request_key.ISSUED)))
        conduct(self.run, self, signer)

    def ask(self, path, token="", host="localhost", method="GET"):
        with closing(http.client.HTTPConnection("127.0.0.1", self.pages.port, timeout=10)) as connection:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}", "Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def seen(self):
        with socket.create_connection(("127.0.0.1", self.pages.port), timeout=10) as peer:
            peer.sendall(events_request(self.token))
            return first_data(peer)

    def metrics(self):
        status, body = self.ask("/metrics", self.token)
        assert status == 200
        return parsed(body)


def parsed(body):
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def values(families, name):
    return {tuple(one.labels.values()): one.value for one in families[name].samples}


@pytest.fixture(scope="module", params=SETTINGS)
def trained(request, tmp_path_factory):
    """A federation after a run, in each privacy mode."""
    made = Federation(tmp_path_factory.mktemp("pages") / "made", request.param)
    made.train()
    with made.stack:
        yield made


@pytest.fixture
def made(tmp_path):
    federation = Federation(tmp_path / "made", "secagg")
    with federation.stack:
        yield federation


class TestContent:
    def test_of_a_run(self, made):
        made.connection.on_online()
        made.train()
        seen, shard = made.seen(), made.opened[0].prepared.shards[0]
        assert (seen["organisation"], seen["online"], seen["server"]) == ("north", True, made.config.server)
        data = seen["data"]
        assert (data["source"], data["kind"], data["known"]) == ("ratings.csv", "ratings", shard.by_user.nnz)
        assert (data["users"], data["items"]) == (len(shard.users), len(shard.rated))
        assert data["held_out"] == shard.test.nnz > 30
        assert abs(seen["read_at"] - time.time()) < 300
        assert seen["changed"] == []
        assert seen["budget"] is None
        assert "secagg, over at least 3 organisations" in seen["accepts"][0]
        assert [(one["run"], one["state"], one["round"]) for one in seen["runs"]] == [("first-id", "finished", 2)]
        (model,) = seen["models"]
        assert (model["run"], model["in_use"]) == ("first-id", True)
        assert 0 < model["rmse"] < 2

    def test_what_was_asked_and_sent(self, made):
        made.train()
        sent = made.seen()["sent"]
        assert sent["last"][0]["task"] == "finish"
        assert {one["task"] for one in sent["totals"]} >= {"round", "open", "measure", "finish"}
        asked = next(one for one in sent["last"] if one["task"] == "measure")
        assert (asked["run"], asked["round"], asked["status"], asked["words"]) == ("first-id", 2, "ok", "counted")
        up, line_up = sum(one["bytes_up"] for one in sent["totals"]), sum(one["bytes_up"] for one in made.run.history())
        assert 0.9 * line_up / 3 < up < 1.5 * line_up / 3, "history has the bytes of all three, without the last V's"
        assert all(one["refused"] == 0 for one in sent["totals"])

    def test_a_refusal_has_its_status_in_words(self, made):
        made.tallies[0].answer_bytes(b"whatever")
        seen = made.seen()
        (asked,) = seen["sent"]["last"]
        assert (asked["task"], asked["round"], asked["status"]) == ("unreadable", None, "not-signed")
        assert asked["words"] == STATUS["not-signed"]
        (refusal,) = seen["refusals"]
        assert refusal["status"] == "not-signed"
        assert refusal["cure"]
        assert values(made.metrics(), "fedmc_node_messages")["refused", "unreadable"] == 1

    def test_a_source_that_changes_is_told(self, made):
        path = made.config.folder / "ratings.csv"
        path.write_text(path.read_text() + "\n")
        seen = made.seen()
        assert seen["changed"] == ["ratings.csv"]
        assert values(made.metrics(), "fedmc_node_source_changed") == {(): 1.0}

    def test_no_password_is_shown(self, made):
        from dataclasses import replace

        config = replace(made.config, source="postgresql://reader:hush@db.example.org/ratings")
        look = NodeLook(config, made.opened[0].prepared, made.connection)
        assert look.data.source == "postgresql://reader:***@db.example.org/ratings"

    def test_no_single_user_or_item(self, made):
        made.train()
        text = json.dumps(made.seen()) + made.ask("/metrics", made.token)[1].decode()
        prepared = made.opened[0].prepared
        names = [f"{one}" for one in (*prepared.ids[0], *prepared.catalogue.items) if not str(one).isdecimal()]
        assert not [name for name in names if f'"{name}"' in text]
        assert str(made.config.folder) not in text

    def test_before_the_first_run(self, made):
        seen = made.seen()
        assert (seen["models"], seen["runs"], seen["refusals"], seen["sent"]["last"]) == ([], [], [], [])
        assert seen["online"] is False
        assert made.metrics().keys() == NODE_METRICS - {
            "fedmc_node_last_message_timestamp", "fedmc_node_model_timestamp"
        }  # fmt: skip


class TestTally:
    def test_it_goes_on_after_a_restart(self, made):
        made.train()
        state = made.config.path("state")
        before = tally.read(state)
        with closing(Tally(state, lambda sealed: made.tallies[0].answer(sealed))) as again:
            again.answer_bytes(b"x")
        after = tally.read(state)
        assert after.since == before.since
        assert sum(one.answered for one in after.totals) == sum(one.answered for one in before.totals) > 0
        assert sum(one.refused for one in after.totals) == 1
        assert (state / tally.FILE).stat().st_mode & 0o777 == 0o600

    def test_only_the_last_requests_are_kept(self, made):
        for _ in range(tally.KEPT + 5):
            made.tallies[0].answer_bytes(b"x")
        with closing(sqlite3.connect(made.config.path("state") / tally.FILE)) as database:
            assert database.execute("SELECT count(*) FROM requests").fetchone()[0] == tally.KEPT
        assert len(made.seen()["sent"]["last"]) == tally.LISTED

    def test_a_broken_record_does_not_end_the_node(self, made, caplog):
        with closing(sqlite3.connect(made.config.path("state") / tally.FILE)) as database:
            database.execute("DROP TABLE requests")
        made.train()
        assert made.run.status()["state"] == "finished"
        assert caplog.text.count("will not show all messages") == 1

    def test_a_damaged_record_is_begun_anew(self, tmp_path, caplog):
        (tmp_path / tally.FILE).write_bytes(b"no database" * 100)
        with closing(Tally(tmp_path, lambda sealed: to_bytes(*encode_reply(Reply("", 0, 0, "", "failed"))))) as one:
            one.answer_bytes(b"x" * 200)
        assert "is damaged" in caplog.text
        assert [total.refused for total in tally.read(tmp_path).totals] == [1]


def test_fifty_viewers_share_one_look(made):
    peers = [socket.create_connection(("127.0.0.1", made.pages.port), timeout=10) for _ in range(50)]
    for peer in peers:
        peer.sendall(events_request(made.token))
        assert first_data(peer)["online"] is False
    looks, began = made.pages.feed.looks, time.monotonic()
    made.connection.on_online()
    for peer in peers:
        while not first_data(peer)["online"]:
            pass
        peer.close()
    assert made.pages.feed.looks - looks <= 2 + (time.monotonic() - began) / 0.1


class TestAccess:
    @pytest.mark.parametrize("path", ["/events", "/metrics", "/nothing", "/runs/first-id/report.html"])
    def test_everything_that_tells_something_needs_the_token(self, made, path):
        for token in ("", "wrong", made.token + "x"):
            assert made.ask(path, token)[0] == 401

    def test_the_rest_says_nothing(self, made):
        assert made.ask("/healthz") == (200, b"ok\n")
        status, body = made.ask("/")
        assert status == 200
        for word in ("north", "ratings.csv", made.token, "secagg"):
            assert word.encode() not in body

    def test_foreign_names_and_other_methods_are_refused(self, made):
        assert made.ask("/metrics", made.token, host="evil.example")[0] == 421
        assert made.ask("/metrics", made.token, method="POST")[0] == 405

    def test_the_token_is_the_nodes_own(self, made):
        path = made.config.path("operator.token")
        assert path.stat().st_mode & 0o777 == 0o600
        assert not made.server.path("operator.token").exists()


def test_every_metric_of_both_ends_by_privacy_mode(trained):
    """Nothing about users; measurements only where the claim allows them, budgets only where there are any."""
    server = operator_pages(trained.server, 0, Presence()).site.look()
    ends = parsed(server.metrics()), trained.metrics()
    dp = "dp" in trained.mode
    for found, base, measured, spent in zip(ends, (SERVER_METRICS, NODE_METRICS), MEASURED, SPENT, strict=True):
        assert found.keys() == base | (spent if dp else measured)
    for family in (*ends[0].values(), *ends[1].values()):
        assert family.documentation
        allowed = LABELS.get(family.name, {})
        for sample in family.samples:
            assert sample.labels.keys() == allowed.keys()
            assert all(value in allowed[label] for label, value in sample.labels.items())
    words = " ".join(family.name + family.documentation for found in ends for family in found.values())
    assert "user" not in words
    if dp:
        epsilon = values(ends[1], "fedmc_node_epsilon_spent")[()]
        assert 0 < epsilon <= 5.01
        assert values(ends[0], "fedmc_epsilon_spent")[()] == pytest.approx(epsilon, rel=0.01)
        assert values(ends[1], "fedmc_node_epsilon_allowed") == {(): 6.0}


def test_the_documentation_lists_every_metric():
    text = (Path(__file__).parents[1] / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(fedmc_[a-z_]+)", text, re.MULTILINE))
    known = set().union(SERVER_METRICS, NODE_METRICS, *MEASURED, *SPENT, NOT_HERE)
    counters = {"fedmc_bytes", "fedmc_node_bytes", "fedmc_node_messages"}
    assert listed == {f"{one}_total" if one in counters else one for one in known}


def test_a_models_rmse_is_measured_on_enough_held_out_ratings(made):
    made.train()
    held_out = made.opened[0].prepared.shards[0].test.tocoo()
    (version,) = models.versions(made.config)
    model = models.load(made.config.path("model.npz"))
    rows, columns = held_out.coords
    users, items = made.opened[0].prepared.ids[0], made.opened[0].prepared.catalogue.items
    error = model.predict(users[rows], items[columns]) - held_out.data
    assert version.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    few = models.HeldOut(users, items, (made.opened[0].prepared.shards[0].test)[:1])
    models.keep(made.config, "second", model, models.HeldOut(users[:1], items, few.ratings))
    assert {one.run: one.rmse is None for one in models.versions(made.config)} == {"second": True, "first-id": False}


def test_a_look_costs_little(trained):
    """At one look a second: within 2 % of a processor."""
    trained.look()
    began = time.process_time()
    for _ in range(20):
        trained.look()
    assert (time.process_time() - began) / 20 < 0.02


def open_page(browser, made, token, width=1400, scheme="light"):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(8000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{made.address}#{token}")
    return page, said, asked


@pytest.mark.slow
def test_in_a_browser(browser, made, tmp_path):
    made.connection.on_online()
    made.train()
    made.tallies[0].answer_bytes(b"not signed")
    with closing(sqlite3.connect(made.config.path("state") / "state.sqlite")) as database, database:
        database.execute("UPDATE refusals SET reason = ?", (EVIL,))
    shots = Path(os.environ.get("FEDMC_SCREENSHOTS", tmp_path))
    for width, scheme in ((400, "light"), (1400, "light"), (400, "dark"), (1400, "dark")):
        page, said, asked = open_page(browser, made, made.token, width, scheme)
        page.wait_for_selector("body[data-live=yes]")
        assert said == []
        assert [url for url in asked if not url.startswith((made.address, "data:"))] == []
        assert all(made.token not in url.partition("#")[0] for url in asked), "the token is in no request"
        assert page.url == made.address, "nor in the address bar"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('img, b, main script').length") == 0
        assert EVIL in page.inner_text("#refusals")
        assert "in use" in page.inner_text("#models")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light")
        page.screenshot(path=shots / f"node-{width}-{scheme}.png", full_page=True)
        if (width, scheme) != (1400, "dark"):
            page.close()
    made.connection.on_offline()
    page.wait_for_selector("#online:text-is('offline')")
    made.train("second")
    page.wait_for_selector("#runs :text('second-id')")
    page.wait_for_selector("#asked:text-is('finish 2')")
    assert said == []
    page.close()


@pytest.mark.slow
def test_a_wrong_token_in_a_browser(browser, made):
    page, _, _ = open_page(browser, made, "wrong-token")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "operator.token" in page.inner_text("#trouble")
    assert not page.is_visible("#data")
    page.close()
