"""Images, compose files and manifests that `fedmc federation init` writes: linted, as no engine runs them here, and
their commands run without one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.cli.federation_demo import set_up
from fedmc.federation.flower.superlink import free_port
from fedmc.federation.setup import founding, layout
from fedmc.federation.setup.deployment import LOCKED
from tests.conftest import planted

SCRIPTS = Path(sys.executable).parent
KUBERNETES = "1.31"  # the schemas that manifests are checked against
SECRETS = ("node.key", "identity.key", "server.key", "request.key", "ca.key")
NAMES = ("north", "2026-")  # a name that YAML takes for a number, and that Kubernetes does not take


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment") / "made"
    founding.init(folder, NAMES, founding.Address("fed.example.org", 8002))
    return folder


@pytest.fixture(params=["server", *NAMES])
def folder(request, made):
    return made / request.param


def containers(document):
    pod = document["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_the_image(folder):
    done = subprocess.run([SCRIPTS / "hadolint", folder / "Containerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    text = (folder / "Containerfile").read_text()
    assert text.count("COPY") == 1
    assert f"COPY {LOCKED} " in text
    assert "USER 1000:1000" in text
    assert (folder / LOCKED).is_file()


def test_a_build_sees_no_key(folder):
    """What is not listed is not sent to the builder."""
    rules = [line for line in (folder / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules == ["*", f"!{LOCKED}"]


def test_compose(folder):
    path = folder / "deploy" / "compose.yaml"
    command = [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    document = yaml.safe_load(path.read_text())
    kind = "server" if folder.name == "server" else "node"
    assert list(document["services"]) == [kind], "each party runs its own only"
    service = document["services"][kind]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["volumes"] == [f"..:/{kind}"]
    assert ("ports" in service) == (kind == "server")
    assert "FEDMC_USER" in service["user"]
    assert service["build"]["args"]["FEDMC_HASH"].startswith("${FEDMC_HASH:?")


def test_kubernetes(folder):
    documents = list(yaml.safe_load_all((folder / "deploy" / "kubernetes.yaml").read_text()))
    for document in documents:
        assert kubernetes_validate.validate(document, KUBERNETES, strict=True)
    kinds = [document["kind"] for document in documents]
    assert kinds == (["Service", "StatefulSet"] if folder.name == "server" else ["StatefulSet"])
    assert not documents[-1]["metadata"]["name"].endswith("-")
    spec = documents[-1]["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    mounted = {mount["name"] for one in containers(documents[-1]) for mount in one["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert mounted == claimed | {volume["name"] for volume in pod["volumes"]}
    for one in containers(documents[-1]):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"cpu", "memory"} == set(one["resources"]["limits"])


def test_a_linter_finds_a_mistake(made):
    """So that the tests above can fail."""
    document = yaml.safe_load((made / "north" / "deploy" / "kubernetes.yaml").read_text())
    document["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_file_is_handed_over(folder):
    """The secret and the config maps together are what a node or a server needs to start."""
    text = (folder / "deploy" / "kubernetes.yaml").read_text()
    for path in folder.iterdir():
        if path.suffix in (".key", ".pem", ".crt", ".pub", ".toml", ".json"):
            assert f"--from-file={path.name}" in text, path.name
    assert not any(name in text for name in SECRETS if not (folder / name).is_file())


def test_the_page_has_a_port_of_its_own(made):
    """The nodes' port is 8002 here."""
    for name in ("Containerfile", "deploy/compose.yaml", "deploy/kubernetes.yaml"):
        text = (made / "server" / name).read_text()
        assert "8003" in text
        for known in ("${FEDMC", "$FEDMC_HASH", "$PWD", "$(id", "$name"):
            text = text.replace(known, "")
        assert "$" not in text


def test_what_the_init_container_does(tmp_path, made):
    """On this machine: files that anyone can read arrive readable by their owner only."""
    document = list(yaml.safe_load_all((made / "server" / "deploy" / "kubernetes.yaml").read_text()))[-1]
    shell, option, script = document["spec"]["template"]["spec"]["initContainers"][0]["command"]
    handed, nodes, server = (tmp_path / name for name in ("handed", "nodes", "server"))
    shutil.copytree(made / "server" / "nodes", nodes)
    handed.mkdir()
    server.mkdir()
    for path in made.joinpath("server").iterdir():
        if path.is_file() and path.suffix in (".key", ".pem", ".crt", ".pub", ".toml", ".json"):
            shutil.copy(path, handed / path.name)
            os.chmod(handed / path.name, 0o444)
    places = {"handed": handed, "nodes": nodes, "server": server}
    script = re.sub(r"(?<=\s)/(handed|nodes|server)", lambda found: str(places[found[1]]), script)
    subprocess.run([shell, option, script], check=True, timeout=30)
    assert layout.load_server(server).organisations == NAMES
    assert {path.name for path in (server / "nodes").iterdir()} == {f"{name}.pub" for name in NAMES}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in server.iterdir() if path.is_file())
    (server / "members.json").write_text("a newer one, taken in meanwhile")
    subprocess.run([shell, option, script], check=True, timeout=30)
    assert (server / "members.json").read_text() == "a newer one, taken in meanwhile"


@pytest.mark.slow
def test_the_image_s_command_and_its_probe(tmp_path):
    """As in a container: no home, little in the environment, and the page where the probe asks for it."""
    set_up(tmp_path / "made", planted())
    server, page = tmp_path / "made" / "server", free_port()
    lines = (server / "Containerfile").read_text().splitlines()
    entry = json.loads(next(line for line in lines if line.startswith("ENTRYPOINT")).removeprefix("ENTRYPOINT "))
    setup = next(line for line in lines if line.startswith("ENV")).removeprefix("ENV ").replace("/tmp", str(tmp_path))
    clean = dict(one.split("=") for one in setup.split()) | {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    asked = entry[-1]
    assert entry[:2] == ["fedmc", "server"]
    entry = [str(SCRIPTS / "fedmc"), *(word.replace("/server", str(server)) for word in entry[1:-1]), str(page)]
    service = yaml.safe_load((server / "deploy" / "compose.yaml").read_text())["services"]["server"]
    _, _, option, script = service["healthcheck"]["test"]
    probe = [sys.executable, option, script.replace(f":{asked}/", f":{page}/")]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(entry, env=clean, cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 90
        while subprocess.run(probe, capture_output=True, timeout=30).returncode:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.3)
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert subprocess.run(probe, capture_output=True, timeout=30).returncode != 0
