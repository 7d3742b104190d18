"""Whose nodes are there, as the gateway sees it: when each organisation called last, and its open connections.

A node of fedmc keeps a connection to the gateway as long as it lives, also while it computes, and its system closes it
when the node dies. So a node without a connection is gone, and one with a connection is there, as long as it calls now
and then. A stock SuperNode opens connections when it needs them: of it only the calls count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

SILENT = 60.0  # seconds without a call after which a node is gone: an idle one calls every 20 s, one at work every 30 s
BREAK = 4.0  # seconds without a connection that a node may take to connect again


class Seen(NamedTuple):
    """What was seen of an organisation's node; times are seconds since 1970."""

    heard: float | None = None
    connections: int = 0
    closed: float = 0.0  # when its last connection was closed
    stays: bool = False  # whether it keeps its connections: a node of fedmc, no stock SuperNode


class Presence:
    """The gateway writes it, in one thread; pages and `fedmc federation status` read it."""

    def __init__(self, began: float | None = None, seen: Mapping[str, Seen] | None = None) -> None:
        self.began = time.time() if began is None else began
        self._seen = dict(seen or {})

    def hear(self, name: str) -> None:
        """A call with a valid signature came."""
        self._seen[name] = self.seen(name)._replace(heard=time.time())

    def stays(self, name: str, stays: bool) -> None:
        self._seen[name] = self.seen(name)._replace(stays=stays)

    def connected(self, name: str, connections: int) -> None:
        """So many connections of this organisation are open now."""
        before = self.seen(name)
        closed = before.closed if connections else time.time()
        self._seen[name] = before._replace(connections=connections, closed=closed)

    def seen(self, name: str) -> Seen:
        return self._seen.get(name, Seen())

    def there(self, name: str, now: float | None = None) -> bool | None:
        """Whether the node is there; None if the gateway began too late to know."""
        now, seen = time.time() if now is None else now, self.seen(name)
        if seen.heard is None:
            return None if now - self.began <= SILENT else False
        if seen.stays and not seen.connections and now - max(seen.closed, seen.heard) >= BREAK:
            return False
        return now - seen.heard < SILENT

    def as_json(self) -> dict[str, Any]:
        return {"began": self.began, "nodes": dict(self._seen)}


def from_json(said: Mapping[str, Any]) -> Presence:
    """Inverse of `as_json`."""
    return Presence(float(said["began"]), {name: Seen(*seen) for name, seen in said["nodes"].items()})
