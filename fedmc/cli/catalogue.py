"""`fedmc catalogue`: the items that organisations agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options
from fedmc.cli.parsing import parse_names
from fedmc.data.addresses import without_password
from fedmc.data.catalogue import Catalogue, align, load
from fedmc.data.datasets import load_source

Out = Annotated[Path, typer.Option(help="The catalogue file to write.")]


def make(
    source: options.Source,
    out: Out,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "last",
) -> None:
    """Write a catalogue of the items of a source."""
    ratings = load_source(source, parse_names(columns), query=query, duplicates=duplicates)
    _save(Catalogue.of(ratings.items), out)


def merge(catalogues: Annotated[list[Path], typer.Argument(help="Catalogue files.")], out: Out) -> None:
    """Write one catalogue with the items of several."""
    _save(Catalogue.of(*(load(path).items for path in catalogues)), out)


def check(
    path: Annotated[Path, typer.Argument(help="The catalogue file.", metavar="CATALOGUE")],
    source: options.Source,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "last",
) -> None:
    """Check that all items of a source are in a catalogue; exit code 2 if not."""
    known = load(path)
    ratings = load_source(source, parse_names(columns), query=query, duplicates=duplicates)
    align(ratings, known)
    typer.echo(
        f"all {len(ratings.items):,} items of {without_password(source)} are among the {len(known):,} of {path}, "
        f"hash {known.hash}"
    )


def _save(made: Catalogue, out: Path) -> None:
    made.save(out)
    typer.echo(f"{len(made):,} items in {out}, hash {made.hash}")
