"""`fedmc node check` and `refresh`, and the code they share with `start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.echo import echo
from fedmc.cli.logs import notice
from fedmc.cli.node_ledger import print_budget
from fedmc.cli.times import utc
from fedmc.data.partition import Shard
from fedmc.federation.node import consents, withdrawing
from fedmc.federation.node.organisation import REFRESH, Opened, open_folder, read_now
from fedmc.federation.node.overview import policy_in_words
from fedmc.federation.node.store import Store
from fedmc.federation.setup import members, request_key, tls_check
from fedmc.federation.setup.layout import NodeConfig, load_node

Folder = Annotated[Path, typer.Argument(help="The organisation's folder.")]
Reread = Annotated[
    bool, typer.Option("--reread", help="Read ratings, features and events from their files again, for a new run.")
]


def check(folder: Folder = Path(), reread: Reread = False) -> None:
    """Check ratings, catalogue, keys and whether the server can be reached; print the policy. Nothing is sent.

    The source is read again, to tell whether it holds other data than those that were read for runs.
    """
    config = load_node(folder)
    open_ratings(config, reread)
    print_changes(config)
    echo(f"obeys requests signed by the key {request_key.fingerprint(request_key.load_public(folder))}")
    for line in (*policy_in_words(config), *membership_in_words(config)):
        echo(line)
    if config.epsilon:
        print_budget(config)
    try:
        tls_check.check(config.server, config.path("ca.crt"))
        typer.echo(f"server: {config.server} answers, and is the one this folder was made for")
    except tls_check.UnreachableError as error:
        echo(f"server: {error}")


def refresh(folder: Folder = Path()) -> None:
    """Read ratings, features and events from their source again, for new runs. The node must not be running.

    A run that has begun goes on only with the data that it began with: let it end first.
    """
    config = load_node(folder)
    with Store(config.path("state")):  # a node that runs holds it
        open_ratings(config, reread=True)
    typer.echo(f"the next run uses these data: `fedmc node start {folder}`")


def print_changes(config: NodeConfig) -> None:
    """Print how the source differs from the data that were read for runs."""
    now = read_now(config)
    if now is None:
        return
    shard = now.shards[0]
    counts = f"{shard.by_user.nnz:,} of {len(shard.users):,} users and {len(shard.rated):,} items"
    echo(f"the source holds other data now ({counts}): {REFRESH} takes them")


def open_ratings(config: NodeConfig, reread: bool) -> Opened:
    """Open the organisation's folder and print a summary of its ratings on stderr."""
    opened = open_folder(config, reread)
    if opened.report is not None:
        notice(f"dropped: {opened.report}")
    for note in opened.notes:
        notice(note)
    shard, catalogue = opened.prepared.shards[0], opened.prepared.catalogue
    test = 0 if shard.test is None else shard.test.nnz
    what = "events" if config.of_events else "ratings"
    notice(
        f"{config.organisation}: {shard.by_user.nnz:,} {what} of {len(shard.users):,} users and {len(shard.rated):,} "
        f"of {len(catalogue):,} items ({test:,} more for testing){_side_of(shard)}; catalogue {catalogue.hash[:12]}"
    )
    return opened


def _side_of(shard: Shard) -> str:
    """What is known besides the ratings."""
    features = "" if shard.features is None else f", {shard.features.shape[1]:,} features of each user"
    return features + ("" if shard.also_seen is None else f", {shard.also_seen.nnz:,} pairs also seen")


def membership_in_words(config: NodeConfig) -> list[str]:
    """The list of members, and what this organisation has accepted about its own part."""
    listed, since = members.load(config.folder), consents.alone_since(config)
    lines = [f"version {listed.version} of the list of members: {', '.join(listed.names)}"]
    if since is not None:
        lines.append(f"accepts since {utc(since)} that secure sums show its own part (--alone-visible)")
    if withdrawing.stated(config.folder) is not None:
        lines.append("leaves the federation: takes part in nothing new (leave.json)")
    return lines
