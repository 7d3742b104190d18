"""Serve a page beside a command, and say where it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmc.cli.logs import as_json, notice
from fedmc.federation.pages.server import Pages
from fedmc.federation.pages.token import FILE


@contextmanager
def served(pages: Pages, folder: Path) -> Iterator[None]:
    """Serve the page inside of the block. Its token is printed to terminals only, not into logs."""
    address = pages.start()
    token = pages.site.token if sys.stderr.isatty() and not as_json() else f"TOKEN, with the token in {folder / FILE}"
    notice(f"page: {address}#{token}")
    try:
        yield
    finally:
        pages.end()
