"""Attackers on a gateway, as one process: python attackers.py PORT SECONDS KEY SHARE ADDRESS ...

Together, and from the given loopback addresses in turn: 1,000 idle connections (half of them after a TLS handshake),
200 half-sent headers, 50 bodies sent a byte a second, and 20 floods of 64 MB. They know a member's public KEY, which
is no secret, and have no signature. Whoever is thrown out comes back. SHARE of 1 is all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import socket
import ssl
import sys
from contextlib import suppress

PORT, SECONDS, KEY, SHARE, *ADDRESSES = sys.argv[1:]
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
addresses = itertools.cycle(ADDRESSES)
counts = dict.fromkeys(("plain", "idle", "header", "drip", "flood"), 0)  # connections made


async def connection(kind: str, secure: bool = True):
    counts[kind] += 1
    return await asyncio.open_connection(
        "127.0.0.1", int(PORT), local_addr=(next(addresses), 0), ssl=CONTEXT if secure else None
    )


def header(size: int) -> bytes:
    lines = (
        f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\nflwr-public-key: {KEY}\r\ncontent-length: {size}\r\n\r\n"
    )
    return lines.encode()


async def idle(kind: str) -> None:
    reader, writer = await connection(kind, secure=kind == "idle")
    try:
        await reader.read()
    finally:
        writer.close()


async def drip(kind: str) -> None:
    """A header, or a body, a byte a second."""
    _, writer = await connection(kind)
    try:
        writer.write(header(2**16) if kind == "drip" else header(2**16)[:40])
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(1)
    finally:
        writer.close()


async def flood(kind: str) -> None:
    _, writer = await connection(kind)
    try:
        writer.write(header(64 * 2**20))
        for _ in range(1024):
            if writer.is_closing():
                return
            writer.write(bytes(2**16))
            await writer.drain()
    finally:
        writer.close()


async def again(attack, kind: str, pause: float) -> None:
    """Attack, and come back when thrown out."""
    while True:
        with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            await attack(kind)
        await asyncio.sleep(pause)


async def main() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    plan = [(idle, "plain", 500, 10.0), (idle, "idle", 500, 10.0), (drip, "header", 200, 2.0), (drip, "drip", 50, 2.0),
            (flood, "flood", 20, 1.0)]  # fmt: skip
    tasks = []
    for attack, kind, number, pause in plan:
        for _ in range(max(1, round(number * float(SHARE)))):
            tasks.append(asyncio.create_task(again(attack, kind, pause)))
            if len(tasks) % 50 == 0:
                await asyncio.sleep(0.05)
    print("attacking", flush=True)
    await asyncio.sleep(float(SECONDS))
    print(counts, flush=True)


if __name__ == "__main__":
    os.nice(5)  # they would have machines of their own
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else max(soft, hard), hard))
    socket.setdefaulttimeout(None)
    with suppress(KeyboardInterrupt):
        asyncio.run(asyncio.wait_for(main(), float(SECONDS) + 60))
    os._exit(0)
