"""The gateway's end of the notices (`flower/notices.py`): a socket that only the server's own user can open."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmc.federation.flower.notices import LINE, encode, place_socket

LISTENERS = 16  # ServerApps at the same time; there is one, and now and then a benchmark


class Doorbell:
    def __init__(self, on_messages: Callable[[int, int], None], presence: Callable[[], dict[str, Any]] = dict) -> None:
        self.on_messages, self.presence = on_messages, presence
        self.counts: Counter[str] = Counter()  # forwarded calls, those of the ServerApp, and its messages
        self.short: set[int] = set()  # nodes that speak fedmc's short form
        self.listeners: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def open(self, home: Path) -> None:
        self._path = place_socket(home)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE)
        finally:
            os.umask(mask)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self.listeners):
                writer.close()
            await self._server.wait_closed()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder is Flower's home, unless the path was too long
                self._path.parent.rmdir()

    def replied(self, node: int) -> None:
        """A node's reply is complete at the SuperLink."""
        self._tell({"replied": node})

    def activated(self, node: int) -> None:
        """A node has come, or come back."""
        self._tell({"activated": node})

    def speaks_short(self, node: int, short: bool) -> None:
        if short != (node in self.short):
            (self.short.add if short else self.short.discard)(node)
            self._tell({"short": sorted(self.short)})

    def _tell(self, notice: dict[str, Any]) -> None:
        for writer in self.listeners:
            if writer.transport.get_write_buffer_size() < LINE:  # who does not listen misses it
                writer.write(encode(notice))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.listeners) < LISTENERS:
            self.listeners.add(writer)
            writer.write(encode({"short": sorted(self.short)}))
            with suppress(OSError, ValueError, TypeError, AttributeError):
                while line := await reader.readline():
                    self._hear(json.loads(line), writer)
        self.listeners.discard(writer)
        writer.close()

    def _hear(self, notice: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        for node, count in notice.get("messages", {}).items():
            self.on_messages(int(node), int(count))
            self.counts["messages"] += int(count)
        self.counts["ServerApp"] += int(notice.get("calls", 0))
        if notice.get("counts"):
            writer.write(encode({"counts": dict(self.counts)}))
        if notice.get("presence"):
            writer.write(encode({"presence": self.presence()}))
