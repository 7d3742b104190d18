"""`fedmc report`"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.echo import echo
from fedmc.cli.federation_progress import find_run
from fedmc.errors import require
from fedmc.federation.setup.layout import load_node, load_server
from fedmc.report import comparison, federation, node
from fedmc.report import run as simulated


def report(
    folder: Annotated[
        Path,
        typer.Argument(help="A run folder, the folder of a comparison, or that of a federation's server or node."),
    ],
    run: Annotated[
        str | None,
        typer.Option(help="Of a server's or a node's folder: name of the run.", show_default="the last one"),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Of a node's folder: also train the algorithm of the run on the organisation's own data, to show what "
            "it gains. Nothing leaves the node.",
        ),
    ] = False,
    title: Annotated[
        str | None,
        typer.Option(help="Title of the page, of a run of `fedmc train`.", show_default="the name of the data set"),
    ] = None,
    example_user: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a user of the data whose recommendations are shown as an example, of a run of `fedmc train`; "
            "may be repeated. Make sure that they agreed. By default only made-up visitors are shown.",
            metavar="ID",
        ),
    ] = None,
) -> None:
    """Write report.html into the folder; of runs and comparisons of `fedmc train`, `compare` also the figures.

    The report of a federation's run goes into the folder of the run at the server. At a node, it is about the
    organisation's own data and models, goes into the node's folder, and is for the organisation only.
    """
    kind = _kind(folder)
    require(run is None or kind in ("server", "node"), f"{folder} is one run: leave out --run {run}")
    users = example_user or []
    require(not alone or kind == "node", f"{folder} is no folder of a node: leave out --alone")
    for option, given in (("--title", title is not None), ("--example-user", bool(users))):
        require(not given or kind == "run", f"{folder} is no run of `fedmc train`: leave out {option}")
    if kind == "run":
        echo(f"report in {simulated.write_report(folder, title, users)}")
    else:
        echo(f"report in {_write(kind, folder, run, alone)}")


def _write(kind: str, folder: Path, name: str | None, alone: bool) -> Path:
    if kind == "node":
        return node.write_report(load_node(folder), name, alone)
    if kind == "server":
        return federation.write_report(find_run(load_server(folder), name).path)
    return comparison.write_report(folder) if kind == "comparison" else federation.write_report(folder)


def _kind(folder: Path) -> str:
    """What the folder is of; a folder that is nothing known counts as a run's, which says what is missing."""
    for name, kind in (("study.json", "comparison"), ("plan.json", "federation")):
        if (folder / name).is_file():
            return kind
    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "run"
    return "node" if "organisation" in config else "server"
