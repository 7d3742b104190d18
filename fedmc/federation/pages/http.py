"""HTTP/1.1 for one request on one connection: its header within a deadline and a size, and an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import h11

from fedmc.web.headers import NOTHING, SAFE
from fedmc.web.token import bearer

VERBS = ("GET", "HEAD")
REASONS = {
    400: "This is not a request that this page understands.",
    401: "The token is missing or wrong: it is in the file operator.token of this folder.",
    404: "There is nothing at this address.",
    405: "This page can be read only: GET or HEAD.",
    408: "The request came too slowly.",
    421: "This page answers to loopback names only.",
    431: "The header is too large.",
    500: "This could not be read: see the log.",
    503: "Too many viewers: close some.",
}


@dataclass(frozen=True)
class Limits:
    """What one peer may take; seconds, bytes and counts."""

    connections: int = 256
    viewers: int = 200  # of these
    header: float = 10.0  # from the connection to the end of the header
    header_bytes: int = 8 * 2**10
    write: float = 15.0  # for a peer to take what is sent
    silence: float = 15.0  # a stream says something at least so often
    pace: float = 1.0  # seconds between two looks, whoever watches


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


class Request(NamedTuple):
    verb: str
    path: str
    query: str
    headers: dict[str, str]  # names in small letters; one that must come once comes once

    @property
    def bearer(self) -> str:
        """The token that came with the request; empty if none did."""
        return bearer(self.headers.get("authorization", ""))


class Exchange:
    """One connection: one request and its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self.reader, self.writer, self.limits = reader, writer, limits
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self.bare = False  # the answer is a header only

    async def request(self) -> Request:
        try:
            async with asyncio.timeout(self.limits.header):
                return _checked(await self._header())
        except TimeoutError:
            raise Refusal(408) from None
        except h11.RemoteProtocolError as error:
            raise Refusal(431 if error.error_status_hint == 431 else 400) from None

    async def _header(self) -> h11.Request:
        while True:
            event = self.protocol.next_event()
            if isinstance(event, h11.Request):
                self.bare = event.method == b"HEAD"
                return event
            if event is not h11.NEED_DATA:
                raise ConnectionResetError
            self.protocol.receive_data(await self.reader.read(2**12))

    async def answer(self, status: int, kind: str, body: bytes, more: Sequence[tuple[str, str]] = ()) -> None:
        await self.start(status, kind, [*more, ("content-length", str(len(body)))])
        await self.send(body)
        await self.end()

    async def refuse(self, status: int) -> None:
        """Say why in a sentence; nothing, if an answer has begun already."""
        if self.protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        more = {401: [("www-authenticate", "Bearer")], 405: [("allow", ", ".join(VERBS))]}
        await self.answer(status, "text/plain; charset=utf-8", f"{REASONS[status]}\n".encode(), more.get(status, ()))

    async def start(self, status: int, kind: str, more: Sequence[tuple[str, str]] = ()) -> None:
        policy = () if any(name == "content-security-policy" for name, _ in more) else (POLICY,)
        headers = [("content-type", kind), *SAFE, ("connection", "close"), *policy, *more]
        await self._write(self.protocol.send(h11.Response(status_code=status, headers=headers)))

    async def send(self, data: bytes) -> None:
        if data and not self.bare:
            await self._write(self.protocol.send(h11.Data(data=data)))

    async def end(self) -> None:
        await self._write(self.protocol.send(h11.EndOfMessage()))

    async def gone(self) -> None:
        """Returns when the peer hangs up, or says something that nobody asked for."""
        await self.reader.read(1)

    async def _write(self, data: bytes | None) -> None:
        if data:
            self.writer.write(data)
            async with asyncio.timeout(self.limits.write):
                await self.writer.drain()


POLICY = ("content-security-policy", NOTHING)


def _checked(event: h11.Request) -> Request:
    """A request without a body that says each thing once."""
    verb, target = event.method.decode("ascii", "replace"), event.target.decode("ascii", "replace")
    headers: dict[str, str] = {}
    for name, value in ((one.decode("ascii"), other.decode("latin-1")) for one, other in event.headers):
        if name in headers and name in ("host", "authorization"):
            raise Refusal(400)
        headers[name] = value
    if verb not in VERBS:
        raise Refusal(405)
    if not target.startswith("/") or "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise Refusal(400)
    path, _, query = target.partition("?")
    return Request(verb, path, query, headers)
