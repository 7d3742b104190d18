"""The server signs what it sends, and numbers it."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation import envelope
from fedmc.federation.protocol import DEFAULT, Served

AHEAD = 60 * 10**9  # numbers that are reserved at a time, so that few messages cost a write to the disk


class Counter:
    """Numbers that grow over all runs and restarts: the clock's nanoseconds, or one more than the last number.

    With a `path`, they grow even if the clock is set back: it holds a number that none before has reached.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.last = path, 0
        if path is not None and path.exists():
            try:
                self.last = int(path.read_text(encoding="ascii"))
            except ValueError:
                raise DataError(f"{path} is damaged: it must hold a number; delete it if the clock is right") from None
        self._reserved = self.last

    def next(self) -> int:
        self.last = max(time.time_ns(), self.last + 1)
        if self.path is not None and self.last >= self._reserved:
            self._reserved = self.last + AHEAD
            write_whole(self.path, str(self._reserved).encode())
        return self.last


class Signer:
    """Seals a server's messages to its nodes."""

    def __init__(self, key: Ed25519PrivateKey, counter: Counter | None = None) -> None:
        self._key, self._counter = key, counter or Counter()

    def seal(self, content: bytes, addressee: str, served: Served = DEFAULT) -> bytes:
        return envelope.seal(content, self._key, addressee, self._counter.next(), served)
