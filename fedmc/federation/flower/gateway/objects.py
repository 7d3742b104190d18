"""Which objects a node may pull, and which it has announced and still has to push.

Flower's store knows objects by hash only: whoever knows one can pull or delete it. So a node pulls and confirms only
what was delivered to it, and pushes only what it announced. This is forgotten when the gateway restarts; the server
then asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

DELIVERED, REPLIES = 4096, 64  # object ids and unfinished replies that are remembered for a node


@dataclass
class _Reply:
    waiting: set[str]  # objects still to come
    bytes: int = 0  # of those that have come


@dataclass
class _Node:
    delivered: dict[str, None] = field(default_factory=dict)
    announced: dict[str, _Reply] = field(default_factory=dict)  # by message


class Objects:
    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}

    def deliver(self, node: int, ids: Iterable[str]) -> None:
        """These objects belong to a message for the node."""
        known = self._of(node).delivered
        known |= dict.fromkeys(ids)
        _shorten(known, DELIVERED)

    def may_pull(self, node: int, name: str) -> bool:
        return name in self._of(node).delivered

    def announce(self, node: int, message: str, missing: Iterable[str]) -> bool:
        """The node pushed a message and is to push these objects; whether the message is complete already."""
        waiting = set(missing)
        if waiting:
            known = self._of(node).announced
            before = known.get(message)
            known[message] = _Reply(waiting, 0 if before is None else before.bytes)
            _shorten(known, REPLIES)
        return not waiting

    def may_push(self, node: int, name: str) -> bool:
        return any(name in reply.waiting for reply in self._of(node).announced.values())

    def reply_bytes(self, node: int, name: str) -> int:
        """The bytes that have come of the largest reply which waits for this object."""
        return max((reply.bytes for reply in self._of(node).announced.values() if name in reply.waiting), default=0)

    def pushed(self, node: int, name: str, size: int) -> bool:
        """The SuperLink has stored this object of so many bytes; whether a message is complete with it."""
        known, complete = self._of(node).announced, []
        for message, reply in known.items():
            if name in reply.waiting:
                reply.waiting.discard(name)
                reply.bytes += size
            if not reply.waiting:
                complete.append(message)
        for message in complete:
            del known[message]
        return bool(complete)

    def _of(self, node: int) -> _Node:
        return self.nodes.setdefault(node, _Node())


def _shorten(known: dict[str, None] | dict[str, _Reply], length: int) -> None:
    while len(known) > length:
        del known[next(iter(known))]
