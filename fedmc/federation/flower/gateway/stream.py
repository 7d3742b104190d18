"""TLS on a non-blocking socket. asyncio's own TLS keeps a quarter of a megabyte for each connection; this, little."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

FEW, MANY = 4 * 2**10, 64 * 2**10  # bytes that are read at once: of a header, of a body


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0  # nodes keep their connections
    context.load_cert_chain(str(certificate), str(key))
    return context


class Stream:
    """Bytes in and out of one connection. It buffers no more than it was asked to read or write."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock, self.context = sock, context
        self.loop = asyncio.get_running_loop()
        self.step = FEW
        self.incoming = self.outgoing = ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None

    async def handshake(self) -> None:
        first = await self.loop.sock_recv(self.sock, FEW)  # until then a connection costs next to nothing
        if not first:
            raise ConnectionResetError
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.incoming.write(first)
        self.tls = self.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        while True:
            try:
                self.tls.do_handshake()
                await self._flush()
                return
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        assert self.tls is not None
        while True:
            try:
                return self.tls.read(self.step)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        """Send all of it; returns when the kernel has taken it."""
        assert self.tls is not None
        for start in range(0, len(data), MANY):
            self.tls.write(data[start : start + MANY])
            await self._flush()

    async def close(self, linger: float = 0.0, most: int = 256 * 2**10) -> None:
        """Say good-bye and hang up. With `linger`, first swallow some of what the peer is still sending, so that it
        reads our last words before the connection breaks."""
        with suppress(OSError, TimeoutError, ValueError):
            if self.tls is not None:
                with suppress(ssl.SSLError):
                    self.tls.unwrap()
                async with asyncio.timeout(1.0):
                    await self._flush()
            if linger:
                self.sock.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(linger):
                    while most > 0 and (got := await self.loop.sock_recv(self.sock, MANY)):
                        most -= len(got)
        self.sock.close()

    async def _fill(self) -> None:
        data = await self.loop.sock_recv(self.sock, self.step)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def _flush(self) -> None:
        if self.outgoing.pending:
            await self.loop.sock_sendall(self.sock, self.outgoing.read())
