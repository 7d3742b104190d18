"""What runs a server or a node elsewhere than in a shell: images, compose files, and manifests for Kubernetes.

Each folder gets its own, since no organisation runs another's node, and none runs the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

LOCKED = "requirements.txt"  # the packages of an image, with hashes; `make lock` writes it
FOLDER = "deploy"
PAGES = (8002, 8003, 8004)  # the port of the operator's page in a container: the first that is not taken
FILES = {  # by template
    "server": {
        "server.Containerfile": "Containerfile", "server.compose.yaml": f"{FOLDER}/compose.yaml",
        "server.kubernetes.yaml": f"{FOLDER}/kubernetes.yaml",
    },
    "node": {
        "Containerfile": "Containerfile", "node.compose.yaml": f"{FOLDER}/compose.yaml",
        "node.kubernetes.yaml": f"{FOLDER}/kubernetes.yaml",
    },
}  # fmt: skip


def write(folder: Path, kind: str, said: Mapping[str, str], taken: tuple[int, ...] = ()) -> None:
    """Write the files of a server or a node into its folder; `taken` are the ports that its server uses."""
    (folder / FOLDER).mkdir()
    names = dict(said) | {"page": str(next(port for port in PAGES if port not in taken))}
    names["label"] = said.get("organisation", "").rstrip("-")  # a name in Kubernetes does not end with a dash
    for template, name in FILES[kind].items():
        (folder / name).write_text(Template(_text(template)).substitute(names), encoding="utf-8")
    (folder / ".dockerignore").write_text(_text("dockerignore"), encoding="utf-8")
    (folder / LOCKED).write_text(_text(LOCKED), encoding="utf-8")


def _text(name: str) -> str:
    return (files("fedmc.federation.setup") / "handover" / name).read_text(encoding="utf-8")
