"""Who may hold a connection to the gateway.

A connection is a stranger's until it has shown a valid signature. Strangers are bounded in total and by address. When
there is one too many, the oldest leaves: refusing the newest would let whoever came first keep everybody else out,
also nodes that share the attacker's address. Members are counted by key, so that a key can crowd out only itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass

from fedmc.federation.flower.gateway.limits import Limits


@dataclass(eq=False)
class Visitor:
    """An open connection: where it comes from, the task that serves it, and its key once that is proven."""

    address: str
    task: asyncio.Task[None]
    key: bytes | None = None
    busy: bool = False  # a call of it is being answered
    ended: bool = False

    def dismiss(self) -> None:
        """Close the connection; its task does the rest."""
        if not self.ended:
            self.ended = True
            self.task.cancel()


Queue = dict[Visitor, None]  # in the order of their arrival


class Admission:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.strangers: dict[str, Queue] = {}  # by address
        self.members: dict[bytes, Queue] = {}  # by key
        self.total = 0  # strangers

    def enter(self, address: str, task: asyncio.Task[None]) -> Visitor:
        """Let a new connection in; the oldest stranger of its address, or of the fullest one, may have to leave."""
        visitor, limits = Visitor(source(address), task), self.limits
        queue = self.strangers.setdefault(visitor.address, {})
        queue[visitor] = None
        self.total += 1
        if len(queue) > limits.strangers_by_address:
            self._dismiss_oldest(queue)
        elif self.total > limits.strangers:
            self._dismiss_oldest(max(self.strangers.values(), key=len))
        return visitor

    def prove(self, visitor: Visitor, key: bytes) -> None:
        """The connection has shown a valid signature of this key; it is now the newest of that key."""
        if visitor.ended:
            return
        self._remove(visitor)
        visitor.key = key
        queue = self.members.setdefault(key, {})
        queue[visitor] = None
        if len(queue) > self.limits.connections_by_key:
            self._dismiss_oldest(queue)

    def everybody(self) -> list[Visitor]:
        return [one for queues in (self.strangers, self.members) for queue in queues.values() for one in queue]

    def leave(self, visitor: Visitor) -> None:
        visitor.ended = True
        self._remove(visitor)

    def _dismiss_oldest(self, queue: Queue) -> None:
        oldest = next(iter(queue))
        self._remove(oldest)
        oldest.dismiss()

    def _remove(self, visitor: Visitor) -> None:
        found: Queue | None
        if visitor.key is None:
            found = self.strangers.get(visitor.address)
            if found is None or visitor not in found:
                return
            self.total -= 1
            del found[visitor]
            if not found:
                del self.strangers[visitor.address]
        else:
            found = self.members.get(visitor.key, {})
            found.pop(visitor, None)


def source(address: str) -> str:
    """What counts as one address: of IPv6 the network, since a machine has all of its addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
