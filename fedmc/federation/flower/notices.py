"""Notices between the ServerApp and the gateway, over a socket in the server's folder, so that neither has to poll.

The ServerApp says for which nodes it has pushed messages. The gateway says which node has replied, which has come
back, and which speak fedmc's short form of messages (`records.py`). Notices are hints: who misses one still finds
everything, a few seconds later. Each is a line of JSON.

    to the gateway      {"messages": {NODE: COUNT}, "calls": COUNT}      {"counts": true}  {"presence": true}
    to the ServerApp    {"replied": NODE}  {"activated": NODE}  {"short": [NODE, ...]}
    to who asked        {"counts": {CALL: COUNT}}  {"presence": {...}}, for benchmarks and `fedmc federation status`
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmc.federation.presence import Presence, from_json

ADDRESS = "gateway.address"  # the file, in Flower's home, that says where the socket is
HOME = "FLWR_HOME"
LINE = 64 * 2**10  # bytes of one notice
PATH = 100  # bytes of a socket's path: systems allow a little more
AGAIN = 1.0  # seconds between two attempts to connect


def place_socket(home: Path) -> Path:
    """Where the gateway puts its socket: a folder of its own if the path would be too long; only we can enter it."""
    path = home / "gateway.sock"
    if len(os.fsencode(path)) > PATH:
        path = Path(tempfile.mkdtemp(prefix="fedmc-")) / "gateway.sock"
    with suppress(FileNotFoundError):
        path.unlink()
    file = os.open(home / ADDRESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as address:
        address.write(str(path))
    return path


def encode(notice: dict[str, Any]) -> bytes:
    return json.dumps(notice).encode() + b"\n"


class Notices:
    """The ServerApp's end. A thread listens; `wait` returns at once if something was heard since the last `take`."""

    def __init__(self, home: Path | None = None) -> None:
        found = os.environ.get(HOME)
        self.home = home if home is not None else Path(found) if found else None
        self.short: frozenset[int] = frozenset()
        self.socket: socket.socket | None = None
        self._heard = threading.Condition()
        self._replied: set[int] = set()
        self._activated: set[int] = set()
        self._closed = threading.Event()
        if self.home is not None:
            threading.Thread(target=self._listen, daemon=True, name="notices").start()

    @property
    def connected(self) -> bool:
        return self.socket is not None

    def announce(self, nodes: Iterable[int], calls: int = 0) -> None:
        """Messages for these nodes have been pushed; so many calls were made to the SuperLink."""
        counts: dict[str, int] = {}
        for node in nodes:
            counts[str(node)] = counts.get(str(node), 0) + 1
        there = self.socket
        if there is not None and counts:
            with suppress(OSError):  # the other thread notices too, and connects again
                there.sendall(encode({"messages": counts, "calls": calls}))

    def wait(self, seconds: float) -> None:
        """Until there is a notice, at most so long."""
        with self._heard:
            self._heard.wait_for(lambda: bool(self._replied or self._activated), max(seconds, 0.0))

    def take(self) -> tuple[set[int], set[int]]:
        """The nodes that replied, and those that came back, since the last call."""
        with self._heard:
            found = self._replied, self._activated
            self._replied, self._activated = set(), set()
            return found

    def close(self) -> None:
        self._closed.set()
        there = self.socket
        if there is not None:
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError, ValueError, TypeError, KeyError):
                self._session()
            self.socket, self.short = None, frozenset()
            self._closed.wait(AGAIN)

    def _session(self) -> None:
        assert self.home is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.connect((self.home / ADDRESS).read_text(encoding="utf-8"))
            self.socket = there
            with there.makefile("rb") as lines:
                while line := lines.readline(LINE):
                    self._hear(json.loads(line))

    def _hear(self, notice: dict[str, Any]) -> None:
        with self._heard:
            if "short" in notice:
                self.short = frozenset(int(node) for node in notice["short"])
            if "replied" in notice:
                self._replied.add(int(notice["replied"]))
            if "activated" in notice:
                self._activated.add(int(notice["activated"]))
            self._heard.notify_all()


def ask_counts(home: Path) -> dict[str, int]:
    """How many calls of each kind the SuperLink had since the gateway's start, as far as it knows; for benchmarks."""
    return dict(_ask(home, "counts"))


def ask_presence(home: Path) -> Presence:
    """Whose nodes are there; an OSError, if the gateway is not."""
    return from_json(_ask(home, "presence"))


def _ask(home: Path, what: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.settimeout(10)
        there.connect((home / ADDRESS).read_text(encoding="utf-8"))
        there.sendall(encode({what: True}))
        with there.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                if what in said:
                    return dict(said[what])
    raise ConnectionError("the gateway hung up")
