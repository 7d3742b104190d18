"""uvicorn's connection, with what uvicorn leaves open: time limits for requests and answers, and their number."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 16 * 2**10
HEADER = 10.0  # seconds for a request's header, and for the rest of a request that was answered already
EXCHANGE = 60.0  # seconds for a request and its answer, however slowly the peer reads it
CONNECTIONS = 512  # at a time; then one that is idle ends: the oldest that has shown no token, if there is one
KNOWN = "known"  # in the state of a request's scope: it has shown the token


class Parser(h11.Connection):
    """Reads no body that comes in chunks: thousands of one byte each would hold up everybody. The guard refuses it."""

    chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.chunked:
            return h11.PAUSED
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        return event


class Connection(H11Protocol):
    """Ends a connection whose peer is too slow, or that is one too many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Parser(h11.SERVER, self.config.h11_max_incomplete_event_size or HEADER_BYTES)
        self.timer: asyncio.TimerHandle | None = None
        self.known = False

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()
        there = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        others = [one for one in there if one is not self]
        if len(others) >= CONNECTIONS:
            idle = [one for one in others if not one.answering] or [self]
            min(idle, key=lambda one: (one.known, one.began)).transport.abort()

    def data_received(self, data: bytes) -> None:
        before = self.answering
        super().data_received(data)
        if self.answering != before or self.timer is None:
            self._start()

    def on_response_complete(self) -> None:
        self._end()  # uvicorn's own timer ends a connection that is idle
        self.known = self.known or self.scope["state"].get(KNOWN, False)
        super().on_response_complete()
        if self.answering:  # the next request was there already
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._end()
        self.began = self.loop.time()
        self.timer = self.loop.call_later(EXCHANGE if self.answering else HEADER, self.transport.abort)

    def _end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
