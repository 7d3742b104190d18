"""Flower's SuperLink as `fedmc server start` runs it, and the queries that fedmc sends to it.

It listens on loopback only, because anybody who reaches its port may start runs. Nodes connect through the gateway.
Run-time installs, telemetry and update checks are off. Everything here uses Flower's documented commands.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmc.data.files import write_whole
from fedmc.errors import DataError, FedmcError, InputError, reason
from fedmc.federation.flower import notices
from fedmc.federation.presence import Presence
from fedmc.federation.setup.layout import ServerConfig

NAME = "fedmc"  # of the connection in Flower's config.toml
BUNDLE = Path(__file__).parent / "bundle"
LOOPBACK = "127.0.0.1"
LISTENING = range(20_000, 32_000)  # outgoing connections begin at 32,768 on Linux, 49,152 on macOS
TRIES = 100


class LinkError(FedmcError):
    """The SuperLink is not running, or a command to it failed."""


def environment(config: ServerConfig) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "2",
        "FLWR_HOME": str(_home(config)),
        "PATH": os.pathsep.join([str(_home(config) / "bin"), scripts, os.environ.get("PATH", "")]),
    }  # fmt: skip
    return os.environ | quiet


class Link:
    """A running SuperLink; it ends with the process that started it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        home = _home(config)
        home.mkdir(mode=0o700, exist_ok=True)
        self.port = config.control_port or free_port()
        if answers(LOOPBACK, self.port):
            raise InputError(
                f"port {self.port} is taken: is this server running already? (control_port in config.toml)"
            )
        certificate = config.path("ca.crt").resolve()
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{LOOPBACK}:{self.port}"\n'
        (home / "config.toml").write_text(text + f'root-certificates = "{certificate}"\n', encoding="utf-8")
        _write_superexec(home / "bin")
        if not self._noted.exists():  # the last start failed before registration: start with an empty database
            for path in config.folder.glob("superlink.db*"):
                path.unlink()
        with open(config.path("superlink.log"), "ab") as log:
            self.process = subprocess.Popen(
                self._command(), env=environment(config), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip
        try:
            self._await()
        except BaseException:
            self.end()
            raise

    @property
    def _database(self) -> Path:
        return self.config.path("superlink.db")

    def _command(self) -> list[str]:
        path = self.config.path
        return [
            str(Path(sys.executable).parent / "flower-superlink"), "--host", LOOPBACK, "--port", str(self.port),
            "--ssl-ca-certfile", str(path("ca.crt")), "--ssl-certfile", str(path("server.pem")),
            "--ssl-keyfile", str(path("server.key")), "--enable-supernode-auth", "--database", str(self._database),
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip

    def _await(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            if answers(LOOPBACK, self.port):
                for name in ("superlink.db", "superlink.log"):
                    if self.config.path(name).exists():
                        os.chmod(self.config.path(name), 0o600)
                return
            time.sleep(0.1)
        raise LinkError(f"Flower's SuperLink did not start: see {self.config.path('superlink.log')}")

    def register(self) -> dict[str, int]:
        """Register new or changed keys with Flower; returns Flower's node id of each organisation."""
        known = json.loads(self._noted.read_text(encoding="utf-8")) if self._noted.exists() else {}
        found = {name: self._key(name) for name in self.config.organisations}
        missing = [name for name, key in found.items() if known.get(name, ["", ""])[1] != key]
        with ThreadPoolExecutor(4) as pool:
            nodes = dict(zip(missing, pool.map(self._register, missing), strict=True))
        known |= {name: [node, found[name]] for name, node in nodes.items()}
        write_whole(self._noted, json.dumps(known).encode())
        return registered(self.config)

    def register_members(self, config: ServerConfig) -> dict[str, int]:
        """Register the nodes of members that have joined, or have new keys, while the server runs."""
        self.config = config
        return self.register()

    @property
    def _noted(self) -> Path:
        return self.config.path("nodes") / "registered.json"

    def _key(self, name: str) -> str:
        path = self.config.path("nodes") / f"{name}.pub"
        if not path.is_file():
            raise DataError(f"there is no public key {path} of {name}")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _register(self, name: str) -> int:
        key = self.config.path("nodes") / f"{name}.pub"
        return int(flwr(self.config, "supernode", "register", str(key), NAME, "--name", name)["node-id"])

    def end(self) -> None:
        """End the SuperLink and its child processes."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                return


def flwr(config: ServerConfig, *command: str) -> dict[str, Any]:
    """Run one of Flower's own commands and return its JSON output."""
    words = [str(Path(sys.executable).parent / "flwr"), *command, "--format", "json"]
    try:
        done = subprocess.run(words, env=environment(config), capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise LinkError(f"`flwr {command[0]}` did not end within a minute") from None
    said = done.stdout[done.stdout.find("{") :]
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        raise LinkError(f"`flwr {' '.join(command[:2])}` failed: {(done.stderr or done.stdout).strip()}") from None
    if done.returncode or not found.get("success", True):
        raise LinkError(f"`flwr {' '.join(command[:2])}` failed: {found.get('error-message', said).strip()}")
    return found


def control_port(config: ServerConfig) -> int:
    """The port of the running SuperLink; LinkError if none is running."""
    path = _home(config) / "config.toml"
    port = 0
    if path.is_file():
        port = int(path.read_text(encoding="utf-8").partition(f"{LOOPBACK}:")[2].partition('"')[0])
    if not port or not answers(LOOPBACK, port):
        raise LinkError(f"the server of {config.folder} is not running: `fedmc server start {config.folder}` first")
    return port


def run(config: ServerConfig, folder: Path) -> int:
    """Start the ServerApp on a run's folder; returns Flower's id of the run."""
    control_port(config)
    return int(flwr(config, "run", str(BUNDLE), NAME, "-c", f'folder="{folder.resolve()}"')["run-id"])


def registered(config: ServerConfig) -> dict[str, int]:
    """Flower's node id of each organisation, as the server recorded it at start."""
    path = config.path("nodes") / "registered.json"
    try:
        return {name: int(node) for name, (node, _) in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError):
        raise LinkError(f"{path} is not there: `fedmc server start {config.folder}` writes it") from None


def presence(config: ServerConfig) -> Presence:
    """Whose nodes are there, from the gateway of the running server; LinkError if there is none."""
    control_port(config)
    try:
        return notices.ask_presence(_home(config))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LinkError(f"the gateway of {config.folder} does not answer: {reason(error)}") from None


def answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def free_port() -> int:
    """A port that nobody listens on, outside the range from which systems take ports of outgoing connections."""
    for port in random.SystemRandom().sample(LISTENING, TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise InputError(
        f"none of {TRIES} ports between {LISTENING.start} and {LISTENING.stop - 1} is free on {LOOPBACK}: name one"
    )


def _home(config: ServerConfig) -> Path:
    return config.folder.resolve() / "flower"


def _write_superexec(folder: Path) -> None:
    """Put fedmc's SuperExec where the SuperLink looks for Flower's, which shows the token of a run to all users."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "flower-superexec"
    command = f"{shlex.quote(sys.executable)} -m fedmc.federation.flower.superexec"
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    os.chmod(path, 0o700)


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, for whatever reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
