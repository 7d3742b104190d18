"""The server's side over Flower: requests go out as messages, and each reply names the message that it answers.

A node that dies loses the messages it had pulled. So a node is asked again when it comes back online, and also when it
has been silent for long. That is safe: a node answers a repeated request with the same bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flwr.app import Message
from flwr.serverapp import Grid

from fedmc.federation.flower.records import pack, unpack

log = logging.getLogger("fedmc.server")

QUERY = "query"  # the type of all fedmc messages
AGAIN = 10.0  # seconds after which a silent node is asked again; doubles with each try
QUICK = 0.05  # seconds until the first poll for answers; the pause then grows up to `poll`
LOOK = 1.0  # seconds between two checks of who is online


class FlowerTransport:
    """Addresses nodes by number: `nodes` holds Flower's id of each, which is tied to the node's key."""

    def __init__(
        self,
        grid: Grid,
        nodes: list[int],
        patience: float,
        *,
        poll: float = 0.25,
        on_look: Callable[[set[int], set[int]], None] = lambda online, waiting: None,
    ) -> None:
        self.grid, self.nodes, self.patience, self.poll, self.on_look = grid, nodes, patience, poll, on_look

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        """The answers that came in time. It waits for offline nodes only while fewer than `needed` answered."""
        asked: dict[str, int] = {}  # messages under way, and the node of each
        due: dict[int, float] = dict.fromkeys(contents, 0.0)  # when to ask each node (again)
        tries: dict[int, int] = dict.fromkeys(contents, 0)
        answers: dict[int, bytes] = {}
        began, looked, online, pause = time.monotonic(), 0.0, set[int](), QUICK
        while True:
            now = time.monotonic()
            if now - looked >= LOOK:
                there = set(self.grid.get_node_ids())
                looked, online = now, {client for client in contents if self.nodes[client] in there}
                due |= dict.fromkeys(set(contents) - online, 0.0)  # ask them as soon as they are back
                self.on_look(online, set(contents) - set(answers))
            now_asked = [client for client in online if client not in answers and now >= due[client]]
            messages = [Message(pack(contents[client]), self.nodes[client], QUERY) for client in now_asked]
            if messages:
                asked |= dict(zip(self.grid.push_messages(messages), now_asked, strict=True))
                due |= {client: now + AGAIN * 2 ** tries[client] for client in now_asked}
                tries |= {client: tries[client] + 1 for client in now_asked}
            self._pull(asked, answers, due)
            waiting = [client for client in contents if client not in answers]
            enough = len(answers) >= needed and not any(client in online for client in waiting)
            if not waiting or enough or now - began > self.patience:
                break
            time.sleep(min(pause, self.poll))
            pause *= 1.2
        for client, content in answers.items():
            if len(content) > max_bytes:
                log.warning("node %s answered %s bytes, at most %s are read", client, len(content), max_bytes)
        return {client: content for client, content in answers.items() if len(content) <= max_bytes}

    def _pull(self, asked: dict[str, int], answers: dict[int, bytes], due: dict[int, float]) -> None:
        for reply in self.grid.pull_messages(list(asked)) if asked else ():
            client = asked.pop(reply.metadata.reply_to_message_id, None)
            if client is None or client in answers:
                continue
            if reply.has_error():
                log.warning("node %s: error %s", client, reply.error.code)
                due[client] = time.monotonic() + LOOK  # ask again after a short pause
                continue
            try:
                answers[client] = unpack(reply.content)
            except (KeyError, ValueError, TypeError):
                log.warning("node %s sent a reply that is not a fedmc message", client)
                answers[client] = b""
