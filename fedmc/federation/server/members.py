"""What the server knows about the nodes it asks, and what it needs of a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedmc.federation.protocol import DEFAULT, Served


class Transport(Protocol):
    """Carries all messages through one method; tests use an in-process one."""

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        """The nodes' answers of at most `max_bytes`; waits for absent nodes only while fewer than `needed` answered."""
        ...


class Members(NamedTuple):
    """The nodes of a run."""

    clients: int
    items: int
    catalogue: str  # hash
    quorum: int
    pinned: Mapping[int, Ed25519PublicKey]  # public identities, for secure aggregation
    names: Sequence[str] = ()  # of the organisations: for people, and the addressees of messages
    served: Served = DEFAULT  # the protocols that its nodes may speak
    listed: str = ""  # the hash of the list that they are of, for secure aggregation

    def name(self, client: int) -> str:
        return self.names[client] if client < len(self.names) else f"node {client}"


class Absent(NamedTuple):
    """A node that did not count in a round, and why."""

    client: int
    round: int
    why: str
