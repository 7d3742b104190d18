"""What a person sees of a federation of real processes: who is there, pages, metrics and logs."""

from __future__ import annotations

import json
import re
import time
import urllib.request

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from prometheus_client.parser import text_string_to_metric_families

from tests.command import fedmc

pytestmark = pytest.mark.slow  # real processes

NOTICED = 10.0  # seconds after which a killed node is known to be gone


def states(loopback):
    """The state of each organisation, as `fedmc federation status` says it."""
    done = fedmc("federation", "status", loopback.folder / "server", "--json")
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout[done.stdout.index("{") :])["nodes"]
    return {name: one["state"] for name, one in nodes.items()}


def wait_for(wanted, seconds):
    """How long it took until `wanted()` was true."""
    began = time.monotonic()
    while not wanted():
        assert time.monotonic() - began < seconds
        time.sleep(0.1)
    return time.monotonic() - began


def online(loopback, name):
    """Whether the operator's page says that this organisation is online."""
    said = ask(loopback.server.folder, loopback.folder / "server.log")
    return sample(said, "fedmc_node_online", organisation=name)


def test_a_killed_node_is_offline_within_seconds(all_up):
    wait_for(lambda: set(states(all_up).values()) == {"online"}, 30)
    all_up.kill("east")
    wait_for(lambda: states(all_up)["east"] == "offline" and not online(all_up, "east"), NOTICED)
    assert {states(all_up)[name] for name in ("north", "south")} == {"online"}
    all_up.start_node("east")
    wait_for(lambda: states(all_up)["east"] == "online", 10)


def test_a_busy_node_is_at_work_and_a_killed_one_lost(all_up):
    """`north` works for 40 s; its heartbeats are rarer than the bound by which a dead one is noticed."""
    for name in ("north", "east"):
        all_up.stop(name)
        all_up.start_node(name, "slow=40")
    assert all_up.train("busy", 1, "--privacy", "secagg", "--detach", "--measure-every", 1).returncode == 0
    slow, run = {"north", "east"}, all_up.run("busy")
    wait_for(lambda: all(set(run.status().get("waiting", ())) == slow and not time.sleep(1) for _ in "123"), 60)
    assert all(states(all_up)[name] in ("at work", "late") for name in slow)
    all_up.kill("east")
    wait_for(lambda: states(all_up)["east"] == "lost", NOTICED)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert states(all_up)["north"] in ("at work", "late")
        time.sleep(0.5)
    assert all_up.fedmc("federation", "stop", all_up.folder / "server").returncode == 0
    all_up.kill("north")


def ask(folder, log, path="/metrics"):
    """What the page says whose address is in this log, to who holds the folder's token."""
    address = re.findall(r"page: (http://127\.0\.0\.1:\d+)/", log.read_text(errors="replace"))[-1]
    token = (folder / "operator.token").read_text().strip()
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def sample(text, name, **labels):
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return next(one.value for one in families[name].samples if labels.items() <= one.labels.items())


def test_metrics_of_a_run_and_no_token_in_a_log(all_up):
    """Server and nodes are watched with their tokens while they train; no file that holds a log holds a token."""
    done = all_up.train("watched", 3, privacy="secagg")
    assert done.returncode == 0, done.stderr
    server, north = (all_up.folder / name for name in ("server", "north"))
    said = ask(server, all_up.folder / "server.log")
    assert sample(said, "fedmc_run_state", state="finished") == 1
    assert sample(said, "fedmc_round") == sample(said, "fedmc_rounds_planned") == 3
    assert [sample(said, "fedmc_node_online", organisation=name) for name in all_up.names] == [1, 1, 1]
    said = ask(north, all_up.folder / "north.log")
    assert sample(said, "fedmc_node_connected") == 1
    assert sample(said, "fedmc_node_messages", task="round", outcome="answered") >= 3
    assert sample(said, "fedmc_node_bytes", direction="up") > 0
    assert ask(north, all_up.folder / "north.log", "/healthz") == "ok\n"
    tokens = {path.read_bytes().strip() for path in all_up.folder.glob("*/operator.token")}
    assert len(tokens) == 1 + len(all_up.names)
    logs = [path for path in all_up.folder.rglob("*.log*") if path.is_file()]
    assert {"server.log", "north.log", "run.log", "superlink.log"} <= {path.name for path in logs}
    for path in (*logs, *all_up.run("watched").path.iterdir()):
        assert not [one for one in tokens if path.is_file() and one in path.read_bytes()], path


def test_logs_in_json(all_up):
    """`log_format` at both ends: each line that a process adds is an object; a round's numbers are fields."""
    names = ("server", "north")
    places = {name: all_up.folder / f"{name}.log" for name in names}
    for name in names:
        config = all_up.folder / name / "config.toml"
        text = config.read_text()
        config.write_text(re.sub(r"^(# )?log_format = .*$", 'log_format = "json"', text, flags=re.MULTILINE))
        assert 'log_format = "json"' in config.read_text()
        all_up.stop(name)
    began = {name: path.stat().st_size for name, path in places.items()}
    all_up.start_missing()
    assert all_up.train("in-json", 2, privacy="secagg").returncode == 0
    for name in names:
        all_up.stop(name)
    lines = {name: objects(path.read_bytes()[began[name] :]) for name, path in places.items()}
    lines["run"] = objects((all_up.run("in-json").path / "run.log").read_bytes())
    assert any("ready: nodes of" in one["message"] for one in lines["server"])
    assert [(one["round"], one["rounds"], one["took_part"]) for one in lines["run"] if "took_part" in one] == [
        (0, 2, 0),
        (1, 2, 3),
        (2, 2, 3),
    ]
    rounds = [one for one in lines["north"] if one.get("task") == "round"]
    assert {one["round"] for one in rounds} == {1, 2}
    assert all(one["run"].startswith("in-json-") and one["seconds"] >= 0 for one in rounds)
    for name in names:
        config = all_up.folder / name / "config.toml"
        config.write_text(config.read_text().replace('log_format = "json"', 'log_format = "text"'))


def objects(content):
    found = [json.loads(line) for line in content.decode().splitlines()]
    assert all(list(one)[:4] == ["time", "level", "logger", "message"] for one in found)
    assert found
    return found
