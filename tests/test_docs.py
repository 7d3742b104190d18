"""The examples in docs run as they stand, and the reference pages name everything that there is."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmc import load
from fedmc.errors import ModelFileError

DOCS = Path(__file__).parents[1] / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


EXTEND = blocks("how-to/extend.md")


def run(block):
    assert len([line for line in block.splitlines() if line.strip()]) < 30
    names: dict[str, object] = {}
    exec(compile(block, "docs/how-to/extend.md", "exec"), names)
    return names


def test_there_are_three():
    assert len(EXTEND) == 3


def test_a_penalty_of_ones_own():
    U = run(EXTEND[0])["model"].model_.U
    norms = np.linalg.norm(np.delete(U, 3, axis=1), axis=1)
    assert norms.max() <= 1 + 1e-9
    assert (norms > 0.999).any()
    assert (U[:, 3] == 1).all()


def test_a_sampler_of_ones_own():
    history = run(EXTEND[1])["model"].rounds_
    for round in history[1:]:
        assert len(round.participants) == 3
        assert {client % 2 for client in round.participants} == {round.number % 2}


def test_an_algorithm_of_ones_own(tmp_path):
    made = run(EXTEND[2])
    errors = [round.diagnostics.train_rmse for round in made["plain"].rounds_]
    assert errors[-1] < 0.97 * errors[0]
    made["plain"].save(tmp_path / "model.npz")
    with pytest.raises(ModelFileError, match=r"unknown algorithm 'momentum'.*load\(path, algorithm=\.\.\.\)"):
        load(tmp_path / "model.npz")
    assert load(tmp_path / "model.npz", algorithm=made["Momentum"]()).settings.make_algorithm().name == "momentum"
    plain, hidden = made["plain"].model_.V, made["hidden"].model_.V
    assert 0 < np.abs(hidden - plain).max() < 1e-5


@pytest.mark.slow
def test_the_first_tutorial(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = "".join(blocks("tutorial/first-model.md", "sh"))
    (code,) = blocks("tutorial/first-model.md")
    for command in (["sh", "-e", "-c", shell], [sys.executable, "-c", code]):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=os.environ | {"PATH": path}
        )
        assert done.returncode == 0, done.stderr
        assert "RMSE" in done.stdout
    assert (tmp_path / "comparison" / "report.html").is_file()


@pytest.mark.slow
def test_the_tutorial_of_events(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    log, code = blocks("tutorial/events.md")
    shell = "".join(blocks("tutorial/events.md", "sh"))
    found = ""
    for command in ([sys.executable, "-c", log], ["sh", "-e", "-c", shell], [sys.executable, "-c", code]):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=os.environ | {"PATH": path}
        )
        assert done.returncode == 0, done.stderr
        found += done.stdout
    ndcg = r"test NDCG@20 +([\d.]+) \(popularity ([\d.]+)\)"
    printed, told = (
        [float(number) for number in re.search(ndcg, text).groups()] for text in (found, page("tutorial/events.md"))
    )
    assert printed == pytest.approx(told, abs=0.002)  # the last digit may depend on the processor
    assert float(re.search(r"^NDCG@20: ([\d.]+)", found, re.M).group(1)) > 0.25
    assert len((tmp_path / "recommended.csv").read_text().splitlines()) == 6711
    lines = json.loads((tmp_path / "comparison" / "summary.json").read_text())
    told = re.search(r"Ten shops together .*? popularity [\d.]+\d", page("tutorial/events.md"), re.S).group()
    numbers = [float(number) for number in re.findall(r"\b0\.\d{4}", told)]
    assert [line["test_ndcg_20"] for line in lines] == pytest.approx(numbers, abs=0.002)


@pytest.mark.slow
def test_adding_what_is_known(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = "".join(blocks("how-to/add-what-you-know.md", "sh"))
    done = subprocess.run(
        ["sh", "-e", "-c", shell],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "item features" in done.stdout
    assert "Second" in done.stdout


def test_adding_what_is_known_in_python():
    (code,) = blocks("how-to/add-what-you-know.md")
    made = run(code)
    effects, model = made["effects"], made["model"]
    assert {"user feature", "item feature", "seen", "rating"} <= {effect.kind for effect in effects}
    assert sum(effect.effect for effect in effects) == pytest.approx(model.predict(0, [40])[0])


@pytest.mark.slow
def test_scikit_learn_and_notebooks(capsys):
    names: dict[str, object] = {}
    for number, block in enumerate(blocks("how-to/scikit-learn.md")):
        exec(compile(block, f"docs/how-to/scikit-learn.md, block {number}", "exec"), names)
    assert names["search"].best_params_["preset"] == "bayes"
    assert len(names["model"].history_) == 11
    assert "RMSE by fold" in capsys.readouterr().out


def test_exporting_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("how-to/export.md")
    assert sorted(run(code)["files"]) == ["README.md", "metadata.json", "model.npz"]


def test_settings_names_every_parameter():
    from fedmc import FedMC

    text = page("reference/settings.md")
    assert [name for name in inspect.signature(FedMC).parameters if f"`{name}`" not in text] == []


def test_messages_names_every_status():
    from fedmc.federation.statuses import STATUS

    text = page("reference/messages.md")
    assert [status for status in STATUS if f"| `{status}` |" not in text] == []


def test_command_line_names_every_command():
    from fedmc.cli import COMMANDS

    text = page("reference/command-line.md")
    for name, command in COMMANDS.items():
        assert f"`fedmc {name} " in text or f"`fedmc {name}`" in text
        for inner in getattr(command, "table", {}):
            line = next((row for row in text.splitlines() if f"`fedmc {name} " in row and f"{inner}`" in row), None)
            assert line or f"`fedmc {name} {inner}" in text, f"fedmc {name} {inner}"
