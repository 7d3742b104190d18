"""The server's side over Flower: requests go out as messages, replies come back by the message they answer.

A node that dies takes the messages it had pulled with it, so whoever comes back is asked again, and so is one that has
not answered for long: a node answers the same bytes as often as it is asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flwr.app import Message
from flwr.serverapp import Grid

from fedmc.federation.flower.records import pack, unpack

log = logging.getLogger("fedmc.server")

QUERY = "query"  # the type of all our messages
AGAIN = 10.0  # seconds after which a silent node is asked again; then twice as many, and so on
QUICK = 0.05  # seconds until answers are looked for first; then longer and longer, up to `poll`
LOOK = 1.0  # seconds between two looks at who is there


class FlowerTransport:
    """Nodes by their numbers: `nodes` holds Flower's id of each, which belongs to its key."""

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
        """The answers that came in time. Who is not there is waited for only while fewer than `needed` answered."""
        asked: dict[str, int] = {}  # messages under way, and whom they went to
        due: dict[int, float] = dict.fromkeys(contents, 0.0)  # when each is to be asked (again)
        tries: dict[int, int] = dict.fromkeys(contents, 0)
        answers: dict[int, bytes] = {}
        began, looked, online, pause = time.monotonic(), 0.0, set[int](), QUICK
        while True:
            now = time.monotonic()
            if now - looked >= LOOK:
                there = set(self.grid.get_node_ids())
                looked, online = now, {client for client in contents if self.nodes[client] in there}
                due |= dict.fromkeys(set(contents) - online, 0.0)  # to be asked as soon as they are back
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
                due[client] = time.monotonic() + LOOK  # once more, after a breath
                continue
            try:
                answers[client] = unpack(reply.content)
            except (KeyError, ValueError, TypeError):
                log.warning("node %s sent no bytes of ours", client)
                answers[client] = b""
