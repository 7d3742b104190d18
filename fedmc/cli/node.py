"""`fedmc node`: one organisation's side of a federation."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.display import log_to_stderr

node = typer.Typer(
    help="One organisation's side of a federation: its ratings stay in its folder.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
Folder = Annotated[Path, typer.Argument(help="The organisation's folder, as it was handed over.")]


@node.command("check")
def check(
    folder: Folder = Path(), reread: Annotated[bool, typer.Option("--reread", help="Read the source again.")] = False
) -> None:
    """Read the ratings; check them, the catalogue, the keys and whether the server can be reached. Sends nothing."""
    from fedmc.federation.setup import tls_check
    from fedmc.federation.setup.layout import load_node

    config = load_node(folder)
    _say(config, _open(config, reread))
    _say_privacy(config)
    try:
        tls_check.check(config.server, config.path("ca.crt"))
        typer.echo(f"server: {config.server} answers, and is the one this folder was made for")
    except tls_check.UnreachableError as error:
        typer.echo(f"server: {error}")


@node.command("start")
def start(
    folder: Folder = Path(),
    reread: Annotated[bool, typer.Option("--reread", help="Read the source again: for a new run.")] = False,
    poll: Annotated[float, typer.Option(help="Seconds between two questions for work.")] = 0.2,
) -> None:
    """Take part: answer the server until told to stop (Ctrl-C or SIGTERM).

    Ratings are read once, into the folder's `shard`, so that a run keeps to the same ones over restarts. What the
    server sends is data: no code of it ever runs here. Ends with code 2 where trying again would not help.
    """
    from fedmc.federation.flower.node_client import Place, serve
    from fedmc.federation.node.organisation import make_node
    from fedmc.federation.node.store import Store
    from fedmc.federation.setup.layout import load_node

    log_to_stderr()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    config = load_node(folder)
    with Store(config.path("state")) as store:
        opened = _open(config, reread)
        _say(config, opened)
        place = Place(config.server, config.path("ca.crt"), opened.keys, config.path("state") / "node-id")
        answer = make_node(config, opened, store).answer_bytes
        serve(answer, place, poll=poll, on_online=lambda: logging.getLogger("fedmc.node").info("online"))


@node.command("identity")
def identity(
    folder: Folder = Path(),
    renew: Annotated[bool, typer.Option("--renew", help="Make a new key, which nobody else has ever had.")] = False,
    pin: Annotated[list[str] | None, typer.Option(help="NAME=KEY: another organisation's, as it told you.")] = None,
) -> None:
    """Show whose keys secure aggregation trusts here; make this organisation's own anew, or take in another's.

    Read the keys to each other over a channel that the server does not run. The same list belongs into every folder.
    """
    from fedmc.errors import require
    from fedmc.federation.setup import identities
    from fedmc.federation.setup.layout import load_node

    config = load_node(folder)
    listed = config.path(identities.LIST)
    if renew:
        identities.pin(listed, config.organisation, identities.make(folder))
    for one in pin or []:
        name, sign, public = one.partition("=")
        require(sign == "=", f"--pin takes NAME=KEY, got {one!r}")
        identities.pin(listed, name, public)
    for name, public in identities.load(listed):
        typer.echo(f"{name}={public}{'   (this organisation)' if name == config.organisation else ''}")


@node.command("recommend")
def recommend(
    folder: Folder,
    users: Annotated[list[str], typer.Argument(help="Ids of this organisation's users.")],
    n: Annotated[int, typer.Option(help="Items for each.")] = 10,
) -> None:
    """The best items for this organisation's own users, by the model of its last run. Nothing is sent."""
    from fedmc.cli.use import recommend as by_model
    from fedmc.errors import require

    path = folder / "model.npz"
    require(path.is_file(), f"there is no model in {folder} yet: it comes at the end of a training run")
    by_model(path, users, n=n)


def _open(config: Any, reread: bool) -> Any:
    from fedmc.federation.node.organisation import open_folder

    opened = open_folder(config, reread)
    if opened.report is not None:
        typer.echo(f"dropped: {opened.report}", err=True)
    return opened


def _say_privacy(config: Any) -> None:
    """What the organisation agreed to, and what it has spent."""
    from fedmc.federation.node.organisation import ledger_of

    hidden = f", among at least {config.min_cohort}" if any("secagg" in one for one in config.accept) else ""
    typer.echo(f"takes part in runs of the kinds {', '.join(config.accept)}{hidden}")
    if config.epsilon and config.path("ledger.sqlite").exists():
        with ledger_of(config) as ledger:
            typer.echo(
                f"privacy budget: epsilon {ledger.spent():.4g} of {config.epsilon:g} spent, delta {config.delta:g}"
            )


def _say(config: Any, opened: Any) -> None:
    shard = opened.prepared.shards[0]
    test = 0 if shard.test is None else shard.test.nnz
    known = opened.prepared.catalogue
    typer.echo(
        f"{config.organisation}: {shard.by_user.nnz:,} ratings of {len(shard.users):,} users and {len(shard.rated):,} "
        f"of {len(known):,} items ({test:,} more to test on); catalogue {known.hash[:12]}",
        err=True,
    )
