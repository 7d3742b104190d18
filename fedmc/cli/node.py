"""`fedmc node check` and `identity`, and the code they share with `start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.errors import require
from fedmc.federation.node.organisation import Opened, ledger_of, open_folder
from fedmc.federation.setup import identities, request_key, tls_check
from fedmc.federation.setup.layout import NodeConfig, load_node
from fedmc.training.aggregation import is_masked

Folder = Annotated[Path, typer.Argument(help="The organisation's folder.")]
Reread = Annotated[bool, typer.Option("--reread", help="Read the ratings from their source again, for a new run.")]


def check(folder: Folder = Path(), reread: Reread = False) -> None:
    """Check ratings, catalogue, keys and whether the server can be reached. Nothing is sent."""
    config = load_node(folder)
    open_ratings(config, reread)
    typer.echo(f"obeys requests signed by the key {request_key.fingerprint(request_key.load_public(folder))}")
    _print_privacy(config)
    try:
        tls_check.check(config.server, config.path("ca.crt"))
        typer.echo(f"server: {config.server} answers, and is the one this folder was made for")
    except tls_check.UnreachableError as error:
        typer.echo(f"server: {error}")


def identity(
    folder: Folder = Path(),
    renew: Annotated[bool, typer.Option("--renew", help="Make a new key, which nobody else has ever had.")] = False,
    pin: Annotated[
        list[str] | None, typer.Option(help="NAME=KEY: trust this key of another organisation; may be repeated.")
    ] = None,
) -> None:
    """Show which keys secure aggregation trusts here. Renew this organisation's own key, or pin another's.

    Read the keys to each other over a channel that the server does not control. Every folder needs the same list.
    """
    config = load_node(folder)
    path = config.path(identities.LIST)
    if renew:
        identities.pin(path, config.organisation, identities.make(folder))
    for one in pin or []:
        name, sign, public = one.partition("=")
        require(sign == "=", f"--pin takes NAME=KEY, got {one!r}")
        identities.pin(path, name, public)
    for name, public in identities.load(path):
        typer.echo(f"{name}={public}{'   (this organisation)' if name == config.organisation else ''}")


def open_ratings(config: NodeConfig, reread: bool) -> Opened:
    """Open the organisation's folder and print a summary of its ratings on stderr."""
    opened = open_folder(config, reread)
    if opened.report is not None:
        typer.echo(f"dropped: {opened.report}", err=True)
    shard, catalogue = opened.prepared.shards[0], opened.prepared.catalogue
    test = 0 if shard.test is None else shard.test.nnz
    typer.echo(
        f"{config.organisation}: {shard.by_user.nnz:,} ratings of {len(shard.users):,} users and {len(shard.rated):,} "
        f"of {len(catalogue):,} items ({test:,} more for testing); catalogue {catalogue.hash[:12]}",
        err=True,
    )
    return opened


def _print_privacy(config: NodeConfig) -> None:
    """Print the privacy modes that the organisation accepts, and the budget that it has spent."""
    cohort = ""
    if any(map(is_masked, config.accept)):  # mode: only secure aggregation has cohorts
        cohort = f", over at least {config.min_cohort} organisations"
    typer.echo(f"accepts runs with privacy {', '.join(config.accept)}{cohort}")
    if config.epsilon and config.path("ledger.sqlite").exists():
        with ledger_of(config) as ledger:
            spent = f"epsilon {ledger.spent():.4g} of {config.epsilon:g} spent"
            typer.echo(f"privacy budget: {spent}, delta {config.delta:g}")
