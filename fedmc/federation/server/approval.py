"""A run that organisations approve one by one: the server asks those again that have yet to approve it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedmc.federation.server.members import Transport
from fedmc.federation.server.telling import status_of
from fedmc.federation.statuses import AWAITING_APPROVAL

PAUSE = 2.0  # seconds until a node is asked again


class ApprovalTransport:
    """Waits up to `patience` seconds for approval, while fewer than `needed` of the nodes have given it.

    `on_waiting` is called with the nodes that are waited for whenever they change.
    """

    def __init__(self, inner: Transport, patience: float, on_waiting: Callable[[list[int]], None]) -> None:
        self.inner, self.patience, self.on_waiting = inner, patience, on_waiting
        self._said: list[int] = []

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        answers = dict(self.inner.exchange(contents, max_bytes, needed))
        until = time.monotonic() + self.patience
        while True:
            waiting = [client for client, answer in sorted(answers.items()) if status_of(answer) == AWAITING_APPROVAL]
            self._say(waiting)
            left = until - time.monotonic()
            if not waiting or len(answers) - len(waiting) >= needed or left <= 0:
                return answers
            time.sleep(min(PAUSE, left))
            answers |= self.inner.exchange({client: contents[client] for client in waiting}, max_bytes, 0)

    def _say(self, waiting: list[int]) -> None:
        if waiting != self._said:
            self.on_waiting(waiting)
        self._said = waiting
