"""`fedmc catalogue grow`: new items after all others, so that the old ones keep their columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmc.cli import options
from fedmc.cli.catalogue import TableOfItems, items_of
from fedmc.cli.parsing import parse_names
from fedmc.data.catalogue import FORMAT, Catalogue, load
from fedmc.data.features import read_features
from fedmc.errors import require
from fedmc.federation.setup import joining
from fedmc.types import Array

Option = typer.Option


def grow(
    catalogue: Annotated[Path, typer.Argument(help="The catalogue file; it is replaced.", metavar="CATALOGUE")],
    more: Annotated[
        list[str] | None,
        typer.Argument(help="Sources of ratings or events, or catalogues of other organisations, with the new items."),
    ] = None,
    items: TableOfItems = None,
    categorical: options.Categorical = None,
    authority: Annotated[
        Path | None, Option(help="The authority's folder: it signs the catalogue, so that running nodes take it in.")
    ] = None,
    out: Annotated[Path | None, Option(help="Where to write it instead.")] = None,
) -> None:
    """Add items to a catalogue. Items keep their columns, so models and what nodes have read stay valid.

    With a table of items, that replaces the one in the catalogue, and its items are added too.
    """
    old = load(catalogue)
    require(bool(more) or items is not None, "name what holds the new items: sources, catalogues, or --items")
    table = None if items is None else read_features(items, "item", parse_names(categorical) or ())
    require(
        old.features is None or table is not None,
        f"{catalogue} has a table of items: give the new one, with all items, as --items",
    )
    parts = [_items(one) for one in more or []]
    grown = old.grown(Catalogue.of(*parts).items if parts else np.empty(0, old.items.dtype), table)
    if authority is not None:
        grown = replace(grown, signature=joining.sign_catalogue(authority, grown))
    target = catalogue if out is None else out
    grown.save(target)
    typer.echo(f"{len(grown):,} items in {target}, {len(grown) - len(old):,} of them new, hash {grown.hash}")
    if authority is None:
        typer.echo("not signed: nodes that run take it in only with --authority; else put it into every folder")


def _items(source: str) -> Array:
    path = Path(source)
    if path.is_file() and FORMAT.encode() in path.open("rb").read(200):
        return load(path).items
    return items_of(source)
