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
from tests.loopback import Loopback

pytestmark = pytest.mark.slow  # real processes

NOTICED = 10.0  # seconds after which a killed node is known to be gone


IN_JSON = ("server", "north")  # the others log text


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    """The shared federation, with logs in JSON at one node and at the server."""
    made = Loopback(tmp_path_factory.mktemp("watched"))
    for name in IN_JSON:
        config = made.folder / name / "config.toml"
        text = re.sub(r"^(# )?log_format = .*$", 'log_format = "json"', config.read_text(), flags=re.MULTILINE)
        config.write_text(text)
    try:
        made.start_all()
        yield made
    finally:
        made.end()


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


def online(loopback, name):
    """Whether the operator's page says that this organisation is online."""
    said = ask(loopback.server.folder, loopback.folder / "server.log")
    return sample(said, "fedmc_node_online", organisation=name)


def check_json(loopback, run):
    """Each line is an object; a round's numbers are fields."""
    server, north = (objects(loopback.folder / f"{name}.log") for name in IN_JSON)
    lines = objects(loopback.run(run).path / "run.log")
    assert any("ready: nodes of" in one["message"] for one in server)
    assert [(one["round"], one["rounds"], one["took_part"]) for one in lines if "took_part" in one] == [
        (0, 3, 0), (1, 3, 3), (2, 3, 3), (3, 3, 3)
    ]  # fmt: skip
    rounds = [one for one in north if one.get("task") == "round"]
    assert {one["round"] for one in rounds} == {1, 2, 3}
    assert all(one["run"].startswith(f"{run}-") and one["seconds"] >= 0 for one in rounds)
    assert not (loopback.folder / "south.log").read_text().startswith("{")


def objects(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(list(one)[:4] == ["time", "level", "logger", "message"] for one in found)
    assert found
    return found


def test_a_run_in_metrics_and_logs(all_up):
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
    check_json(all_up, "watched")


def test_a_killed_node_is_offline_within_seconds(all_up):
    wait_for(lambda: set(states(all_up).values()) == {"online"}, 30)
    all_up.kill("east")
    wait_for(lambda: states(all_up)["east"] == "offline" and not online(all_up, "east"), NOTICED)
    assert {states(all_up)[name] for name in ("north", "south")} == {"online"}
    all_up.start_node("east")
    wait_for(lambda: states(all_up)["east"] == "online", 10)


def test_a_busy_node_is_at_work_and_a_killed_one_lost(all_up):
    """`east` works for 40 s and calls more rarely than the bound by which a dead one is noticed. Then it dies."""
    all_up.kill("east")
    all_up.start_node("east", "slow=40")
    assert all_up.train("busy", 1, "--detach", "--measure-every", 1, privacy="secagg").returncode == 0
    run = all_up.run("busy")
    wait_for(lambda: all(run.status().get("waiting") == ["east"] and not time.sleep(1) for _ in "123"), 60)
    until = time.monotonic() + NOTICED
    while time.monotonic() < until:
        assert states(all_up)["east"] in ("at work", "late")
        time.sleep(0.5)
    all_up.kill("east")
    wait_for(lambda: states(all_up)["east"] == "lost", NOTICED)
    assert {states(all_up)[name] for name in ("north", "south")} == {"online"}
    assert all_up.fedmc("federation", "stop", all_up.folder / "server").returncode == 0
