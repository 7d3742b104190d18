"""Serve a page beside a command, and say where it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.logs import as_json, notice
from fedmc.federation.pages.server import Pages
from fedmc.federation.pages.token import FILE

PagePort = Annotated[
    int | None,
    typer.Option(
        "--page", min=0, max=65535, help="Port of the page, on loopback; 0: any.", show_default="config.toml's"
    ),
]
NoPage = Annotated[bool, typer.Option("--no-page", help="Serve no page.")]


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
