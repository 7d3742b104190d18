"""A real Flower: SuperLink, gate, ServerApp and nodes in processes of their own on loopback, with TLS and keys."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")


from fedmc.algorithms import registry
from fedmc.federation.setup import founding, keys
from fedmc.model import load
from tests.command import fedmc
from tests.loopback import FEDMC, NAMES, Loopback

PRIVACY = ("plain", "secagg")
VARIANTS = ("fedmavg-printed", "fedprox")  # FedMAvg and FedAvg with another constant: the night's
ALGORITHMS = [
    pytest.param(name, marks=pytest.mark.nightly if name in VARIANTS else [])
    for name in registry.names()
    if name != "dp" and not registry.of_events(name)  # no simulation can repeat its noise; events: test_flower_events
]
PLACES = ("before", "committed", "sent", "replied")
pytestmark = pytest.mark.slow  # real processes, minutes of them
# Where a node dies, in which mode: CI tries the moment between commit and reply, the night all of them.
MOMENTS = [
    pytest.param(place, privacy, marks=[] if place == "committed" else pytest.mark.nightly)
    for place, privacy in itertools.product(PLACES, PRIVACY)
]


@pytest.mark.parametrize("privacy", PRIVACY)
def test_a_federation_ends_with_the_simulations_bits(all_up, privacy):
    run = f"first-{privacy}"
    done = all_up.train(run, 3, privacy=privacy)
    assert done.returncode == 0, done.stderr
    assert "finished, round 3 of 3" in done.stdout
    assert f"privacy {privacy}: " in done.stderr
    all_up.check_bits(run)
    V = all_up.last(run).checkpoint.broadcast.V
    for name in NAMES:  # each has its own model: all items, its own users only
        model = load(all_up.folder / name / "model.npz")
        assert model.V.tobytes() == V.tobytes()
        assert 0 < len(model.users) < 40
    said = all_up.fedmc("node", "recommend", all_up.folder / "north", model_user(all_up, "north"), "--n", 2)
    assert said.returncode == 0, said.stderr
    assert len(said.stdout.splitlines()) == 3


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_ends_with_the_simulations_bits(all_up, algorithm, privacy):
    option, run = "--update" if algorithm in registry.UPDATES else "--method", f"{algorithm}-{privacy}"
    words = option, algorithm, "--rank", 3, "--rounds", 2, "--measure-every", 2, "--privacy", privacy, "--run", run
    done = fedmc("federation", "train", all_up.folder / "server", *words)
    assert done.returncode == 0, done.stderr + all_up.log("server")
    assert all_up.run(run).plan().settings.make_algorithm().name == algorithm
    all_up.check_bits(run)


def model_user(loopback, name):
    return load(loopback.folder / name / "model.npz").users[0]


def test_status_says_who_is_there(all_up):
    said = all_up.fedmc("federation", "status", all_up.folder / "server").stdout
    assert "server: up" in said
    assert len(re.findall(r"online +last heard \d+ s ago", said)) == len(NAMES)


def call(loopback, path):
    context = ssl.create_default_context(cafile=str(loopback.folder / "north" / "ca.crt"))
    request = urllib.request.Request(f"https://127.0.0.1:{loopback.server.port}{path}", b"", method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_gate_lets_nobody_start_a_run(all_up):
    """And can fail: the same call is understood by the SuperLink behind it, on loopback."""
    for path in (
        "/v1/control/start-run",
        "/v1/control/list-runs",
        "/v1/runtime/get-nodes",
        "/docs",
        "/v1/fleet/../control/x",
    ):
        assert call(all_up, path) == 404
    assert call(all_up, "/v1/fleet/pull-messages") == 421  # no key of an organisation
    context = ssl.create_default_context(cafile=str(all_up.folder / "north" / "ca.crt"))
    address = f"https://127.0.0.1:{all_up.server.control_port}/v1/control/list-runs"
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(urllib.request.Request(address, b"", method="POST"), context=context, timeout=20)
    found.value.close()
    assert found.value.code == 415  # it wants a protobuf, and would take one from anybody


def copied(loopback, tmp_path):
    """North's folder without its state, as another machine would have it."""
    folder = tmp_path / "north"
    shutil.copytree(loopback.folder / "north", folder, ignore=shutil.ignore_patterns("state", "models", "*.log"))
    return folder


def test_an_unregistered_key_is_refused(all_up, tmp_path):
    folder = copied(all_up, tmp_path)
    (folder / "node.key").unlink()
    keys.write_private(folder / "node.key", keys.make_node_keys()[0])
    done = all_up.fedmc("node", "start", folder, timeout=60)
    assert done.returncode == 2
    assert "does not know this node's key" in done.stderr


def test_another_authority_is_refused(all_up, tmp_path):
    folder = copied(all_up, tmp_path)
    (folder / "ca.crt").write_bytes(keys.pem(keys.make_authority(10).certificate))
    done = all_up.fedmc("node", "start", folder, timeout=60)
    assert done.returncode == 2
    assert "was not made by the authority" in done.stderr


def wait_for_port(port, seconds=30):
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nobody listens on port {port}"
            time.sleep(0.02)


def test_an_expired_certificate_is_refused_on_both_sides(tmp_path):
    made = Loopback(tmp_path)
    authority = keys.load_authority(made.folder / "authority")
    founding.write_certificate(made.folder / "server", authority, ["127.0.0.1"], -3)
    done = made.fedmc("server", "start", made.folder / "server", timeout=60)
    assert done.returncode == 2
    assert "expired on" in done.stderr
    server = made.folder / "server"
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{made.server.port}", "-quiet"]
    command += ["-cert", str(server / "server.pem"), "-key", str(server / "server.key")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(made.server.port)
        done = made.fedmc("node", "start", made.folder / "north", timeout=60)
    finally:
        process.kill()
        process.wait(10)
    assert done.returncode == 2
    assert "its certificate has expired" in done.stderr


def test_a_second_process_of_an_organisation_is_refused(all_up):
    done = all_up.fedmc("node", "start", all_up.folder / "south", timeout=60)
    assert done.returncode == 2
    assert "in use by another process" in done.stderr


@pytest.mark.parametrize(("place", "privacy"), MOMENTS)
def test_a_killed_node_loses_and_doubles_nothing(all_up, place, privacy):
    """kill -9 before it computed, after it committed and before it replied, in the middle of its reply, after it."""
    all_up.kill("east")
    # A session has five replies: those of the start, of its measurement, and then one within the first round.
    number = {"sent": 13, "replied": 14}.get(place, 2) if privacy == "secagg" else 2
    all_up.start_node("east", f"{place}={number}")
    run = f"node-{place}-{privacy}"
    options = "--detach", "--patience", 60, "--measure-every", 3
    assert all_up.train(run, 3, *options, privacy=privacy).returncode == 0
    assert all_up.processes["east"].wait(120) == -signal.SIGKILL
    all_up.start_node("east")
    all_up.wait_until(run, "finished")
    all_up.check_bits(run)


def train_beyond(loopback, run, privacy):
    """Begin a run and wait until a round counts; there are more to come. Rounds in plain are short, so more of them."""
    rounds, reached = (8, 1) if privacy == "secagg" else (40, 2)
    assert loopback.train(run, rounds, "--detach", "--measure-every", rounds, privacy=privacy).returncode == 0
    loopback.wait_for_round(run, reached)


@pytest.mark.parametrize("privacy", PRIVACY)
def test_a_killed_server_app_is_resumed(all_up, privacy):
    run = f"app-{privacy}"
    train_beyond(all_up, run, privacy)
    for app in all_up.apps():
        arguments = Path(f"/proc/{app}/cmdline").read_bytes().split(b"\0")
        assert b"--token-file" in arguments  # any user of the machine can read the arguments
        assert b"--token" not in arguments
        os.kill(app, signal.SIGKILL)
    all_up.wait_until(run, "broken off", 30)
    done = all_up.resume(run)
    assert done.returncode == 0, done.stderr
    all_up.check_bits(run)


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("victim", ["superlink", "server"])
def test_a_killed_superlink_or_server_comes_back(all_up, victim, privacy):
    """The whole server, or Flower's part of it: nodes stay, wait, and find it again."""
    run = f"link-{victim}-{privacy}"
    train_beyond(all_up, run, privacy)
    if victim == "superlink":
        os.kill(all_up.link(), signal.SIGKILL)
        assert all_up.processes["server"].wait(30) == 1  # its supervisor would start it again
    else:
        all_up.kill("server")
    for app in all_up.apps():
        os.kill(app, signal.SIGKILL)
    all_up.start_server()
    all_up.wait_until(run, "broken off", 60)
    done = all_up.resume(run)
    assert done.returncode == 0, done.stdout + done.stderr + all_up.log("north")
    all_up.check_bits(run)
    assert all(all_up.processes[name].poll() is None for name in NAMES)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("privacy", PRIVACY)
def test_kills_at_twenty_random_moments(all_up, privacy):
    """Nodes, ServerApps and now and then the server, drawn by seed, at any moment of a run."""
    rng = random.Random(7)
    run, rounds, kills = f"random-{privacy}", 200 if privacy == "plain" else 24, 0
    assert all_up.train(run, rounds, "--detach", "--measure-every", rounds, privacy=privacy).returncode == 0
    all_up.wait_for_round(run, 1)
    while kills < 20:
        time.sleep(rng.uniform(0.2, 2.5))
        if all_up.run(run).status()["state"] == "finished":
            break
        victim = rng.choice([*NAMES, *NAMES, "app"] if kills != 10 else ["server"])
        if victim == "app":
            for app in all_up.apps():
                os.kill(app, signal.SIGKILL)
        else:
            all_up.kill(victim)
            all_up.start_server() if victim == "server" else all_up.start_node(victim, ready=None)
        kills += 1
        if victim in ("app", "server"):
            all_up.wait_until(run, "broken off", 60)
            assert (
                all_up.fedmc("federation", "resume", all_up.folder / "server", "--run", run, "--detach").returncode == 0
            )
            all_up.wait_until_begun(run)  # else there would be nobody to kill
    assert kills == 20
    all_up.wait_until(run, "finished", 300)
    all_up.check_bits(run)


def test_stop_and_resume(all_up):
    assert all_up.train("stopped", 300, "--detach").returncode == 0
    all_up.wait_for_round("stopped", 1)
    assert "stopped" in all_up.fedmc("federation", "stop", all_up.folder / "server").stdout
    assert all_up.run("stopped").status()["state"] == "stopped"
    assert all_up.last("stopped").checkpoint.number < 300
    refused = all_up.fedmc("federation", "stop", all_up.folder / "server")
    assert refused.returncode == 2
    assert "not going on" in refused.stderr


def test_a_late_node_is_left_out_and_welcome_again(all_up):
    all_up.kill("east")
    assert all_up.train("late", 1000, "--quorum", 2, "--detach", "--measure-every", 1000).returncode == 0
    all_up.wait_for_round("late", 2, 150)
    all_up.start_node("east")
    all_up.wait_for_round("late", all_up.last("late").checkpoint.number + 10, 150)
    assert all_up.fedmc("federation", "stop", all_up.folder / "server").returncode == 0
    absent, last = all_up.run("late").status()["absent"], all_up.last("late")
    assert {one["organisation"] for one in absent} == {"east"}
    assert last.counted == dict.fromkeys(range(len(NAMES)), last.checkpoint.number)


@pytest.mark.nightly
@pytest.mark.timeout(500)
def test_three_minutes_of_local_work_keep_the_lease_and_count(all_up):
    all_up.kill("east")
    all_up.start_node("east", "slow=185")
    assert all_up.train("slow", 1, "--detach", "--measure-every", "1").returncode == 0
    all_up.wait_until("slow", "finished", 300)
    all_up.check_bits("slow")
    assert all_up.log("east").count("online") >= 1
    assert all_up.run("slow").history()[-1]["seconds"] > 185
    all_up.kill("east")


def test_the_demo_in_one_command(tmp_path):
    words = [*FEDMC, "federation", "demo", "--rounds", "3", "--keep", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same_bits"] is True
    assert said["federation_rmse"] == pytest.approx(said["simulation_rmse"], rel=1e-12)
    assert 0.8 < said["federation_rmse"] < 1.0


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
def test_three_machines(tmp_path):
    """docs/how-to/deploy.md as a new user would follow it, in network namespaces with addresses of their own."""
    script = Path(__file__).parents[1] / "scripts" / "three-machines.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [script, tmp_path], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "three machines: done" in done.stdout
