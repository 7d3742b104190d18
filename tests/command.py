"""The `fedmc` command in the test's own process: same output and exit codes, no interpreter to start."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from fedmc.cli import main


def fedmc(*words, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """What `fedmc WORDS` would print and return."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with chdir(cwd or Path()), restored(), redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as exit:
            code = exit.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@contextmanager
def restored() -> Iterator[None]:
    """Signals and log handlers that a command sets for its own process are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = {name: logging.getLogger(name) for name in ("fedmc", "flwr", "httpx", "uvicorn")}
    levels = {name: (logger.level, list(logger.handlers)) for name, logger in loggers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for name, logger in loggers.items():
            level, logger.handlers = levels[name]
            logger.setLevel(level)
