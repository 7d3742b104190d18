"""The server's side over Flower: requests go out as messages, replies come back by the message they answer."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedmc.engines.flower.records import pack, unpack
from fedmc.federation.wire import Request, encode, to_bytes

log = logging.getLogger("fedmc.server")

QUERY = "query"  # the type of all our messages


class FlowerTransport:
    """Nodes by the names of their organisations; their numbers are the places in the list of names."""

    def __init__(self, grid: Grid, organisations: list[str], patience: float, poll: float = 0.1) -> None:
        self.grid, self.organisations, self.patience, self.poll = grid, organisations, patience, poll
        self.nodes: dict[int, int] = {}  # an organisation's number -> Flower's id of its node

    def meet(self, wanted: int) -> None:
        """Ask nodes for their names until so many organisations are there, or patience ends."""
        until = time.monotonic() + self.patience
        while len(self.nodes) < wanted and time.monotonic() < until:
            strangers = [node for node in self.grid.get_node_ids() if node not in self.nodes.values()]
            for node, content in self._ask(dict.fromkeys(strangers, HELLO), min(5.0, self.patience)).items():
                self._introduce(node, content)
            if len(self.nodes) < wanted:
                time.sleep(self.poll)

    def exchange(self, requests: dict[int, Request], most_bytes: int) -> dict[int, bytes]:
        missing = [client for client in requests if client not in self.nodes]
        if missing:
            self.meet(len(self.nodes) + len(missing))
        contents = {
            self.nodes[client]: to_bytes(*encode(request))
            for client, request in requests.items()
            if client in self.nodes
        }
        number = {node: client for client, node in self.nodes.items()}
        answers = self._ask(contents, self.patience)
        return {number[node]: content for node, content in answers.items() if len(content) <= most_bytes}

    def _ask(self, contents: dict[int, bytes], patience: float) -> dict[int, bytes]:
        """By node id: the bytes that came back in time."""
        messages = [Message(pack(content), node, QUERY) for node, content in contents.items()]
        if not messages:
            return {}
        waiting = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        answers: dict[int, bytes] = {}
        until = time.monotonic() + patience
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                if reply.has_error():
                    log.warning("node %s: error %s", node, reply.error.code)
                    continue
                try:
                    answers[node] = unpack(reply.content)
                except (KeyError, ValueError, TypeError):
                    log.warning("node %s sent no bytes of ours", node)
            if waiting:
                time.sleep(self.poll)
        return answers

    def _introduce(self, node: int, content: bytes) -> None:
        try:
            name = json.loads(content)["organisation"]
        except (ValueError, KeyError, TypeError):
            name = None
        if name not in self.organisations:
            log.warning("node %s is not one of the organisations", node)
            return
        number = self.organisations.index(name)
        if number in self.nodes:
            log.warning("node %s says it is %s, which another node is", node, name)
            return
        self.nodes[number] = node


HELLO = json.dumps({"fedmc": "who are you?"}).encode()


def hello(content: bytes, organisation: str) -> bytes | None:
    """A node's answer to HELLO; None where the bytes are something else."""
    if content != HELLO:
        return None
    said: dict[str, Any] = {"organisation": organisation}
    return json.dumps(said).encode()
