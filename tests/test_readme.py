"""The README's examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def example(language):
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_opens_with_the_two_commands():
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    make ")]
    assert commands == ["make demo", "make test"]


def test_python_example(tmp_path):
    code = example("python")
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rmse = float(re.search(r"held-out ratings: ([\d.]+)", done.stdout).group(1))
    assert 0.8 < rmse < 0.95
    assert (tmp_path / "model.npz").is_file()


def test_shell_example(tmp_path):
    code = example("sh")
    assert len(code.strip().splitlines()) == 5
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-e", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "test RMSE" in done.stdout
    assert "user,rank,item,score,title\n15,1," in done.stdout
    assert "test NDCG@20" in done.stdout
    assert "item,rank,similar,cosine,title\n260,1," in done.stdout
