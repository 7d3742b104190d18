"""A federation of real processes on loopback for tests: started, killed, started again, and ended by their ids."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedmc.cli.federation_demo import NAMES, set_up, simulated
from fedmc.federation.server import checkpoint
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.setup.layout import load_server
from tests.conftest import planted

FEDMC = [sys.executable, "-c", "from fedmc.cli import main; main()"]
ODD = [sys.executable, str(Path(__file__).parent / "odd_node.py")]  # a node that dies or dawdles where it is told to
SCRIPTS = Path(sys.executable).parent


class Loopback:
    def __init__(self, folder: Path, ratings=None, names=NAMES) -> None:
        self.folder, self.processes, self.names = folder / "federation", {}, names
        set_up(self.folder, planted() if ratings is None else ratings, ("plain", "secagg"), names)
        self.server = load_server(self.folder / "server")
        for name in names:  # a module makes more runs than an organisation accepts in a day
            config = self.folder / name / "config.toml"
            config.write_text(config.read_text().replace("[policy]\n", "[policy]\nruns_per_day = 1000\n"))

    # --- processes

    def start(self, name: str, command, ready: str | None) -> subprocess.Popen:
        log = self.folder / f"{name}.log"
        began = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as file:
            process = subprocess.Popen([*map(str, command)], stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        self.processes[name] = process
        until = time.monotonic() + 90
        while ready is not None and not re.search(ready, log.read_bytes()[began:].decode(errors="replace")):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < until, log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        return process

    def start_server(self) -> subprocess.Popen:
        return self.start("server", [*FEDMC, "server", "start", self.folder / "server"], r"\bready\b")

    def start_node(self, name: str, *odd: str, ready: str | None = r"\bonline\b") -> subprocess.Popen:
        command = [*ODD, *odd] if odd else FEDMC
        return self.start(name, [*command, "node", "start", self.folder / name], ready)

    def start_all(self) -> None:
        self.start_server()
        for name in self.names:
            self.start_node(name)

    def start_missing(self) -> None:
        """What was killed or has ended; nothing, where everything is there."""
        if not self.alive("server"):
            self.start_server()
        for name in self.names:
            if not self.alive(name):
                self.start_node(name)

    def alive(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(20)

    def stop(self, name: str) -> None:
        """So that it signs off."""
        process = self.processes.pop(name)
        process.terminate()
        assert process.wait(20) == 0

    def end(self) -> None:
        for app in self.apps():
            with suppress(ProcessLookupError):
                os.kill(app, signal.SIGKILL)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(25)
            process.kill()

    def apps(self) -> list[int]:
        """The processes that our SuperLink started: they have its address in their command."""
        address = f"127.0.0.1:{self.server.control_port}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if address in words and any(b"serverapp" in word for word in words):
                    found.append(int(entry.parent.name))
        return found

    def link(self) -> int:
        """The SuperLink itself."""
        database = str(self.server.path("superlink.db")).encode()
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if database in words and any(word.endswith(b"flower-superlink") for word in words):
                    return int(entry.parent.name)
        raise AssertionError("there is no SuperLink")

    # --- commands

    def fedmc(self, *words, timeout: float = 150) -> subprocess.CompletedProcess:
        command = [*FEDMC, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=self.folder)

    def train(
        self, run: str, rounds: int, *options, privacy: str = "plain", timeout: float = 150
    ) -> subprocess.CompletedProcess:
        words = "--rank", 3, "--rounds", rounds, "--run", run, "--privacy", privacy, *options
        return self.fedmc("federation", "train", self.folder / "server", *words, timeout=timeout)

    def resume(self, run: str) -> subprocess.CompletedProcess:
        return self.fedmc("federation", "resume", self.folder / "server", "--run", run)

    # --- what came out

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.server.runs / name)

    def wait_for_round(self, run: str, number: int, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while self.run(run).status()["round"] < number:
            assert time.monotonic() < until, self.log("server")
            time.sleep(0.05)

    def wait_until(self, run: str, state: str, seconds: float = 120) -> None:
        self.wait_for(run, lambda status: status["state"] == state, seconds)

    def wait_for(self, run: str, wanted: Callable[[dict], bool], seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not wanted(self.run(run).status()):
            assert time.monotonic() < until, f"{self.run(run).status()}\n{self.log('server')}"
            time.sleep(0.1)

    def wait_until_begun(self, run: str, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while self.run(run).status()["state"] not in ("running", "finished"):
            assert time.monotonic() < until, f"{self.run(run).status()}\n{self.log('server')}"
            time.sleep(0.1)

    def last(self, run: str) -> checkpoint.SavedRun:
        return checkpoint.load(self.run(run).path / "server.npz")

    def check_bits(self, run: str) -> None:
        """V is the simulation's, and every node's last contribution is in it."""
        plan, last = self.run(run).plan(), self.last(run)
        assert last.checkpoint.number == plan.rounds
        assert last.counted == dict.fromkeys(range(len(self.names)), plan.rounds)
        assert last.checkpoint.broadcast.V.tobytes() == simulated(self.folder, plan)[0].tobytes()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""
