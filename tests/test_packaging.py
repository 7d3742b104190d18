"""The wheel and the sdist hold what they should, have one version, and work where nothing else is installed."""

from __future__ import annotations

import configparser
import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedmc

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SMOKE = """
import sys
import fedmc
assert fedmc.__file__.startswith(sys.prefix), fedmc.__file__
rng = __import__("numpy").random.default_rng(0)
ratings = fedmc.Ratings.from_arrays(rng.integers(40, size=900), rng.integers(30, size=900), rng.normal(size=900),
                                    duplicates="mean")
model = fedmc.FedMC(2, clients=3, rounds=3).fit(ratings)
print(model.recommend(0, n=2))
"""


def built(form, folder, *more):
    command = [sys.executable, "-m", "build", f"--{form}", *more, "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made by the installed hatchling, without network."""
    return built("wheel", tmp_path_factory.mktemp("wheel"), "--no-isolation")


def test_one_version():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert cited.group(1) == fedmc.__version__


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "fedmc").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    about = {name for name in names if name.startswith(f"fedmc-{fedmc.__version__}.dist-info/")}
    assert names - about == sources
    assert {name.rpartition("/")[2] for name in about} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}
    for needed in ("py.typed", "report/style.css", "federation/setup/handover/requirements.txt"):
        assert f"fedmc/{needed}" in names
    assert wheel.stat().st_size < 2_000_000


def test_what_the_wheel_says_of_itself(wheel):
    with zipfile.ZipFile(wheel) as file:
        said = {name.rpartition("/")[2]: file.read(name).decode() for name in file.namelist() if ".dist-info/" in name}
    about = email.message_from_string(said["METADATA"])
    assert (about["Name"], about["Version"]) == ("fedmc", fedmc.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    entries = configparser.ConfigParser()
    entries.read_string(said["entry_points.txt"])
    assert dict(entries["console_scripts"]) == {"fedmc": "fedmc.cli:main"}
    assert wheel.name == f"fedmc-{fedmc.__version__}-py3-none-any.whl"


def test_the_sdist_holds_what_builds_and_tests_it(tmp_path):
    with tarfile.open(built("sdist", tmp_path, "--no-isolation")) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "CITATION.cff", "docs/conf.py"}
    assert wanted | {"fedmc/py.typed", "tests/conftest.py", "scripts/lint/sizes.py", "docs/README.md"} <= names
    assert [name for name in names if re.search(r"__pycache__|\.numba_cache|_build/|\.venv|\.part$", name)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_in_an_empty_environment(form, tmp_path):
    """Needs the package index."""
    package = built(form, tmp_path / "made")
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    calls = [
        [place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", package],
        [place / "bin/python", "-c", SMOKE],
        [place / "bin/fedmc", "--version"],
        [place / "bin/fedmc", "data", "synth", "--users", "60", "--items", "30", "--ratings", "900", "--out", "r.csv"],
        [place / "bin/fedmc", "train", "r.csv", "--clients", "3", "--rounds", "3", "--out", "run"],
        [place / "bin/fedmc", "report", "run"],
    ]
    for call in calls:
        done = subprocess.run(list(map(str, call)), cwd=tmp_path, env=own, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, (call, done.stderr)
        if "--version" in call:
            assert done.stdout.strip() == f"fedmc {fedmc.__version__}"
    assert "<style>" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
