"""`fedmc federation status` and `stop`"""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.federation_progress import RunName, Server, describe, find_run, run_paths
from fedmc.cli.runs import to_json
from fedmc.errors import require
from fedmc.federation.flower import superlink
from fedmc.federation.setup.layout import load_server

STOP_SECONDS = 60


def stop(server: Server = Path(), run: RunName = None) -> None:
    """Stop a run. Nothing is lost: `resume` continues it."""
    folder = find_run(load_server(server), run)
    state = folder.status()["state"]
    require(state == "running", f"run {folder.path.name} is not going on: it is {state}")
    folder.ask_to_stop()
    deadline = time.monotonic() + STOP_SECONDS
    while folder.locked() and time.monotonic() < deadline:
        time.sleep(0.2)
    result = "still busy with a step; it will stop after it" if folder.locked() else "stopped"
    typer.echo(f"run {folder.path.name}: {result}")


def status(server: Server = Path(), run: RunName = None, as_json: options.AsJson = False) -> None:
    """Show whether the server is up, which nodes are online, and the state of the last run."""
    config = load_server(server)
    try:
        online = superlink.online(config)
        typer.echo(f"server: up, nodes connect to {config.host}:{config.port}")
    except superlink.LinkError as error:
        online = {}
        echo(f"server: {error}")
    for name in config.organisations:
        typer.echo(f"{name:20} {online.get(name, 'unknown')}")
    result: dict[str, object] = {"online": online}
    if run_paths(config):
        folder = find_run(config, run)
        found = folder.status()
        result |= {"run": folder.path.name} | found
        echo(f"run {folder.path.name}: {describe(found)}")
        for one in found.get("absent", [])[-5:]:
            echo(f"  round {one['round']}: {one['organisation']} was left out: {one['why']}")
    if as_json:
        typer.echo(to_json(result))
