"""What a person sees of a federation of real processes: who is there, pages, metrics and logs."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

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


def test_a_killed_node_is_offline_within_seconds(all_up):
    wait_for(lambda: set(states(all_up).values()) == {"online"}, 30)
    all_up.kill("east")
    wait_for(lambda: states(all_up)["east"] == "offline", NOTICED)
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
