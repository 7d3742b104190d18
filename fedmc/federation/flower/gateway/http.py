"""HTTP/1.1 on one connection: headers and bodies come within their deadlines, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import h11

from fedmc.federation.flower.gateway.limits import Limits
from fedmc.federation.flower.gateway.stream import FEW, MANY, Stream

Headers = Sequence[tuple[bytes, bytes]]


class Refusal(Exception):  # noqa: N818
    """A request that is not forwarded; `why` is for the log, the peer learns the status only."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class GoneError(Exception):
    """The peer hung up."""


class Http:
    def __init__(self, stream: Stream, limits: Limits) -> None:
        self.stream, self.limits = stream, limits
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes - FEW)

    async def request(self, patience: float) -> h11.Request:
        """The next header. Its first byte may take `patience` seconds, the rest of it less."""
        if self.protocol.our_state is h11.DONE:
            self.protocol.start_next_cycle()
        self.stream.step = FEW
        event = self._next()
        if event is h11.NEED_DATA and not self.protocol.trailing_data[0]:
            async with asyncio.timeout(patience):
                await self._feed()
            event = self._next()
        deadline = asyncio.get_running_loop().time() + self.limits.header
        while event is h11.NEED_DATA:
            await self._feed_until(deadline, "its header")
            event = self._next()
        if not isinstance(event, h11.Request):
            raise GoneError
        return event

    async def body(self, size: int) -> AsyncIterator[bytes]:
        """The body of `size` bytes, piece by piece; a Refusal if it comes too slowly, or stalls."""
        loop, limits = asyncio.get_running_loop(), self.limits
        deadline = loop.time() + limits.body_seconds(size)
        if self.protocol.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        self.stream.step = MANY
        while True:
            event = self._next()
            if event is h11.NEED_DATA:
                await self._feed_until(min(deadline, loop.time() + limits.stall), "its body")
            elif isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise GoneError

    async def whole_body(self, size: int) -> bytes:
        """A body that was declared to be small."""
        return b"".join([piece async for piece in self.body(size)])

    async def answer(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.send(body)
        await self.end()

    async def start(self, status: int, headers: Headers) -> None:
        await self._send(h11.Response(status_code=status, headers=list(headers)))

    async def send(self, data: bytes) -> None:
        if data:
            await self._send(h11.Data(data=data))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int) -> None:
        """Answer with this status and hang up; nothing, if an answer has begun already."""
        if self.protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self.answer(status, [(b"connection", b"close")])
        await self.stream.close(linger=2.0)

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.protocol.our_state is h11.DONE and self.protocol.their_state is h11.DONE

    async def gone(self) -> None:
        """Returns when the peer hangs up. What it sends meanwhile is kept, up to the size of a header."""
        while len(self.protocol.trailing_data[0]) < self.limits.header_bytes:
            data = await self.stream.read()
            if not data:
                return
            self.protocol.receive_data(data)
        await asyncio.get_running_loop().create_future()  # it sends far too much: the next read deals with that

    async def _feed_until(self, deadline: float, what: str) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._feed()
        except TimeoutError:
            raise Refusal(408, f"it sends {what} too slowly") from None

    async def _feed(self) -> None:
        data = await self.stream.read()
        if not data and self.protocol.their_state is h11.IDLE:
            raise GoneError
        self.protocol.receive_data(data)

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self.protocol.next_event()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            raise Refusal(status if 400 <= status < 500 else 400, f"not HTTP: {error}"[:200]) from None

    async def _send(self, event: h11.Event) -> None:
        data = self.protocol.send(event)
        if data:
            async with asyncio.timeout(self.limits.stall + len(data) / self.limits.rate):
                await self.stream.write(data)
