"""Schedules of training runs: what systemd makes of the units, what is refused, and runs that do not overlap."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from string import Template

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.algorithms.settings import Settings
from fedmc.cli import federation_train
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.setup import founding, layout
from fedmc.federation.setup.schedule import SERVICE, TIMER, check, escaped
from tests.command import fedmc

HANDOVER = Path(layout.__file__).parent / "handover"
NAMES = ("north", "south", "east")


@pytest.fixture
def server(tmp_path):
    """A server's folder in a place whose name has what systemd and shells take apart."""
    made = tmp_path / "a fed 100% $HOME"
    founding.init(made, NAMES, founding.Address("127.0.0.1"))
    return layout.load_server(made / "server")


@pytest.fixture(scope="module")
def systemd():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    return lambda *words: subprocess.run(
        ["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60
    )


def entries(path):
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def new_run(config, name, state):
    settings = Settings.preset("fast", rank=3, active=3, privacy="secagg", min_cohort=3)
    folder = RunFolder(config.runs / name)
    folder.write_plan(RunPlan(f"{name}-1", settings, list(NAMES), [1, 2, 3], "0", 5, 3, 1, 60.0, 3))
    os.utime(folder.path / "plan.json", (len(list(config.runs.iterdir())),) * 2)
    folder.say(state=state, round=3)
    return folder


@pytest.mark.parametrize("when", ["daily", "weekly", "monthly", "Mon *-*-* 03:00", "*-*-01,15 02:30"])
def test_systemd_takes_the_units(systemd, server, when):
    done = fedmc(
        "federation", "schedule", when, server.folder, "--", "--rounds", "7", "--mlflow-uri", "sqlite:///a b%c"
    )
    assert done.returncode == 0, done.stderr
    service, timer = server.path(SERVICE), server.path(TIMER)
    verified = systemd("verify", service, timer)
    assert (verified.returncode, verified.stderr) == (0, "")
    told = entries(timer)
    assert told["OnCalendar"] == when
    assert told["Persistent"] == "true"
    assert "RandomizedDelaySec" in told
    assert systemd("calendar", "--", told["OnCalendar"]).returncode == 0
    said = done.stdout.splitlines()[1:]
    assert [shlex.split(line)[1:3] for line in said] == [["install", "-m"], ["systemctl", "enable"]]


def test_the_service_runs_this_fedmc_on_this_folder(server):
    assert fedmc("federation", "schedule", "weekly", server.folder, "--", "--rounds", "7").returncode == 0
    told = entries(server.path(SERVICE))
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(told["ExecStart"])]
    at = words.index("federation")
    expected = ["federation", "train", str(server.folder), "--from", "latest", "--unless-running", "--rounds", "7"]
    assert words[at:] == expected
    assert os.access(words[0], os.X_OK)
    assert told["User"] == server.folder.owner()
    assert "fedmc" in subprocess.run([*words[:at], "--version"], capture_output=True, text=True, timeout=60).stdout


def test_what_it_runs_while_a_run_is_going_on(server):
    """It ends with 0, says why, and neither touches that run nor begins another."""
    run = new_run(server, "going", "running")
    before = (run.path / "status.json").read_bytes()
    with run.lock():
        done = fedmc("federation", "train", server.folder, "--from", "latest", "--unless-running")
        assert (done.returncode, done.stdout) == (0, "nothing to do: run going is going on\n")
    assert (run.path / "status.json").read_bytes() == before
    assert [path.name for path in server.runs.iterdir()] == ["going"]


def test_latest_is_the_last_finished_run(server, capsys):
    assert federation_train._previous(server, "latest") is None
    assert "no run is finished yet: training from scratch" in capsys.readouterr().err
    for name, state in (("a", "finished"), ("b", "finished"), ("c", "diverged"), ("d", "stopped")):
        new_run(server, name, state)
    found = federation_train._previous(server, "latest")
    assert found is not None
    assert found.path.name == "b"
    assert "going on from run b" in capsys.readouterr().err
    assert federation_train._previous(server, "c").path.name == "c"


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("nonsense", "systemd does not understand the schedule 'nonsense': give daily, weekly, monthly"),
        ("", "the schedule '' is no time"),
        ("daily\nExecStart=/bin/sh", "is no time"),
        ("x" * 300, "is no time"),
        ("2020-01-01", "never comes again"),
        ("*:0/10", "are 0:10:00 apart: at least an hour must lie between two runs"),
        ("Mon 03:00,59", "does not understand|apart"),
        ("--root=/", "No such option"),
    ],
)
def test_a_bad_schedule_is_refused_with_value_bound_and_cure(systemd, server, when, said):
    done = fedmc("federation", "schedule", when, server.folder)
    assert done.returncode == 2
    assert any(one in done.stderr for one in said.split("|")), done.stderr
    assert "Traceback" not in done.stderr
    assert not server.path(SERVICE).exists()
    assert not server.path(TIMER).exists()


def test_hourly_is_allowed(systemd):
    assert check(" hourly ") == "hourly"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rounds", "many"], "--rounds"),
        (["--nonsense"], "--nonsense"),
        (["--from", "june"], "--from has no place in a schedule"),
        (["--run", "june"], "--run has no place"),
        (["--detach"], "--detach has no place"),
        (["--mlflow-uri", "a\nExecStartPost=/bin/sh"], "leave out control characters"),
    ],
)
def test_options_that_training_would_refuse(server, options, said):
    done = fedmc("federation", "schedule", "daily", server.folder, "--", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not server.path(SERVICE).exists()


def test_without_systemd(server, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert fedmc("federation", "schedule", "monthly", server.folder).returncode == 0
    done = fedmc("federation", "schedule", "Mon 03:00", server.folder)
    assert done.returncode == 2
    assert "cannot be checked without systemd-analyze: choose one of daily, weekly, monthly" in done.stderr


def test_a_new_schedule_replaces_the_old_one(server):
    for when in ("daily", "monthly"):
        assert fedmc("federation", "schedule", when, server.folder).returncode == 0
    assert entries(server.path(TIMER))["OnCalendar"] == "monthly"
    assert not list(server.folder.glob("*.part*"))
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("word", ["plain", "a b", 'quo"te', "back\\slash", "100%", "$HOME", "semi;colon", "", "'"])
def test_words_reach_the_command_as_they_are(word):
    text = escaped(word)
    assert "\n" not in text
    assert shlex.split(text.replace("%%", "%").replace("$$", "$\0"))[0].replace("\0", "") == word


@pytest.mark.parametrize("unit", ["fedmc-server.service", "fedmc-node.service"])
def test_systemd_takes_the_units_of_server_and_node(systemd, tmp_path, unit):
    """With a command and a user that are there."""
    text = Template((HANDOVER / unit).read_text()).substitute(organisation="north")
    text = text.replace("/opt/fedmc/bin/fedmc", "/bin/true").replace("User=fedmc", "User=root")
    (tmp_path / unit).write_text(text)
    verified = systemd("verify", tmp_path / unit)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_no_run_may_be_called_latest(server):
    done = fedmc("federation", "train", server.folder, "--run", "latest")
    assert done.returncode == 2
    assert "choose another name for --run" in done.stderr
    assert not list(server.runs.iterdir())
