"""`fedmc catalogue`: the items that organisations agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo, tell
from fedmc.cli.groups import Form
from fedmc.cli.parsing import parse_names
from fedmc.data.addresses import without_password
from fedmc.data.builder import Duplicates
from fedmc.data.catalogue import Catalogue, align, load, merged
from fedmc.data.features import read_features
from fedmc.data.feedback import EventOptions
from fedmc.data.forms import Wide
from fedmc.data.prepare import Plan, load_table
from fedmc.data.ratings import Ratings
from fedmc.data.understanding import understand
from fedmc.errors import require
from fedmc.types import Array

Out = Annotated[Path, typer.Option(help="The catalogue file to write.")]
TableOfItems = Annotated[
    str | None,
    typer.Option(
        help="Public table of the items to keep with the catalogue: an id, a title, and columns of numbers or "
        "categories, with a header. Its items are added, and the hash covers it.",
        metavar="FILE",
    ),
]

OfEvents = Annotated[
    Literal["explicit", "implicit"] | None,
    typer.Option(help="Whether the source holds ratings (explicit) or events (implicit).", show_default="recognised"),
]


def make(
    source: options.Source,
    out: Out,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "last",
    items: TableOfItems = None,
    categorical: options.Categorical = None,
    feedback: OfEvents = None,
    *,
    form: Form,
) -> None:
    """Write a catalogue of the items of a source."""
    ratings = _read(source, columns, query, (duplicates, form.chosen()), feedback)
    _save(Catalogue.of(ratings.items), out, items, categorical)


def merge(
    catalogues: Annotated[list[Path], typer.Argument(help="Catalogue files.")],
    out: Out,
    items: TableOfItems = None,
    categorical: options.Categorical = None,
) -> None:
    """Write one catalogue with the items of several."""
    _save(merged([load(path) for path in catalogues]), out, items, categorical)


def check(
    path: Annotated[Path, typer.Argument(help="The catalogue file.", metavar="CATALOGUE")],
    source: options.Source,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "last",
    feedback: OfEvents = None,
    *,
    form: Form,
) -> None:
    """Check that all items of a source are in a catalogue; exit code 2 if not."""
    known = load(path)
    ratings = _read(source, columns, query, (duplicates, form.chosen()), feedback)
    align(ratings, known)
    typer.echo(
        f"all {len(ratings.items):,} items of {without_password(source)} are among the {len(known):,} of {path}, "
        f"hash {known.hash}"
    )


def items_of(source: str) -> Array:
    """The items of a source of ratings or events."""
    return _read(source, None, None, ("last", None), None).items


def _read(
    source: str,
    columns: str | None,
    query: str | None,
    read_as: tuple[Duplicates, Wide | bool | None],
    feedback: str | None,
) -> Ratings:
    """The table: any of its items belong to the catalogue, so what the values mean does not matter."""
    plan = Plan(source, parse_names(columns), query, read_as[0], wide=read_as[1])
    if feedback is None:
        found = understand(plan).ratings
        if found is not None:
            tell(found.notes)
            return found
    read = load_table(plan._replace(events=None if feedback == "explicit" else EventOptions()))
    tell(read.notes)
    return read


def _save(made: Catalogue, out: Path, items: str | None, categorical: str | None) -> None:
    if items is not None:
        require(made.features is None, "these catalogues have a table of items already: leave out --items")
        found = read_features(items, "item", parse_names(categorical) or ())
        before = len(made)
        made = made.with_table(found)
        echo(f"items: {found.summary()}; {len(made) - before:,} of them were not in the catalogue", err=True)
        if found.notes:
            echo(f"items: left out {'; '.join(found.notes)}", err=True)
    require(items is not None or categorical is None, "--categorical names columns of --items: give that too")
    made.save(out)
    typer.echo(f"{len(made):,} items in {out}, hash {made.hash}")
