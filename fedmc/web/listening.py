"""Sockets to listen on."""

from __future__ import annotations

import socket


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket; port 0: any.

    Its connections send at once (TCP_NODELAY). asyncio sets this only for sockets that name TCP as their protocol, and
    those of `create_server` do not: an answer in two parts would wait 40 ms for the peer's acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=backlog)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
