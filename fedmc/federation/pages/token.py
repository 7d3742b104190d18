"""The operator's token: whoever shows it may read the page. It never travels in an address.

A link to a report cannot carry a header, so it carries a ticket: a MAC over the run's name and the time, by the token.
It opens this one report for a few minutes, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path

from fedmc.web import token
from fedmc.web.token import same as same

FILE = "operator.token"
SPAN = 600  # seconds; a ticket is valid for one to two of them


def make_or_load(folder: Path) -> str:
    """The token in this folder; a new one, if there is none."""
    return token.make_or_load(folder / FILE)


def ticket(secret: str, run: str, now: float | None = None) -> str:
    """A ticket for the report of this run."""
    return _mac(secret, run, int((time.time() if now is None else now) // SPAN))


def admits(shown: str, secret: str, run: str, now: float | None = None) -> bool:
    span = int((time.time() if now is None else now) // SPAN)
    return any(same(shown, _mac(secret, run, one)) for one in (span, span - 1))


def _mac(secret: str, run: str, span: int) -> str:
    return hmac.new(secret.encode(), f"report {span} {run}".encode(), hashlib.sha256).hexdigest()
