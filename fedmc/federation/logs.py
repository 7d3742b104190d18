"""The log lines of server, gateway and nodes. No newline or escape sequence from outside reaches a log or terminal."""

from __future__ import annotations

import logging

from fedmc.errors import printable

FORMAT = "%(asctime)s %(levelname)s %(message)s"
MAX_LINE = 4_000  # characters


class OneLine(logging.Formatter):
    """One line for each record, of printable characters only; the lines of a traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record)[:MAX_LINE])

    def format(self, record: logging.LogRecord) -> str:
        first, *traceback = super().format(record).split("\n")
        return "\n".join([first, *(f"    {printable(line[:MAX_LINE])}" for line in traceback)])
