"""Print text that holds names and values from outside: other organisations, the server, files."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from fedmc.errors import LAYOUT, printable


def echo(text: str, err: bool = False) -> None:
    """Print a text with all characters that a terminal would act on escaped."""
    typer.echo(printable(text, LAYOUT), err=err)


def tell(notes: Iterable[str]) -> None:
    """Print what was guessed and left out, on stderr."""
    for note in notes:
        echo(note, err=True)
