"""docs/how-to/recover.md with real processes: the server moves to another machine, and disks are lost."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.federation.flower.superlink import free_port
from fedmc.federation.setup import keys, layout, members
from tests.loopback import FEDMC, NAMES

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # three federations' worth of processes
NORTH = NAMES[0]
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs openssh-client")


def ok(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def set_entry(path, name, value):
    text, count = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", path.read_text())
    assert count == 1
    path.write_text(text)


def restart_all(made):
    for name in [*made.names, "server"]:
        if made.alive(name):
            made.stop(name)
    made.start_all()


def test_the_server_moves_in_the_middle_of_a_run(all_up):
    """Stop the run and the server, copy the folder, enter the new address, start, resume: the bits are the same."""
    made = all_up
    ok(made.train("moving", 40, "--detach", privacy="secagg"))
    made.wait_for_round("moving", 3)
    ok(made.fedmc("federation", "stop", made.folder / "server"))
    made.stop("server")
    old, new = made.folder / "server", made.folder / "elsewhere" / "server"
    shutil.copytree(old, new, symlinks=True)  # as `cp -a` does
    old.rename(made.folder / "switched-off")
    port = free_port()
    set_entry(new / "config.toml", "port", port)
    set_entry(new / "config.toml", "host", '"localhost"')
    ok(made.fedmc("federation", "renew", made.folder / "authority", new))  # the certificate names the new host
    for name in NAMES:
        made.stop(name)
        set_entry(made.folder / name / "config.toml", "server", f'"localhost:{port}"')
    made.server = layout.load_server(new)
    made.start("server", [*FEDMC, "server", "start", new], r"\bready\b")
    for name in NAMES:
        made.start_node(name)
    ok(made.fedmc("federation", "resume", new, "--run", "moving"))
    made.check_bits("moving")
    assert (new / "runs" / "moving" / "report.html").is_file()
    made.stop("server")
    for name in NAMES:
        made.stop(name)
        set_entry(made.folder / name / "config.toml", "server", f'"127.0.0.1:{port}"')
    shutil.rmtree(made.folder / "switched-off")
    new.rename(old)  # for the tests after this one
    made.server = layout.load_server(old)
    made.start_all()


def test_a_node_s_disk_is_lost_with_a_backup_from_before_the_last_runs(all_up):
    """Runs that it had begun since are refused there; a new one goes on from the last finished one."""
    made = all_up
    ok(made.train("before", 3, privacy="secagg"))
    made.stop(NORTH)
    shutil.copytree(made.folder / NORTH, made.folder / "backup")
    made.start_node(NORTH)
    ok(made.train("after", 3, privacy="secagg"))
    made.stop(NORTH)
    shutil.rmtree(made.folder / NORTH)
    shutil.copytree(made.folder / "backup", made.folder / NORTH)
    made.start_node(NORTH)
    ok(made.train("next", 3, "--from", "latest", privacy="secagg"))
    assert made.last("next").counted == dict.fromkeys(range(3), 3)
    assert '"start_from": "after"' in (made.run("next").path / "plan.json").read_text()
    assert "next" in made.fedmc("node", "models", made.folder / NORTH).stdout
    shutil.rmtree(made.folder / "backup")


@needs_ssh_keygen
def test_a_node_s_disk_is_lost_without_a_backup(all_up):
    """New keys, the public files from others, and the organisation takes part in new runs again."""
    made = all_up
    ok(made.train("old", 3, privacy="secagg"))
    made.stop(NORTH)
    lost, other = made.folder / NORTH, made.folder / NAMES[1]
    kept = lost.rename(made.folder / "the-lost-one")
    lost.mkdir(mode=0o700)
    for name in ("ca.crt", "server.pub", "members.json", "catalogue.json"):
        shutil.copy(other / name, lost / name)
    shutil.copy(kept / "ratings.csv", lost / "ratings.csv")  # the ratings have another home
    text = (other / "config.toml").read_text().replace(f'organisation = "{NAMES[1]}"', f'organisation = "{NORTH}"')
    keys.write_private(lost / "config.toml", re.sub(r'source = "[^"]*"', 'source = "ratings.csv"', text).encode())
    key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", lost / "node.key"]
    subprocess.run(key, check=True, timeout=30)
    shutil.move(lost / "node.key.pub", made.folder / "server" / "nodes" / f"{NORTH}.pub")
    told = ok(made.fedmc("node", "identity", lost, "--renew")).stdout
    mine = next(line for line in told.splitlines() if line.startswith(f"{NORTH}=")).split()[0]
    for name in NAMES[1:]:
        ok(made.fedmc("node", "identity", made.folder / name, "--pin", mine))
    shutil.copy(other / members.LIST, made.folder / "server" / members.LIST)
    restart_all(made)
    ok(made.train("new", 3, "--from", "latest", privacy="secagg"))
    assert made.last("new").counted == dict.fromkeys(range(3), 3)
    assert (lost / "model.npz").is_file()


def test_the_server_s_disk_is_lost_with_a_backup_from_the_middle_of_a_run(all_up):
    """The nodes are further than the checkpoint: that run cannot go on, and a new one can."""
    made = all_up
    ok(made.train("whole", 3, privacy="secagg"))
    ok(made.train("torn", 30, "--detach", privacy="secagg"))
    made.wait_for_round("torn", 3)
    ok(made.fedmc("federation", "stop", made.folder / "server", "--run", "torn"))
    made.stop("server")
    shutil.copytree(made.folder / "server", made.folder / "backup")
    made.start_server()
    ok(made.resume("torn"))
    made.stop("server")
    shutil.rmtree(made.folder / "server")
    (made.folder / "backup").rename(made.folder / "server")
    made.start_server()
    resumed = made.resume("torn")
    assert resumed.returncode == 2
    assert "the run failed" in resumed.stderr
    ok(made.train("again", 3, "--from", "whole", privacy="secagg"))
    assert made.last("again").counted == dict.fromkeys(range(3), 3)


@needs_ssh_keygen
def test_the_server_s_disk_is_lost_without_a_backup(all_up):
    """Everything in its folder can be made again but the runs: keys anew, public files from the organisations."""
    made = all_up
    server, backup = made.folder / "server", made.folder / "lost"
    made.stop("server")
    server.rename(backup)
    server.mkdir(mode=0o700)
    (server / "runs").mkdir()
    (server / "nodes").mkdir()
    shutil.copy(backup / "config.toml", server / "config.toml")  # written again by hand
    for name in ("members.json", "catalogue.json"):
        shutil.copy(made.folder / NORTH / name, server / name)
    for name in NAMES:
        public = subprocess.run(
            ["ssh-keygen", "-y", "-f", made.folder / name / "node.key"], capture_output=True, check=True, timeout=30
        ).stdout
        (server / "nodes" / f"{name}.pub").write_bytes(public)
    ok(made.fedmc("federation", "renew", made.folder / "authority", server))
    ok(made.fedmc("federation", "sign-key", server, "--renew"))
    for name in NAMES:
        ok(made.fedmc("node", "trust", made.folder / name, server / "server.pub", "--replace"))
    restart_all(made)
    done = ok(made.train("first-again", 3, "--from", "latest", privacy="secagg"))
    assert "training from scratch" in done.stderr
    assert made.last("first-again").counted == dict.fromkeys(range(3), 3)
