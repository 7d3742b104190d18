"""A TCP proxy on loopback that delays what passes through it, each way: a slow network without privileges."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

from fedmc.federation.flower.superlink import free_port


class DelayingProxy:
    """Forwards `port` to another one; each piece arrives `delay` seconds later. It ends with its block."""

    def __init__(self, target: int, delay: float) -> None:
        self.target, self.delay, self.port = target, delay, free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> DelayingProxy:
        self._thread.start()
        time.sleep(0.2)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(5)

    def _end(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda done: self._loop.stop())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", self.port))
        self._loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            data = b"-"
            while data:
                with suppress(OSError):
                    data = await reader.read(1 << 16)
                await pieces.put((self._loop.time() + self.delay, data))

        reading = asyncio.ensure_future(read())
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if not data:
                break
            with suppress(OSError):
                writer.write(data)
                await writer.drain()
        reading.cancel()
        with suppress(OSError):
            writer.close()
