"""uvicorn's connection, with what uvicorn leaves open: time limits for requests and answers, and their number."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 16 * 2**10
HEADER = 10.0  # seconds for a request's header, and for the rest of a request that was answered already
EXCHANGE = 60.0  # seconds for a request and its answer, however slowly the peer reads it
CONNECTIONS = 512  # at a time; then the oldest that has shown no token ends, or else one that is idle
KNOWN = "known"  # in the state of a request's scope: it was let in where a token is needed
HEADER_END = re.compile(rb"\n\r?\n")


class Parser(h11.Connection):
    """Reads no body that comes in chunks: thousands of one byte each would hold up everybody. The guard refuses it.

    Refuses a long header also if it comes in one piece, which h11 takes.
    """

    chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.chunked:
            return h11.PAUSED
        if self.their_state is h11.IDLE:
            waiting, _ = self.trailing_data
            if len(waiting) > HEADER_BYTES and not HEADER_END.search(waiting, 0, HEADER_BYTES):
                raise h11.RemoteProtocolError("the header is too long", error_status_hint=431)
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
        self.known = self.ended = False

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def note(self) -> bool:
        """Whether it has shown the token, with this request or one before."""
        self.known = self.known or (self.scope is not None and self.scope["state"].get(KNOWN, False))
        return self.known

    def end(self) -> None:
        self.ended = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()
        there = [one for one in self.connections if isinstance(one, Connection) and not one.ended]
        if len(there) > CONNECTIONS:
            others = [one for one in there if one is not self and not (one.note() and one.answering)]
            min(others or [self], key=lambda one: (one.known, one.began)).end()

    def data_received(self, data: bytes) -> None:
        before = self.answering
        super().data_received(data)
        if self.answering != before or self.timer is None:
            self._start()

    def on_response_complete(self) -> None:
        self._end()  # uvicorn's own timer ends a connection that is idle
        self.note()
        super().on_response_complete()
        if self.answering or self.transport.is_closing():  # the next request was there already, or the peer must read
            self._start()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start()  # closing waits until the peer has read all

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._end()
        self.began = self.loop.time()
        self.timer = self.loop.call_later(EXCHANGE if self.answering else HEADER, self.end)

    def _end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
