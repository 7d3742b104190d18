"""How many large bodies a key may send at the same time. A body that has to wait is not read meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fedmc.federation.flower.gateway.http import Refusal
from fedmc.federation.flower.gateway.limits import Limits


@dataclass
class _Key:
    count: int = 0
    bytes: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Bodies:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.keys: dict[bytes, _Key] = {}

    @asynccontextmanager
    async def turn(self, key: bytes, size: int) -> AsyncIterator[None]:
        """Wait until the key may send a body of this size; a Refusal if that takes too long."""
        state = self.keys.setdefault(key, _Key())
        try:
            async with asyncio.timeout(self.limits.turn):
                while self._full(state, size):
                    mine = asyncio.get_running_loop().create_future()
                    state.waiting.append(mine)
                    await mine
        except TimeoutError:
            raise Refusal(503, "too many bodies of one key at the same time") from None
        state.count, state.bytes = state.count + 1, state.bytes + size
        try:
            yield
        finally:
            state.count, state.bytes = state.count - 1, state.bytes - size
            while state.waiting:
                first = state.waiting.popleft()
                if not first.done():
                    first.set_result(None)

    def _full(self, state: _Key, size: int) -> bool:
        if state.count >= self.limits.bodies_by_key:
            return True
        return state.count > 0 and state.bytes + size > self.limits.bytes_by_key
