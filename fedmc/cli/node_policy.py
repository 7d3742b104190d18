"""`fedmc node approve` and `reject`: a person decides about a run that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.node import Folder
from fedmc.cli.times import utc
from fedmc.errors import require
from fedmc.federation.node import overview
from fedmc.federation.setup.layout import NodeConfig, load_node

Option = typer.Option
Run = Annotated[
    str | None, typer.Argument(help="The run, as --list shows it. With --list, this is the organisation's folder.")
]


def approve(
    run: Run = None,
    folder: Folder = Path(),
    listed: Annotated[bool, Option("--list", help="Only show the runs that wait, with their settings.")] = False,
) -> None:
    """Let a run begin that waits for approval. The node may be running; it need not be restarted.

    An approval holds for this run with these settings. A rejected run can be approved later.
    """
    if listed:
        _list(load_node(_only(run, folder)))
        return
    require(
        run is not None, "name the run: `fedmc node approve RUN FOLDER`; `fedmc node approve --list FOLDER` shows them"
    )
    known = overview.decide(load_node(folder), str(run), approved=True)
    typer.echo(f"approved run {known.run} ({known.description}): it begins when the server asks for it again")


def reject(
    run: Annotated[str | None, typer.Argument(help="The run. With --all, this is the organisation's folder.")] = None,
    folder: Folder = Path(),
    all_waiting: Annotated[bool, Option("--all", help="Reject every run that waits.")] = False,
) -> None:
    """Take no part in a run, or no further part. The node may be running; it need not be restarted."""
    require(all_waiting or run is not None, "name the run: `fedmc node reject RUN FOLDER`, or give --all")
    config = load_node(_only(run, folder) if all_waiting else folder)
    for name in [one.run for one in overview.waiting(config)] if all_waiting else [str(run)]:
        typer.echo(f"rejected run {overview.decide(config, name, approved=False).run}")


def _only(run: str | None, folder: Path) -> Path:
    """The folder, where it is the only argument."""
    return folder if run is None else Path(run)


def _list(config: NodeConfig) -> None:
    waiting = overview.waiting(config)
    for one in waiting:
        typer.echo(f"{one.run}  asked {utc(one.asked)}\n    {one.description}")
    how = f"`fedmc node approve RUN {config.folder}` or `fedmc node reject RUN {config.folder}`"
    typer.echo(f"{len(waiting)} waiting" + (f": {how}" if waiting else ""))
