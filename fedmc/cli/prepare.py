"""`fedmc prepare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo, tell
from fedmc.cli.feedback import decide
from fedmc.cli.groups import Events, Form, Side
from fedmc.cli.parsing import parse_names
from fedmc.data.prepare import Plan, read_parts, write_prepared

Option = typer.Option


def prepare(
    source: options.Source,
    out: Annotated[Path, Option(help="The folder to write.")],
    catalogue: Annotated[
        Path | None, Option(help="Catalogue file of the agreed items.", show_default="the items of the source")
    ] = None,
    unknown_items: options.UnknownItems = "refuse",
    partition: options.Partition = "uniform",
    clients: Annotated[int, Option(help="Number of clients, with uniform, dirichlet and power.")] = 1,
    split: Annotated[
        str | None, Option("--split", "--test", help=f"Ratings to hold out for testing: {options.SPLITS}.")
    ] = None,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "refuse",
    seed: Annotated[int, Option(help="Random seed of the partition and the split.")] = 0,
    overwrite: options.Overwrite = False,
    *,
    form: Form,
    side: Side,
    events: Events,
) -> None:
    """Write ratings or events as shards that are mapped into memory: those of one client, or of several."""
    names = parse_names(columns)
    plan = Plan(source, names, query, duplicates, catalogue, unknown_items, split, None, partition, clients, seed)
    plan = plan._replace(wide=form.chosen())
    decided = decide(side.added_to(plan), events, events.feedback)
    parts = read_parts(decided.plan, decided.ratings)
    if parts.report is not None:
        echo(f"dropped: {parts.report}", err=True)
    tell(parts.side.notes)
    write_prepared(out, parts, overwrite)
    what = "events" if decided.events else "ratings"
    typer.echo(f"{len(parts.train):,} {what} of {int(parts.owner.max()) + 1} client(s) in {out}")
