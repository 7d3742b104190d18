"""The server's side over Flower: requests go out as messages, and each reply names the message that it answers.

A node that dies loses the messages it had pulled. So a node is asked again when it comes back online, and also when it
has been silent for long. That is safe: a node answers a repeated request with the same bytes. A node that comes back
again and again is asked less and less often, since Flower keeps every copy of a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedmc.federation.flower.post import Answer

log = logging.getLogger("fedmc.server")

AGAIN = 10.0  # seconds after which a silent node is asked again; doubles with each try, up to
AGAIN_MOST = 60.0
EARLY = 2.0  # seconds between a request and its first early repeat, to a node that came back; doubles in the same way
LOOK = 1.0  # seconds between two checks of who is online
FALLBACK = 5.0  # seconds between two pulls without a notice, while the gateway sends notices
BLIND = 0.25  # the same while it does not
GATHER = 0.02  # seconds to wait for further replies after the first, so that one pull brings several


OnLook = Callable[[set[int], set[int]], None]  # told who is online, and who has yet to answer


class Post(Protocol):
    """Carries messages; `FlowerPost`, or a stub of it."""

    def online(self) -> set[int]: ...

    def push(self, contents: Sequence[tuple[int, bytes]]) -> list[str]: ...

    def pull(self, ids: Iterable[str], most: int) -> list[Answer]: ...


class Bell(Protocol):
    """Says which nodes have replied and which have come back; `Notices`, or a stub of it."""

    @property
    def connected(self) -> bool: ...

    def wait(self, seconds: float) -> None: ...

    def take(self) -> tuple[set[int], set[int]]: ...


class FlowerTransport:
    """Addresses nodes by number: `nodes` holds Flower's id of each, which is tied to the node's key."""

    def __init__(
        self,
        post: Post,
        bell: Bell,
        nodes: list[int],
        patience: float,
        *,
        on_look: OnLook = lambda online, waiting: None,
    ) -> None:
        self.post, self.bell, self.nodes, self.patience, self.on_look = post, bell, nodes, patience, on_look
        self.looked, self.there = float("-inf"), set[int]()  # when, and who was online then

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        """The answers that came in time. It waits for offline nodes only while fewer than `needed` answered."""
        return _Exchange(self, contents, max_bytes).run(needed)


@dataclass
class _Turn:
    """When a node is asked next in an exchange."""

    due: float = float("-inf")
    regular: float = float("-inf")  # when it would be, if nothing had happened
    last: float = float("-inf")
    tries: int = 0
    early: int = 0  # repeats before their regular time

    def asked(self, now: float) -> None:
        self.early += now < self.regular
        self.due = self.regular = now + min(AGAIN * 2**self.tries, AGAIN_MOST)
        self.last, self.tries = now, self.tries + 1

    def soon(self, now: float = float("-inf")) -> None:
        """It has lost the request, or failed with it: ask again from `now` on, but not all the time."""
        self.due = min(self.due, max(now, self.last + min(EARLY * 2**self.early, AGAIN_MOST)))


class _Exchange:
    """One exchange: who was asked when, and what came back."""

    def __init__(self, transport: FlowerTransport, contents: dict[int, bytes], max_bytes: int) -> None:
        self.transport, self.contents, self.max_bytes = transport, contents, max_bytes
        self.numbers = {transport.nodes[client]: client for client in contents}
        self.asked: dict[str, int] = {}  # messages under way, and the node of each
        self.turns = {client: _Turn() for client in contents}
        self.answers: dict[int, bytes] = {}
        self.refused: set[int] = set()  # whose answers were too large
        self.online: set[int] = set()
        self.pulled = time.monotonic()

    @property
    def waiting(self) -> set[int]:
        return self.contents.keys() - self.answers.keys() - self.refused

    def run(self, needed: int) -> dict[int, bytes]:
        began = time.monotonic()
        self.transport.bell.take()  # notices of an earlier exchange
        while True:
            self._look()
            self._push()
            waiting = self.waiting
            enough = len(self.answers) >= needed and not waiting & self.online
            if not waiting or enough or time.monotonic() - began > self.transport.patience:
                return self.answers
            self._listen(began + self.transport.patience)

    def _look(self) -> None:
        """Once a second: who is online? Who is not is asked as soon as it is back."""
        transport, now = self.transport, time.monotonic()
        if now - transport.looked >= LOOK:
            transport.looked, transport.there = now, transport.post.online()
            self._see()
            transport.on_look(self.online, self.waiting)
        else:
            self._see()

    def _see(self) -> None:
        self.online = {client for node, client in self.numbers.items() if node in self.transport.there}
        for client in self.contents.keys() - self.online:
            self.turns[client].soon()

    def _push(self) -> None:
        now = time.monotonic()
        clients = [client for client in sorted(self.online & self.waiting) if now >= self.turns[client].due]
        if not clients:
            return
        ids = self.transport.post.push([(self.transport.nodes[one], self.contents[one]) for one in clients])
        self.asked |= {name: client for name, client in zip(ids, clients, strict=True) if name}
        for client in clients:
            self.turns[client].asked(now)

    def _listen(self, end: float) -> None:
        """Wait for a notice, or until something else is due; then pull if there may be an answer."""
        transport, bell = self.transport, self.transport.bell
        check = self.pulled + (FALLBACK if bell.connected else BLIND)
        asks = [self.turns[client].due for client in self.online & self.waiting]
        bell.wait(min([transport.looked + LOOK, end, check, *asks]) - time.monotonic())
        replied, back = bell.take()
        came = self.waiting & {self.numbers[node] for node in replied & self.numbers.keys()}
        if came and came != self.waiting:
            time.sleep(GATHER)
        if self.asked and (came or time.monotonic() >= check):
            self._pull()
        for node in back & self.numbers.keys():  # it lost what it had pulled
            transport.there.add(node)
            self.turns[self.numbers[node]].soon()

    def _pull(self) -> None:
        for answer in self.transport.post.pull(list(self.asked), self.max_bytes):
            client = self.asked.pop(answer.to, None)
            if client is None or client not in self.waiting:
                continue
            size = answer.size or len(answer.content)
            if size > self.max_bytes:
                log.warning("node %s answered %s bytes or more, at most %s are read", client, size, self.max_bytes)
                self.refused.add(client)
            elif answer.error is not None:
                log.warning("node %s: error %s", client, answer.error)
                self.turns[client].soon(time.monotonic() + LOOK)
            else:
                self.answers[client] = answer.content
        self.pulled = time.monotonic()
