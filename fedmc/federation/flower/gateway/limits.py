"""The gateway's deadlines, sizes and counts. docs/explanation/gateway.md says what each is for."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Limits:
    """What one peer may take of the gateway; seconds, bytes and counts."""

    # Connections that have not shown a valid signature yet.
    strangers: int = 512
    strangers_by_address: int = 256
    handshake: float = 10.0  # from the accepted connection to the end of the TLS handshake
    header: float = 10.0  # from the first byte of a header, or from the handshake, to its end
    header_bytes: int = 16 * KIB
    # Members: connections with a valid signature, and what they carry.
    connections_by_key: int = 16
    bodies_by_key: int = 4  # large bodies at the same time; others wait
    bytes_by_key: int = 128 * MIB  # declared bytes of these bodies
    calls_rate: int = 50  # heartbeats and other small calls in a second, in the long run
    calls_burst: int = 200  # and at once
    idle: float = 120.0  # a member's connection without a call
    turn: float = 30.0  # a large body waits so long for its turn
    # Bodies.
    object_bytes: int = 64 * MIB  # of one pushed object; Flower sends arrays in pieces of 20 MB
    reply_bytes: int = 1280 * MIB  # of all objects of one pushed message; a node's reply has up to 400 MB of numbers
    message_bytes: int = MIB  # of pushed messages, with their small payloads
    small_bytes: int = 16 * KIB  # of every other call
    delivered_bytes: int = 8 * MIB  # of a pulled message, without its objects
    body: float = 15.0  # seconds for a body in addition to its size / rate
    rate: int = 16 * KIB  # bytes per second that a sender or reader must keep up
    stall: float = 30.0  # seconds without a byte
    # Polls.
    hold: float = 25.0  # the longest that a poll is held; Flower's client gives up after 30 s
    fallback: float = 5.0  # a poll goes through to the SuperLink at least so often, whatever the ServerApp said
    # The log.
    log_lines: int = 20  # a minute, about strangers and about each member

    def body_seconds(self, size: int) -> float:
        """How long a body of this size may take."""
        return self.body + size / self.rate

    def files(self, keys: int) -> int:
        """Open files that these limits may need: two for each member's connection, and some for the rest."""
        return self.strangers + 2 * keys * self.connections_by_key + 128


def allow_files(wanted: int) -> int:
    """Raise the soft limit on open files to `wanted` if the hard one permits; returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
