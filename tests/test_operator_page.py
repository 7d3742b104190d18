"""The operator's page: who may read it, what it says and what it must not, for many viewers at once, in a browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from prometheus_client.parser import text_string_to_metric_families

from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, InputError
from fedmc.federation.pages import token as tokens
from fedmc.federation.pages.history import POINTS, History
from fedmc.federation.pages.http import Limits
from fedmc.federation.pages.operator import operator_pages
from fedmc.federation.presence import BREAK, SILENT, Presence, Seen, from_json
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.setup import founding, layout

NAMES = ("north", "south", "east")
METRICS = {
    "fedmc_node_online", "fedmc_certificate_expiry_seconds", "fedmc_round", "fedmc_rounds_planned", "fedmc_run_state",
    "fedmc_bytes", "fedmc_rmse", "fedmc_ndcg", "fedmc_epsilon_spent", "fedmc_last_round_timestamp",
}  # fmt: skip
EVIL = "<img src=x onerror=alert(1)>"


class World:
    """A server's folder with one run, and its page."""

    def __init__(self, folder, privacy="secagg", limits=None):
        founding.init(folder, NAMES, founding.Address("127.0.0.1"))
        self.config = layout.load_server(folder / "server")
        self.presence = Presence()
        for name in NAMES[:2]:
            self.presence.hear(name)
        self.run = self.new_run("first", privacy)
        self.lock = None
        self.limits = limits or Limits(pace=0.1)
        self.pages = operator_pages(self.config, 0, self.presence, self.limits)
        self.address = self.pages.start()
        self.token = self.pages.site.token

    def new_run(self, name, privacy="secagg", organisations=NAMES):
        cohort = {"min_cohort": 3} if "secagg" in privacy else {}
        settings = Settings.preset("fast", rank=3, active=3, privacy=privacy, **cohort)
        plan = RunPlan(f"{name}-id", settings, list(organisations), [1, 2, 3], "0", 10, 20, 1, 60.0, 3)
        folder = RunFolder(self.config.runs / name)
        folder.write_plan(plan)
        folder.plan()
        return folder

    def add_rounds(self, first, last, **more):
        with open(self.run.path / "history.jsonl", "a") as file:
            for number in range(first, last + 1):
                line = {"number": number, "seconds": 2.0, "bytes_up": 1000, "bytes_down": 3000, "participants": [0, 1]}
                file.write(json.dumps(line | {"objective": 1.0, "test_rmse": 0.8 + 1 / (1 + number)} | more) + "\n")

    def running(self, **words):
        """As while a process conducts the run."""
        self.lock = self.run.lock()
        self.lock.__enter__()
        self.run.say(
            **{"state": "running", "round": 3, "rounds": 20, "online": [], "waiting": [], "absent": []} | words
        )

    def ask(self, path, token="", method="GET", host=None, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.pages.port, timeout=10)
        try:
            headers |= {"Authorization": f"Bearer {token}"} if token else {}
            headers |= {"Host": host} if host else {}
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict((k.lower(), v) for k, v in answer.getheaders()), answer.read()
        finally:
            connection.close()

    def seen(self):
        """What a viewer is told first."""
        with socket.create_connection(("127.0.0.1", self.pages.port), timeout=10) as peer:
            peer.sendall(events_request(self.token))
            return first_data(peer)

    def end(self):
        self.pages.end()
        if self.lock is not None:
            self.lock.__exit__(None, None, None)


def events_request(token):
    return f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def first_data(peer):
    got = b""
    while not (found := re.search(rb"data: (\{.*\})\n\n", got)):
        piece = peer.recv(65536)
        assert piece, got
        got += piece
    return json.loads(found[1])


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "made")
    yield made
    made.end()


class TestAccess:
    @pytest.mark.parametrize("path", ["/events", "/metrics", "/runs/first/report.html", "/nothing", "/operator.token"])
    def test_everything_that_tells_something_needs_the_token(self, world, path):
        (world.run.path / "report.html").write_text("the report")
        for shown in ("", "wrong", world.token[:-1], world.token + "x", "é"):
            status, headers, body = world.ask(path, shown.encode().decode("latin-1"))
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert b"operator.token" in body
            assert world.token.encode() not in body
        assert world.ask(f"{path}?token={world.token}&ticket={world.token}")[0] == 401, "not in an address"

    @pytest.mark.parametrize("path", ["/", "/healthz"])
    def test_the_rest_says_nothing(self, world, path):
        world.add_rounds(0, 3)
        status, _, body = world.ask(path)
        assert status == 200
        for word in (*NAMES, "first", world.token, "secagg", str(world.config.folder)):
            assert not re.search(rf"\b{re.escape(word)}\b".encode(), body)

    @pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/events", "/nothing"])
    def test_headers(self, world, path):
        headers = world.ask(path, world.token, "HEAD")[1]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
        assert "unsafe" not in policy
        assert not any(name.startswith("access-control") for name in headers)
        assert world.token not in str(headers)

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
    def test_it_can_be_read_only(self, world, method):
        status, headers, _ = world.ask("/metrics", world.token, method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    def test_a_head_has_no_body(self, world):
        for path in ("/", "/healthz", "/metrics", "/events"):
            assert world.ask(path, world.token, "HEAD")[::2] == (200, b"")

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "a@127.0.0.1"]
    )
    def test_a_foreign_name_is_refused(self, world, host):
        """DNS rebinding: a page of another site whose name leads here."""
        for path in ("/", "/metrics"):
            assert world.ask(path, world.token, host=host)[0] == 421

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:9000", "LOCALHOST:1"])
    def test_a_loopback_name_is_not(self, world, host):
        assert world.ask("/metrics", world.token, host=host)[0] == 200

    def test_only_loopback_listens(self, world):
        assert world.address == f"http://127.0.0.1:{world.pages.port}/"
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex(("127.0.0.2", world.pages.port)) != 0

    @pytest.mark.parametrize(
        "raw",
        [
            b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\r\n\r\n",
        ],
    )
    def test_odd_requests_are_refused(self, world, raw):
        assert said_to(world, raw).startswith(b"HTTP/1.1 400")

    def test_a_large_header_is_refused(self, world):
        raw = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
        assert said_to(world, raw).startswith(b"HTTP/1.1 431")


def said_to(world, raw):
    with socket.create_connection(("127.0.0.1", world.pages.port), timeout=10) as peer:
        peer.sendall(raw)
        got = b""
        while piece := peer.recv(65536):
            got += piece
            if b"\r\n\r\n" in got:
                break
        return got


class TestToken:
    def test_it_is_made_once_and_private(self, tmp_path):
        token = tokens.make_or_load(tmp_path)
        assert len(token) >= 40
        assert (tmp_path / "operator.token").stat().st_mode & 0o777 == 0o600
        assert tokens.make_or_load(tmp_path) == token

    def test_one_that_others_can_read_is_refused(self, tmp_path):
        tokens.make_or_load(tmp_path)
        (tmp_path / "operator.token").chmod(0o644)
        with pytest.raises(DataError, match=r"mode 644.*chmod 600"):
            tokens.make_or_load(tmp_path)

    def test_an_empty_one_is_refused(self, tmp_path):
        (tmp_path / "operator.token").touch(0o600)
        with pytest.raises(DataError, match="delete it"):
            tokens.make_or_load(tmp_path)

    def test_a_ticket_opens_one_report_for_some_minutes(self):
        ticket = tokens.ticket("secret", "first", 10_000)
        assert tokens.admits(ticket, "secret", "first", 10_000)
        assert tokens.admits(ticket, "secret", "first", 10_000 + tokens.SPAN)
        assert not tokens.admits(ticket, "secret", "first", 10_000 + 2 * tokens.SPAN)
        assert not tokens.admits(ticket, "secret", "second", 10_000)
        assert not tokens.admits("", "secret", "first", 10_000)


class TestReports:
    def test_the_link_of_the_page_opens_it(self, world):
        (world.run.path / "report.html").write_text("<p>the report")
        link = world.seen()["runs"][0]["report"]
        assert world.token not in link
        status, headers, body = world.ask(link)
        assert (status, body) == (200, b"<p>the report")
        assert "sandbox allow-scripts;" in headers["content-security-policy"], "its scripts cannot read the token"
        assert world.ask("/runs/first/report.html", world.token)[0] == 200
        assert world.ask(link.replace("first", "second"))[0] == 401

    @pytest.mark.parametrize(
        "path",
        [
            "/runs/../report.html", "/runs/%2e%2e/report.html", "/runs/..%2f..%2fserver.key/report.html",
            "/runs/first/../../operator.token", "/runs/first/plan.json", "/runs//report.html", "/runs/none/report.html",
            "/runs/first/report.html/", "/runs/first\\..\\x/report.html", "/runs/first%00/report.html",
        ],
    )  # fmt: skip
    def test_nothing_else_is_read(self, world, path):
        (world.config.folder / "report.html").write_text("outside")
        assert world.ask(path, world.token)[0] == 404

    def test_a_link_that_leads_out_is_not_followed(self, world):
        (world.run.path / "report.html").symlink_to(world.config.path("server.key"))
        assert world.ask("/runs/first/report.html", world.token)[0] == 404


class TestContent:
    def test_a_run(self, world):
        world.add_rounds(0, 5)
        world.running(
            round=5, online=["north", "south"], waiting=["south", "east"],
            since={"south": time.time() - 3, "east": time.time() - 100},
            absent=[{"client": 2, "round": 4, "why": "it did not answer", "organisation": "east"}],
        )  # fmt: skip
        seen = world.seen()
        run = seen["run"]
        assert (run["name"], run["state"], run["round"], run["rounds"]) == ("first", "running", 5, 20)
        assert run["seconds_left"] == 30.0
        assert (run["bytes_up"], run["bytes_down"]) == (6000, 18000)
        (curve,) = run["curves"]
        assert curve["label"] == "test RMSE"
        assert curve["points"][-1] == [5, pytest.approx(0.8 + 1 / 6)]
        assert run["claim"].startswith("privacy secagg")
        assert "3 organisations" in run["promise"]
        assert run["errors"] == [{"round": 4, "organisation": "east", "why": "it did not answer"}]
        assert [one["state"] for one in seen["organisations"]] == ["online", "at work", "lost"]
        assert seen["runs"][0]["report"] == ""

    def test_the_budget_is_known_before_anything_is_spent(self, tmp_path):
        """Of a run with differential privacy, the page never says that it is off."""
        for mode, expected in (("dp", 10.0), ("secagg", None)):
            made = World(tmp_path / mode, privacy=mode)
            try:
                assert (made.seen()["run"]["budget"], made.seen()["run"]["epsilon"]) == (expected, None)
            finally:
                made.end()

    def test_a_slow_one_is_late(self, world):
        world.add_rounds(0, 5)
        world.running(online=["south"], waiting=["south"], since={"south": time.time() - 11})
        assert world.seen()["organisations"][1]["state"] == "late"

    def test_who_must_approve(self, world):
        world.running(awaiting_approval=["east"])
        assert world.seen()["organisations"][2]["note"] == "must approve the run"

    def test_between_runs_the_gateway_knows_who_is_there(self, world):
        world.run.say(state="finished", round=20)
        world.presence._seen["south"] = Seen(heard=time.time() - 500)
        assert [one["state"] for one in world.seen()["organisations"]] == ["online", "offline", "unknown"]

    def test_whose_node_is_there(self):
        """A node of fedmc is gone soon after its last connection; a stock SuperNode after a minute's silence."""
        now, seen = time.time(), Presence()
        assert seen.there("north") is None
        assert seen.there("north", now + SILENT + 1) is False
        seen.hear("north")
        assert seen.there("north", now + SILENT - 1) is True, "a stock SuperNode has no connection between its calls"
        seen.stays("north", True)
        seen.connected("north", 2)
        seen.connected("north", 1)
        assert seen.there("north", now + SILENT - 1) is True, "a node at work calls rarely"
        seen.connected("north", 0)
        assert seen.there("north", now + BREAK - 1) is True, "it may connect again"
        assert seen.there("north", now + BREAK + 1) is False
        assert from_json(json.loads(json.dumps(seen.as_json()))).there("north", now + BREAK + 1) is False
        seen.connected("north", 1)
        assert seen.there("north", now + SILENT - 1) is True
        assert seen.there("north", now + SILENT + 1) is False, "its machine lost power: nobody closed the connection"

    def test_a_run_whose_process_died(self, world):
        world.run.say(state="running", round=2)
        assert world.seen()["run"]["state"] == "broken off"

    def test_without_a_run(self, world):
        shutil.rmtree(world.run.path)
        assert world.seen()["run"] is None
        assert world.ask("/metrics", world.token)[0] == 200

    def test_nothing_but_what_is_listed(self, world):
        """A status and history with more than they have now: whatever is added later is not shown by itself."""
        world.add_rounds(0, 2, users=["anna"], losses={"north": 0.123456789}, ratings=987654321)
        world.running(online=["north"], users=["anna"], counts={"north": 987654321}, losses=[0.123456789])
        text = json.dumps(world.seen()) + world.ask("/metrics", world.token)[2].decode()
        for word in ("anna", "987654321", "0.123456789", "participants", "losses"):
            assert word not in text


class TestHostileFiles:
    @pytest.mark.parametrize(
        "status",
        [
            b"", b"[]", b"null", b"{", b'"running"', b"\xff\xfe", b"[" * 100_000, b'{"state": ' + b"1" * 5000 + b"}",
            b'{"state": {}, "round": "x", "online": 5, "waiting": {"a": 1}, "absent": "abc", "since": [1]}',
            b'{"state": "running", "round": 1e400, "online": [[]], "absent": [5, {}, {"organisation": []}]}',
            b'{"state": "failed", "round": -5, "why": ["x"], "since": {"north": NaN}, "has_model": [{}]}',
            b'{"state": "failed", "why": "' + b"x" * 2_000_000 + b'"}',
        ],
        ids=range(12),
    )  # fmt: skip
    def test_a_status(self, world, status):
        (world.run.path / "status.json").write_bytes(status)
        (world.run.path / "history.jsonl").write_bytes(
            status + b"\n" + b'{"number": 1, "test_rmse": NaN, "seconds": []}\n'
        )
        seen = world.seen()
        assert seen["run"]["name"] == "first"
        assert len(json.dumps(seen)) < 20_000
        assert world.ask("/metrics", world.token)[0] == 200

    def test_a_plan(self, world):
        (world.run.path / "plan.json").write_bytes(b'{"settings": {"algorithm": "<script>"}}')
        seen = world.seen()
        assert seen["run"] is None
        assert seen["runs"][0]["name"] == "first"

    def test_a_huge_history_is_read_in_parts_and_drawn_with_few_points(self, tmp_path):
        path = tmp_path / "history.jsonl"
        line = {"seconds": 1.0, "bytes_up": 1, "bytes_down": 2, "test_rmse": 1.0, "more": "x" * 400}
        with open(path, "w") as file:
            for number in range(30_000):
                file.write(json.dumps({"number": number} | line) + "\n")
        history, longest = History(path), 0.0
        while history.rounds < 29_999:
            began = time.perf_counter()
            history.look()
            longest = max(longest, time.perf_counter() - began)
        assert longest < 1.0
        assert history.bytes_up == 30_000
        (curve,) = history.shown()
        assert len(curve.points) <= POINTS
        assert (curve.points[0][0], curve.points[-1][0]) == (0, 29_999)

    def test_a_history_that_grows_or_is_replaced(self, tmp_path):
        path = tmp_path / "history.jsonl"
        history = History(path)
        history.look()
        path.write_text('{"number": 1, "bytes_up": 5}\n{"number": 2, "bytes')
        history.look()
        assert (history.rounds, history.bytes_up) == (1, 5)
        path.write_text('{"number": 1, "bytes_up": 5}\n{"number": 2, "bytes_up": 7}\n')
        history.look()
        assert (history.rounds, history.bytes_up) == (2, 12)
        path.write_text('{"number": 1, "bytes_up": 3}\n')
        history.look()
        assert (history.rounds, history.bytes_up) == (1, 3)


def test_metrics(world):
    """Every name; nothing about users, and of an organisation only whether it is online."""
    world.add_rounds(0, 5, epsilon=1.5, test_ndcg_20=0.25)
    world.running(round=5, online=["north"])
    status, headers, body = world.ask("/metrics", world.token)
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert families.keys() == METRICS
    for family in families.values():
        labels = {label for sample in family.samples for label in sample.labels}
        assert (
            labels <= {"organisation"}
            if family.name == "fedmc_node_online"
            else labels <= {"state", "direction", "part"}
        )
        assert family.documentation
    values = {name: [(sample.labels, sample.value) for sample in family.samples] for name, family in families.items()}
    assert values["fedmc_round"] == [({}, 5.0)]
    assert values["fedmc_rounds_planned"] == [({}, 20.0)]
    assert values["fedmc_node_online"] == [({"organisation": one}, float(one != "east")) for one in NAMES]
    assert [labels["state"] for labels, value in values["fedmc_run_state"] if value] == ["running"]
    assert values["fedmc_bytes"] == [({"direction": "up"}, 6000.0), ({"direction": "down"}, 18000.0)]
    assert values["fedmc_rmse"] == [({"part": "test"}, pytest.approx(0.8 + 1 / 6))]
    assert values["fedmc_ndcg"] == [({"part": "test"}, 0.25)]
    assert values["fedmc_epsilon_spent"] == [({}, 1.5)]
    assert values["fedmc_certificate_expiry_seconds"][0][1] > time.time() + 300 * 86400
    assert abs(values["fedmc_last_round_timestamp"][0][1] - time.time()) < 60


class TestManyViewers:
    def test_fifty_see_a_change_and_share_one_look(self, world):
        world.add_rounds(0, 1)
        world.running(round=1)

        async def watch(begun):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.pages.port)
            writer.write(events_request(world.token))
            async with asyncio.timeout(10):
                await reader.readuntil(b"data: ")
                begun.release()
                while b'"round": 2' not in await reader.readuntil(b"\n\n"):
                    pass
            writer.close()

        async def everybody():
            begun = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(watch(begun)) for _ in range(60)]
            for _ in tasks:
                await begun.acquire()
            assert world.pages.feed.viewers == 60
            world.run.say(round=2)
            await asyncio.gather(*tasks)

        began = time.monotonic()
        asyncio.run(everybody())
        assert world.pages.feed.looks <= 2 + (time.monotonic() - began) / world.limits.pace

    def test_nobody_looks_while_nobody_watches(self, world):
        world.seen()
        until = time.monotonic() + 5
        while world.pages.feed.viewers:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.2)
        looks = world.pages.feed.looks
        time.sleep(0.5)
        assert world.pages.feed.looks == looks

    def test_a_look_costs_little(self, world):
        """At one look a second: within 2 % of a processor."""
        world.add_rounds(0, 2000)
        world.running(round=20)
        look = world.pages.site.look
        look()
        began = time.process_time()
        for number in range(20):
            world.add_rounds(2001 + number, 2001 + number)
            look()
        assert (time.process_time() - began) / 20 < 0.02

    def test_slow_ones_leave_and_viewers_stay(self, tmp_path):
        """Slowloris: half a header costs a place until its deadline, or until somebody needs it."""
        world = World(tmp_path / "made", limits=Limits(connections=8, viewers=4, header=1.0, pace=0.1))
        try:
            viewers = [socket.create_connection(("127.0.0.1", world.pages.port), timeout=5) for _ in range(4)]
            for one in viewers:
                one.sendall(events_request(world.token))
                first_data(one)
            assert world.ask("/events", world.token)[0] == 503
            slow = [socket.create_connection(("127.0.0.1", world.pages.port), timeout=5) for _ in range(30)]
            for one in slow:
                one.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert world.ask("/healthz")[0] == 200
            assert b"408" in slow[-1].recv(100), "the others had to leave before"
            world.run.say(round=7)
            for one in viewers:
                assert first_data(one)["run"]["round"] == 7
            for one in (*viewers, *slow):
                one.close()
        finally:
            world.end()


def test_a_taken_port_is_an_error_with_its_cure(world):
    with pytest.raises(InputError, match="--page PORT or page_port"):
        operator_pages(world.config, world.pages.port, Presence()).start()


def test_a_page_port_out_of_bounds(tmp_path):
    founding.init(tmp_path / "made", NAMES, founding.Address("127.0.0.1"))
    path = tmp_path / "made" / "server" / "config.toml"
    path.write_text(path.read_text().replace("page_port = 0", "page_port = 70000"))
    with pytest.raises(InputError, match="page_port"):
        layout.load_server(tmp_path / "made" / "server")


def test_since_when_is_in_the_status(world):
    world.running()
    world.run.on_look({0, 1}, {1, 2})
    first = world.run.status()["since"]
    world.run.on_look({0, 1}, {1})
    second = world.run.status()["since"]
    assert {name: first[name] == second[name] for name in NAMES} == {"north": True, "south": True, "east": False}


def open_page(browser, world, token, width=1400, scheme="light"):
    """The page, with everything it complained of and everything it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(8000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{world.address}#{token}")
    return page, said, asked


def fill(world):
    """A run with hostile words wherever words may come from."""
    world.add_rounds(0, 5, test_ndcg_20=0.3)
    (world.run.path / "report.html").write_text("<!doctype html><title>report</title><p>the report")
    absent = [{"client": 2, "round": 4, "why": f"it did not answer {EVIL} " + "x" * 300, "organisation": "east"}]
    world.running(
        round=5, online=["north", "south"], waiting=["south", "east"], why=EVIL, absent=absent,
        since={"south": time.time() - 3, "east": time.time() - 100},
    )  # fmt: skip
    old = world.new_run("a <b>bold<b> run")
    os.utime(old.path / "plan.json", (1, 1))


@pytest.mark.slow
def test_in_a_browser(browser, world, tmp_path):
    fill(world)
    shots = Path(os.environ.get("FEDMC_SCREENSHOTS", tmp_path))
    for width, scheme in ((400, "light"), (1400, "light"), (400, "dark"), (1400, "dark")):
        page, said, asked = open_page(browser, world, world.token, width, scheme)
        page.wait_for_selector("body[data-live=yes]")
        page.wait_for_selector("svg .curve")
        assert said == []
        assert [url for url in asked if not url.startswith((world.address, "data:"))] == []
        assert all(world.token not in url.partition("#")[0] for url in asked), "the token is in no request"
        assert page.url == world.address, "nor in the address bar"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('img, b, main script').length") == 0
        assert EVIL in page.inner_text("#why")
        assert page.inner_text("#epsilon") == "off"
        assert "lower is better" in page.inner_text("#curves")
        claim = page.inner_text("#claim")
        assert (claim[:1], claim[-1:]) == ("P", "."), "a sentence"
        assert "a <b>bold<b> run" in page.inner_text("#runs")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light")
        page.screenshot(path=shots / f"operator-{width}-{scheme}.png", full_page=True)
        if (width, scheme) != (1400, "dark"):
            page.close()
    world.add_rounds(6, 6, test_ndcg_20=0.31)
    world.presence.hear("east")
    world.run.say(round=6, online=["north", "south", "east"], waiting=[])
    page.wait_for_selector("#round:text-is('6 of 20')")
    page.wait_for_selector("#curves :text('in round 6')")
    assert page.locator("#organisations .good").count() == 3
    with page.expect_popup() as opened:
        page.click("#runs a")
    assert opened.value.inner_text("p") == "the report"
    assert world.token not in opened.value.url
    page.reload()
    page.wait_for_selector("body[data-live=yes]")
    assert said == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_jumps(browser, world, width):
    """From the empty page to the first data and the next: without screenshots, which resize the window."""
    fill(world)
    page, _, _ = open_page(browser, world, world.token, width)
    page.wait_for_selector("svg .curve")
    world.add_rounds(6, 6, test_ndcg_20=0.31)
    world.run.say(round=6)
    page.wait_for_selector("#curves :text('in round 6')")
    found = page.evaluate("""() => new Promise(done => {
        let sum = 0;
        const add = list => { for (const one of list.getEntries()) sum += one.value; };
        new PerformanceObserver(add).observe({type: 'layout-shift', buffered: true});
        setTimeout(() => done(sum), 300);
    })""")
    assert found < 0.05
    page.close()


@pytest.mark.slow
def test_refusals_in_a_browser(browser, world):
    """A wrong token, and a server that ends: words that say what to do."""
    page, _, _ = open_page(browser, world, "wrong-token")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "operator.token" in page.inner_text("#trouble")
    assert page.inner_text("#link") == "not connected"
    page.close()
    page, _, _ = open_page(browser, world, world.token)
    page.wait_for_selector("body[data-live=yes]")
    world.pages.end()
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Trying again" in page.inner_text("#trouble")
    page.close()
