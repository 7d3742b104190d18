"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
