"""Calls to the SuperLink on loopback. Bodies and replies pass through in pieces; nothing large is kept."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import httpx
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedmc.federation.flower.gateway.auth import BAD_SIGNATURE, FLOWER
from fedmc.federation.flower.gateway.calls import PREFIX
from fedmc.federation.flower.gateway.http import Headers

CARRIED = (b"content-type", b"accept")  # in both directions, besides Flower's own headers
PROTOBUF = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode())]
PATIENCE = 120.0  # seconds for a reply of the SuperLink


class Reply(NamedTuple):
    status: int
    headers: Headers
    size: int | None  # if it is known before
    pieces: AsyncIterator[bytes]

    async def whole(self, most: int) -> bytes | None:
        """The body, if it has at most so many bytes."""
        body = bytearray()
        async for piece in self.pieces:
            body += piece
            if len(body) > most:
                return None
        return bytes(body)


class DownError(Exception):
    """The SuperLink does not answer."""


class Backend(Protocol):
    """The SuperLink, or a stub of it."""

    def call(
        self, name: str, headers: Headers, body: bytes | AsyncIterator[bytes], size: int
    ) -> AbstractAsyncContextManager[Reply]: ...

    async def close(self) -> None: ...


class SuperLink:
    def __init__(self, address: str, ca: Path) -> None:
        context = ssl.create_default_context(cafile=str(ca))
        self.client = httpx.AsyncClient(
            base_url=address, verify=context, timeout=httpx.Timeout(PATIENCE, connect=10.0), trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=120.0),
        )  # fmt: skip

    @asynccontextmanager
    async def call(
        self, name: str, headers: Headers, body: bytes | AsyncIterator[bytes], size: int
    ) -> AsyncIterator[Reply]:
        """Send a node's call with the headers that it signed, and open the reply."""
        sent = [*carried(headers), (b"content-length", b"%d" % size), (b"accept-encoding", b"identity")]
        try:
            async with self.client.stream("POST", PREFIX + name, content=body, headers=sent) as reply:
                length = reply.headers.get("content-length")
                size_known = int(length) if length is not None else None
                yield Reply(_status(reply.status_code), carried(reply.headers.raw), size_known, reply.aiter_raw())
        except httpx.HTTPError as error:
            raise DownError(f"the SuperLink does not answer: {type(error).__name__} {error}") from error

    async def close(self) -> None:
        await self.client.aclose()


def carried(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers that pass through: those that the two sides need, and no other."""
    lower = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in lower if name in CARRIED or name.startswith(FLOWER)]


def _status(code: int) -> int:
    """At 401 Flower's client ends its process; and a fault of the SuperLink is not one of the gateway."""
    return BAD_SIGNATURE if code == 401 else 502 if code >= 500 else code
