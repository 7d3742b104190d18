"""The operator's token: whoever shows it may read the page. It never travels in an address.

A link to a report cannot carry a header, so it carries a ticket: a MAC over the run's name and the time, by the token.
It opens this one report for a few minutes, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from contextlib import suppress
from pathlib import Path

from fedmc.errors import DataError, require
from fedmc.federation.setup.keys import write_private

FILE = "operator.token"
SPAN = 600  # seconds; a ticket is valid for one to two of them
SHORTEST = 20  # characters


def make_or_load(folder: Path) -> str:
    """The token in this folder; a new one, if there is none."""
    path = folder / FILE
    with suppress(FileExistsError):
        write_private(path, f"{secrets.token_urlsafe(32)}\n".encode())
    bits = path.stat().st_mode & 0o777
    require(not bits & 0o077, f"{path} can be read by others (mode {bits:o}): chmod 600 {path}", DataError)
    token = path.read_text(encoding="ascii", errors="replace").strip()
    plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    cure = "delete it, and the next start makes a new one"
    require(len(token) >= SHORTEST and plain, f"{path} holds no token of {SHORTEST} letters or more: {cure}", DataError)
    return token


def same(shown: str, token: str) -> bool:
    return hmac.compare_digest(shown.encode(), token.encode())


def ticket(token: str, run: str, now: float | None = None) -> str:
    """A ticket for the report of this run."""
    return _mac(token, run, int((time.time() if now is None else now) // SPAN))


def admits(shown: str, token: str, run: str, now: float | None = None) -> bool:
    span = int((time.time() if now is None else now) // SPAN)
    return any(same(shown, _mac(token, run, one)) for one in (span, span - 1))


def _mac(token: str, run: str, span: int) -> str:
    return hmac.new(token.encode(), f"report {span} {run}".encode(), hashlib.sha256).hexdigest()
