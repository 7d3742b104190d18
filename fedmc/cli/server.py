"""`fedmc server`: the machine that the organisations' nodes connect to."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.display import log_to_stderr

server = typer.Typer(
    help="The machine that the organisations' nodes connect to.", no_args_is_help=True, rich_markup_mode=None
)


@server.command("start")
def start(folder: Annotated[Path, typer.Argument(help="The server's folder.")] = Path()) -> None:
    """Run Flower's SuperLink with TLS and node keys, and the gate that nodes come in by, until told to stop.

    Only nodes whose keys are in `nodes/` get through the gate, and only to what nodes need: training runs are started
    on this machine. Telemetry, update checks and installs at run time are off.
    """
    from fedmc.federation.flower import gateway
    from fedmc.federation.flower.superlink import Link
    from fedmc.federation.setup.keys import check_certificate
    from fedmc.federation.setup.layout import load_server

    log_to_stderr()
    config = load_server(folder)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    items = len(config.catalogue())
    word = check_certificate(config.path("server.pem"))
    if word is not None:
        typer.echo(word, err=True)
    link = Link(config)
    try:
        link.register()
        names = ", ".join(config.organisations)
        said = f"ready: nodes of {names} connect to {config.host}:{config.port}; {items:,} items"
        gateway.serve(config, link.port, lambda: link.process.poll() is None, lambda: typer.echo(said, err=True))
        if link.process.poll() is not None:
            typer.echo(f"error: the SuperLink ended: see {config.path('superlink.log')}", err=True)
            raise typer.Exit(1)
    finally:
        link.end()
