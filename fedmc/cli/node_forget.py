"""`fedmc node forget`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.runs import to_json
from fedmc.data.addresses import present
from fedmc.data.prepared import is_prepared, open_prepared
from fedmc.errors import require
from fedmc.federation.node import forget as forgetting
from fedmc.federation.node import forgotten
from fedmc.federation.node.forget import Removed
from fedmc.federation.node.organisation import source_of
from fedmc.federation.node.store import Store
from fedmc.federation.setup.layout import NodeConfig, load_node


def forget(
    folder: Annotated[Path, typer.Argument(help="The organisation's folder.")],
    users: Annotated[list[str] | None, typer.Argument(metavar="[USER]...", help="Ids of its users.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only say how many users are forgotten.")] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Remove all who were forgotten: after an interruption, or from a backup put back."
        ),
    ] = False,
    end_runs: Annotated[
        bool, typer.Option("--end-runs", help="End this node's part in runs that are going on, for good.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove users of this organisation: their ratings, factors and cached data. It cannot be undone.

    The node must not be running. Whoever is forgotten is left out whenever the source is read again; delete them from
    the source, too. The next run has no part of them in its sums.
    """
    config, named = load_node(folder), list(users or [])
    require(
        (bool(named), listed, again).count(True) == 1,
        "name the users: `fedmc node forget FOLDER USER...`, or give one of --list and --again",
    )
    if listed:
        _list(config, as_json)
        return
    with Store(config.path("state")) as store:  # a node that runs holds it
        if again:
            removed, who = forgetting.again(config, store, end_runs), "everybody who was forgotten"
        else:
            removed, who = forgetting.forget(config, store, named, end_runs), ", ".join(named)
    for line in (f"forgotten at {config.organisation}: {who}", *_gone(config, removed), *_remains(), *_to_do(config)):
        echo(line)
    if as_json:
        typer.echo(to_json(removed._asdict() | {"users": len(named)}))


def _list(config: NodeConfig, as_json: bool) -> None:
    known = forgotten.load(config)
    finish = f"; a removal was interrupted: `fedmc node forget {config.folder} --again`" if known.unfinished else ""
    echo(f"{len(known.users):,} users are forgotten at {config.organisation}{finish}")
    if as_json:
        typer.echo(to_json({"forgotten": len(known.users), "unfinished": known.unfinished}))


def _gone(config: NodeConfig, removed: Removed) -> list[str]:
    what = "events" if config.of_events else "ratings"
    data = f"{removed.ratings:,} {what}, {removed.held_out:,} held-out ones, {removed.also_seen:,} pairs also seen"
    kept = f"their rows of {removed.models:,} models; all states of {removed.runs:,} runs, which are over"
    ended = [f"  ended for good, at this node: run {run}" for run in removed.ended]
    return ["gone:", f"  {data}, and their features and times in the data for runs", f"  {kept}", *ended]


def _remains() -> list[str]:
    return [
        "what remains:",
        "  factors of items, here and at all others: they were fitted with these users' ratings, too",
        "  numbers over all users together: the widths of intervals, priors, the sums of past runs at the server",
        "  copies that this command does not know: the source, backups, logs, exported files, models elsewhere",
    ]


def _to_do(config: NodeConfig) -> list[str]:
    source = source_of(config)
    where = source if present(source) else "the database"  # whose address may hold a password
    own = f"  delete them from {where} and from files of features and events: fedmc edits none of these"
    steps = ["what to do:", own]
    if is_prepared(source):
        inside = int(sum(forgotten.load(config).mask(ids).sum() for ids in open_prepared(source).ids))
        steps[1:] = [
            f"  prepare {source} again without them, with `fedmc prepare`: the node does not start with a forgotten "
            f"user in it (now: {inside:,})"
        ]
    steps += [
        f"  start the node (`fedmc node start {config.folder}`) and ask for a new run: its sums have no part of them;",
        "  runs of before cannot be resumed, a new one can go on from their model (--from RUN)",
        "  if nothing else changes at any organisation until then, the server's sums before and after differ by these "
        "users' part alone: take in other new data for the same run (`fedmc node refresh`)",
    ]
    budget = "  the privacy budget that was spent stays spent: releases cannot be taken back"
    return [*steps, budget] if config.epsilon else steps
