"""The log lines of server, gateway and nodes, as text or as JSON (`log_format` in config.toml).

No newline or escape sequence from outside reaches a log or terminal.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime

from fedmc.errors import printable

FORMAT = "%(asctime)s %(levelname)s %(message)s"
MAX_LINE = 4_000  # characters
LOG_FORMATS = ("text", "json")

Field = str | int | float | None


class OneLine(logging.Formatter):
    """One line for each record, of printable characters only; the lines of a traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record)[:MAX_LINE])

    def format(self, record: logging.LogRecord) -> str:
        first, *traceback = super().format(record).split("\n")
        return "\n".join([first, *(f"    {printable(line[:MAX_LINE])}" for line in traceback)])


class JsonLine(logging.Formatter):
    """One JSON object in one line for each record: what the text says, and its fields (`with_fields`)."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Field | list[str]] = {
            "time": at.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name,
            "message": _text(record.getMessage()),
        }  # fmt: skip
        line |= {name: _plain(value) for name, value in getattr(record, "fields", {}).items() if name not in line}
        if record.exc_info:
            line["traceback"] = [_text(one) for one in self.formatException(record.exc_info).split("\n")]
        return json.dumps(line, allow_nan=False)


def formatter(log_format: str) -> logging.Formatter:
    return JsonLine() if log_format == "json" else OneLine()


def with_fields(**fields: Field) -> Mapping[str, Mapping[str, Field]]:
    """What a record says, in fields: the `extra` of a call of a logger. Fields say no more than the message does."""
    return {"fields": fields}


def _plain(value: Field) -> Field:
    if isinstance(value, str):
        return _text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(text: str) -> str:
    return printable(text[:MAX_LINE])
