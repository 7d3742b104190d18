"""`fedmc node status`"""

from __future__ import annotations

from pathlib import Path

import typer

from fedmc import __version__
from fedmc.cli import options
from fedmc.cli.node import Folder
from fedmc.cli.runs import to_json
from fedmc.cli.times import utc
from fedmc.federation.node.journal import Refusal
from fedmc.federation.node.overview import LISTED, Overview, RunAtNode, look, policy_in_words
from fedmc.federation.setup.layout import load_node


def status(folder: Folder = Path(), as_json: options.AsJson = False) -> None:
    """Show versions, hashes, policy, runs and the last refusals of a node. Works while the node runs."""
    config = load_node(folder)
    found = look(config)
    typer.echo(f"{config.organisation}: fedmc {__version__}, server {config.server}")
    typer.echo(f"catalogue {found.catalogue or 'not there yet'}")
    typer.echo(f"ratings   {found.ratings or 'not read yet: `fedmc node check` reads them'}")
    for line in policy_in_words(config):
        typer.echo(line)
    _print_runs(found.runs)
    _print_refusals(found.refusals)
    if as_json:
        about = {"organisation": config.organisation, "version": __version__, "accept": list(config.accept)}
        typer.echo(to_json(about | {"min_cohort": config.min_cohort} | _plain(found)))


def _print_runs(runs: list[RunAtNode]) -> None:
    typer.echo(f"runs: {len(runs) or 'none yet'}" + (f", the last {LISTED}:" if len(runs) > LISTED else ""))
    for one in runs[:LISTED]:
        at = "" if one.round is None else f", round {one.round}"
        since = "" if one.asked is None else f", first asked {utc(one.asked)}"
        typer.echo(f"  {one.run}: {one.state}{at}{since}{one.why and f' ({one.why})'}")
        if one.description:
            typer.echo(f"      {one.description}")


def _print_refusals(refusals: list[Refusal]) -> None:
    typer.echo(f"last refusals: {len(refusals) or 'none'}")
    for one in refusals:
        often = "" if one.times == 1 else f", {one.times} times since {utc(one.first)}"
        typer.echo(f"  {utc(one.last)}{often}: {one.what} ({one.status})")
        typer.echo(f"      {one.reason}")
        if one.cure:
            typer.echo(f"      what to do: {one.cure}")


def _plain(found: Overview) -> dict[str, object]:
    """What JSON can hold."""
    runs, refusals = [one._asdict() for one in found.runs], [one._asdict() for one in found.refusals]
    return {"catalogue": found.catalogue, "ratings": found.ratings, "runs": runs, "refusals": refusals}
