"""Print text that holds names and values from outside: other organisations, the server, files."""

from __future__ import annotations

import typer

from fedmc.errors import LAYOUT, printable


def echo(text: str, err: bool = False) -> None:
    """Print a text with all characters that a terminal would act on escaped."""
    typer.echo(printable(text, LAYOUT), err=err)
