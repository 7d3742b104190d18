"""`fedmc node models` and `rollback`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.node import Folder
from fedmc.cli.runs import to_json
from fedmc.cli.times import utc
from fedmc.federation.node import models
from fedmc.federation.setup.layout import load_node


def list_models(folder: Folder = Path(), as_json: options.AsJson = False) -> None:
    """List the models of the organisation's runs, the newest first, and which is in use."""
    known = models.versions(load_node(folder))
    for one in known:
        rmse = "" if one.rmse is None else f"   held-out RMSE {one.rmse:.4f}"
        echo(f"{one.run}   {utc(one.written)}   {one.megabytes:.1f} MB{rmse}{'   in use' if one.in_use else ''}")
    if not known:
        typer.echo("no models yet: they are written at the end of a run")
    if as_json:
        typer.echo(to_json({"models": [one._asdict() for one in known]}))


def rollback(
    folder: Folder = Path(),
    to: Annotated[str | None, typer.Option(help="Run whose model to use.", show_default="the one before")] = None,
) -> None:
    """Use an earlier model again, or a newer one: `model.npz` becomes that of another run. No model is deleted."""
    run = models.rollback(load_node(folder), to)
    echo(f"the model of run {run} is in use")
