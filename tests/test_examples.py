"""The help of each command ends with examples that parse; shells complete commands, options, folders and sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click
import pytest

from fedmc.cli import app, completing
from fedmc.cli.examples import EXAMPLES
from tests.command import fedmc
from tests.parsing import every_command, parse

COMMANDS = [" ".join(words) for words in every_command()]
LINES = [(path, words) for path, found in EXAMPLES.items() for _, words in found]
SHELLS = ("bash", "zsh", "fish", "powershell")


def test_every_command_has_examples_and_there_are_no_others():
    assert sorted(EXAMPLES) == sorted(["", *COMMANDS])
    assert [path for path, found in EXAMPLES.items() if not found] == []


@pytest.mark.parametrize(("path", "words"), LINES, ids=[words for _, words in LINES])
def test_an_example_parses_and_is_one_of_its_command(path, words):
    parse(words)
    assert path == "" or words.startswith(f"{path} ") or words == path or path == "data get"
    assert len(f"    fedmc {words}") <= 110


@pytest.mark.parametrize("wrong", ["train ratings.csv --clints 20", "train", "predict", "node", "node start a b"])
def test_an_example_that_is_wrong_would_be_found(wrong):
    with pytest.raises(click.ClickException):
        parse(wrong)


def test_help_shows_them(tmp_path):
    for words in ([], ["recommend"], ["node", "start"]):
        said = fedmc(*words, "--help", cwd=tmp_path).stdout
        (about, line), *_ = EXAMPLES[" ".join(words)]
        assert f"\nExamples:\n  {about}:\n    fedmc {line}\n" in said


@pytest.fixture
def folder(tmp_path):
    for name in ("run/model.npz", "run/settings.toml", "old.npz", "ratings.csv", "made/north/config.toml", "other/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def completed(monkeypatch, folder, line):
    words = line.split(" ")
    monkeypatch.setenv("_FEDMC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    done = fedmc(cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fedmc tr", ["train"]),
        ("fedmc node re", ["refresh", "reject", "recommend"]),
        ("fedmc info --js", ["--json"]),
        ("fedmc info ", ["old.npz", "run"]),
        ("fedmc report ", ["made/north", "run"]),
        ("fedmc prepare ra", ["ratings.csv"]),
        ("fedmc prepare like:ml", ["like:ml-10m", "like:ml-1m"]),
        ("fedmc node models ", ["made/north"]),
        ("fedmc info other/", []),  # the shell then completes names of files
    ],
)
def test_completion(monkeypatch, folder, line, found):
    assert completed(monkeypatch, folder, line) == found


def test_completing_a_command_imports_none():
    code = (
        "import sys\nfrom fedmc.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('numpy', 'numba', 'fedmc.cli.train', 'fedmc.cli.node') if name in sys.modules])"
    )
    asked = {"_FEDMC_COMPLETE": "complete_bash", "COMP_WORDS": "fedmc ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=True
    )
    *names, imported = done.stdout.splitlines()
    assert names == list(app.table)
    assert imported == "[]"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell(shell):
    done = fedmc("--show-completion", shell)
    assert done.returncode == 0
    assert "_FEDMC_COMPLETE" in done.stdout


def test_an_unknown_shell_is_refused():
    done = fedmc("--show-completion", "ksh")
    assert done.returncode == 2
    assert "'ksh' is not one of bash, zsh, fish" in done.stderr


def test_it_is_installed_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = fedmc("--install-completion", "fish")
    assert done.returncode == 0
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert "fedmc" in script.name
    assert str(script) in done.stdout


def test_the_sets_it_offers_are_there():
    from fedmc.data import downloads, synthetic

    for name in completing.NAMED:
        if name.startswith("like:"):
            synthetic.like(name.removeprefix("like:"))
        else:
            assert name in ("demo", "insteval", *downloads.SETS)


@pytest.mark.slow
def test_in_a_real_bash(folder):
    script = (
        'eval "$(fedmc --show-completion bash)"; COMP_WORDS=(fedmc node ref); COMP_CWORD=2; '
        '_fedmc_completion fedmc ref node; echo "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        [shutil.which("bash"), "-c", script], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["refresh"], done.stderr
