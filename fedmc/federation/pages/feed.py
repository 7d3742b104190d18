"""What all viewers share: one view, made at most once a second, and only while somebody asks for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import NamedTuple

from fedmc.errors import reason

log = logging.getLogger("fedmc.page")


class View(NamedTuple):
    """What there is to see now."""

    data: bytes  # JSON, in one line
    metrics: Callable[[], bytes]  # the same as Prometheus' text


class Feed:
    def __init__(self, look: Callable[[], View], pace: float) -> None:
        self.look, self.pace = look, pace
        self.viewers = self.looks = 0
        self._made, self._view = float("-inf"), View(b"{}", bytes)
        self._lock, self._changed = asyncio.Lock(), asyncio.Condition()
        self._ticking: asyncio.Task[None] | None = None

    async def latest(self) -> View:
        """The view, at most `pace` seconds old. It is made in a thread: a slow disk holds nobody up."""
        async with self._lock:
            if time.monotonic() - self._made >= self.pace:
                self.looks += 1
                self._view = await asyncio.to_thread(self.look)
                self._made = time.monotonic()
            return self._view

    async def views(self, silence: float) -> AsyncGenerator[bytes | None, None]:
        """The data now and after each change; None after `silence` seconds without one."""
        self.viewers += 1
        try:
            said = (await self.latest()).data
            yield said
            if self._ticking is None:
                self._ticking = asyncio.create_task(self._tick())
            while True:
                now = await self._after(said, silence)
                yield None if now == said else now
                said = now
        finally:
            self.viewers -= 1
            if not self.viewers and self._ticking is not None:
                self._ticking.cancel()
                self._ticking = None

    async def _after(self, said: bytes, silence: float) -> bytes:
        """The data once they are others than `said`, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(silence), self._changed:
                await self._changed.wait_for(lambda: self._view.data != said)
        return self._view.data

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.pace)
            before = self._view.data
            try:
                now = (await self.latest()).data
            except Exception as error:  # the next look may succeed
                log.warning("cannot look: %s", reason(error))
                continue
            if now != before:
                async with self._changed:
                    self._changed.notify_all()
