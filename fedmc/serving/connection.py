"""uvicorn's connection, with what uvicorn leaves open: time limits for requests and answers, and for their number."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER = 10.0  # seconds for a request's header, and for the rest of a request that was answered already
EXCHANGE = 60.0  # seconds for a request and its answer, however slowly the peer reads it
CONNECTIONS = 512  # at a time; then the one that has been idle longest ends


class Connection(H11Protocol):
    """Ends a connection whose peer is too slow, or that is one too many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer: asyncio.TimerHandle | None = None

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
            min(idle, key=lambda one: one.began).transport.abort()

    def data_received(self, data: bytes) -> None:
        before = self.answering
        super().data_received(data)
        if self.answering != before or self.timer is None:
            self._start()

    def on_response_complete(self) -> None:
        self._end()  # uvicorn's own timer ends a connection that is idle
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
