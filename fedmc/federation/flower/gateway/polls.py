"""Which nodes have messages waiting. A node's poll is held here until there is one; the SuperLink hears nothing of it.

The ServerApp says how many messages it pushed for each node. That is only a hint: a poll goes through to the SuperLink
every few seconds in any case, so a lost hint costs seconds and nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fedmc.federation.flower.gateway.limits import Limits


@dataclass
class _Node:
    messages: int = 0  # announced and not yet pulled
    hints: int = 0  # announcements so far
    asked: float = float("-inf")  # when a poll last went through to the SuperLink
    held: asyncio.Future[bool] | None = None  # the newest poll; True wakes it up, False ends it


class Polls:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.nodes: dict[int, _Node] = {}

    def announce(self, node: int, messages: int = 1) -> None:
        """The ServerApp has pushed messages for this node."""
        state = self._of(node)
        state.messages += messages
        state.hints += 1
        self._settle(state, True)

    async def ready(self, node: int, until: float) -> bool:
        """Whether to ask the SuperLink for messages; False when it is later than `until`, or at a newer poll."""
        state, loop = self._of(node), asyncio.get_running_loop()
        self._settle(state, False)  # a node has one poll at a time: an older one is of a process that died
        while True:
            now, due = loop.time(), state.asked + self.limits.fallback
            if state.messages or now >= due:
                return True
            if now >= until:
                return False
            state.held = held = loop.create_future()
            try:
                async with asyncio.timeout_at(min(until, due)):
                    if not await held:
                        return False
            except TimeoutError:
                pass
            finally:
                if state.held is held:
                    state.held = None

    def asking(self, node: int) -> int:
        """A poll goes through now; returns what `answered` wants to know about this moment."""
        state = self._of(node)
        state.asked = asyncio.get_running_loop().time()
        return state.hints

    def answered(self, node: int, moment: int, found: bool) -> None:
        """The SuperLink had a message, or none."""
        state = self._of(node)
        if found:
            state.messages = max(0, state.messages - 1)
        elif moment == state.hints:  # nothing was announced meanwhile
            state.messages = 0

    def end(self) -> None:
        """End all polls that are held."""
        for state in self.nodes.values():
            self._settle(state, False)

    def _of(self, node: int) -> _Node:
        return self.nodes.setdefault(node, _Node())

    @staticmethod
    def _settle(state: _Node, value: bool) -> None:
        if state.held is not None and not state.held.done():
            state.held.set_result(value)
