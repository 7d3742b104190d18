"""Logging of long-running commands."""

from __future__ import annotations

import logging

from fedmc.cli.echo import echo
from fedmc.federation.logs import JsonLine, formatter

log = logging.getLogger("fedmc")


def log_to_stderr(log_format: str = "text") -> None:
    """Log fedmc's messages to stderr, and only errors of Flower and uvicorn."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("uvicorn").addHandler(handler)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def as_json() -> bool:
    """Whether what this command writes on stderr is a log in JSON."""
    return any(isinstance(one.formatter, JsonLine) for one in log.handlers)


def notice(text: str, level: int = logging.INFO) -> None:
    """A line on stderr for the person who started the command; a record, if stderr is a log in JSON."""
    if as_json():
        log.log(level, "%s", text)
    else:
        echo(text, err=True)
