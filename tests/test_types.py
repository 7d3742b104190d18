"""What mypy makes of code that uses fedmc: choices are checked, and help explains every parameter."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from fedmc import FedMC

GOOD = """
from fedmc import FedMC
from fedmc.privacy.modes import SecAgg
from fedmc.problem.losses import Huber
FedMC(5, privacy="secagg", min_cohort=3, loss="huber", update="exact", normalise="mean", dtype="float32")
FedMC(5, privacy=SecAgg(min_cohort=5), loss=Huber(0.5), penalty_users="l2:3", beta="auto", sampler="coins")
"""
BAD = {
    'FedMC(privacy="nonsense")': 'Argument "privacy"',
    'FedMC(loss="mse")': 'Argument "loss"',
    'FedMC(update="quick")': 'Argument "update"',
    'FedMC(preset="slow")': 'Argument "preset"',
    'FedMC(dtype="float16")': 'Argument "dtype"',
    'FedMC(rank="ten")': 'Argument "rank"',
    "FedMC(ranks=3)": 'Unexpected keyword argument "ranks"',
}


@pytest.fixture(scope="module")
def verdict(tmp_path_factory):
    """mypy's, on one file with a line for each case."""
    lines = [*GOOD.strip().splitlines(), *BAD]
    path = tmp_path_factory.mktemp("types") / "use.py"
    path.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=280).stdout
    found: dict[int, list[str]] = {}
    for line in said.splitlines():
        parts = line.split(":", 2)
        if parts[0].endswith("use.py") and " error" in parts[2]:
            found.setdefault(int(parts[1]), []).append(parts[2])
    return {lines[number - 1]: words for number, words in found.items()}


@pytest.mark.parametrize("call", BAD)
def test_mypy_refuses(verdict, call):
    assert BAD[call] in " ".join(verdict.get(call, []))


def test_mypy_accepts_what_is_right(verdict):
    assert not [line for line in verdict if line not in BAD]


def test_help_explains_every_parameter():
    text = inspect.getdoc(FedMC)
    for name in inspect.signature(FedMC).parameters:
        assert f"\n{name} : " in text, name
