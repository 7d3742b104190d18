"""The packages of a node's image: locked, hashed, and within the ranges that fedmc declares."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedmc.federation.setup.deployment import LOCKED

ROOT = Path(__file__).parents[1]
HANDOVER = ROOT / "fedmc" / "federation" / "setup" / "handover"
EXTRAS = ("flower", "dp", "postgres")
BROUGHT = ("demo", "mlflow", "serve", "duckdb", "sklearn", "faiss", "onnx", "ray")  # no image of a node needs them


def locked():
    """Each requirement of the lock file, and its hashes."""
    joined = (HANDOVER / LOCKED).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]
    return [(Requirement(line.partition(" --hash=")[0]), re.findall(r"--hash=(\S+)", line)) for line in lines]


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = project["dependencies"] + [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in texts]


def test_every_requirement_has_one_version_and_hashes():
    found = locked()
    assert len(found) > 50
    for requirement, hashes in found:
        assert re.fullmatch(r"==[^=*,]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes)


def test_the_lock_file_satisfies_what_fedmc_declares():
    versions = {}
    for requirement, _ in locked():
        pinned = str(requirement.specifier).removeprefix("==")
        versions.setdefault(canonicalize_name(requirement.name), []).append(pinned)
    for wanted in declared():
        pinned = versions.get(canonicalize_name(wanted.name))
        assert pinned, f"{wanted} is not locked: make lock"
        assert all(wanted.specifier.contains(one) for one in pinned), f"{wanted}: {pinned} is locked: make lock"


def test_the_locked_flower_was_tried():
    versions = pytest.importorskip("fedmc.federation.flower.versions", reason="needs the extra `flower`")
    (flower,) = (requirement for requirement, _ in locked() if requirement.name == "flwr")
    assert str(flower.specifier).removeprefix("==") in versions.TRIED


def test_the_lock_file_names_no_other_place():
    """No index, no address and no path: packages come from where pip is set up to look."""
    text = (HANDOVER / LOCKED).read_text(encoding="utf-8")
    assert not re.search(r"://|--index|--find-links|--extra|file:|^/|\.whl", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["Containerfile", "server.Containerfile"])
def test_the_image_installs_nothing_without_a_hash(name):
    text = (HANDOVER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install[^&\n]*", text)
    assert len(installs) == 2
    assert all("--require-hashes" in one and "--no-deps" in one for one in installs)
    assert f"COPY {LOCKED} " in text


def test_every_import_is_declared():
    """Of fedmc itself: what the lock file does not hold must not be imported, except where a user brings it."""
    names = {"google": "protobuf", "sklearn": "scikit-learn", "faiss": "faiss-cpu", "mlflow": "mlflow-skinny"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    brought = [Requirement(text) for name in BROUGHT for text in extras[name]]
    known = {canonicalize_name(one.name) for one in (*declared(), *brought)}
    found = {name for path in (ROOT / "fedmc").rglob("*.py") for name in imported(path)} - sys.stdlib_module_names
    assert {"numpy", "numba", "flwr", "pyarrow"} <= found
    for name in found - {"fedmc"}:
        assert canonicalize_name(names.get(name, name)) in known, name


def imported(path):
    """The packages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.nightly
def test_the_bill_of_materials_lists_what_is_locked(tmp_path):
    """`make sbom`; it needs the package index."""
    recipe = re.search(r"^sbom:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    command = recipe.replace("\\\n", " ").replace("$(BIN)", str(Path(sys.executable).parent))
    command = command.replace("$(LOCKED)", str(HANDOVER / LOCKED)).replace(
        "-o sbom.json", f"-o {tmp_path / 'sbom.json'}"
    )
    subprocess.run(command, shell=True, check=True, cwd=ROOT, timeout=250)
    made = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert made["bomFormat"] == "CycloneDX"
    listed = sorted((one["name"], one["version"]) for one in made["components"])
    assert listed == sorted((one.name, str(one.specifier).removeprefix("==")) for one, _ in locked())
