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
from fedmc.federation.pages.snapshot import Organisation, ServerLook
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.privacy.secagg.rules import exceptions

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


def _organisations(config: ServerConfig) -> list[Organisation]:
    """The organisations as the operator's page shows them; of a server that is down, nothing is known."""
    try:
        presence = superlink.presence(config)
    except superlink.LinkError as error:
        echo(f"server: {error}")
        return [Organisation(name, "unknown", None, None, "") for name in config.organisations]
    typer.echo(f"server: up, nodes connect to {config.host}:{config.port}")
    return ServerLook(config, presence)().organisations


def _line(one: Organisation) -> str:
    times = (("last heard", one.heard), ("asked", one.since))
    told = [f"{what} {max(0, round(time.time() - at))} s ago" for what, at in times if at is not None]
    told += [one.note] if one.note else []
    return f"{one.name:20} {one.state:10} {', '.join(told)}".rstrip()


def status(server: Server = Path(), run: RunName = None, as_json: options.AsJson = False) -> None:
    """Show whether the server is up, which nodes are online, and the state of the last run."""
    config = load_server(server)
    found = _organisations(config)
    for one in found:
        typer.echo(_line(one))
    result: dict[str, object] = {"nodes": {one.name: {"state": one.state, "heard": one.heard} for one in found}}
    if run_paths(config):
        folder = find_run(config, run)
        run_status = folder.status()
        result |= {"run": folder.path.name} | run_status
        echo(f"run {folder.path.name}: {describe(run_status)}")
        if run_status.get("visible"):
            echo(f"  its promise holds {exceptions(run_status['visible'])}")
        for one in run_status.get("absent", [])[-5:]:
            echo(f"  round {one['round']}: {one['organisation']} was left out: {one['why']}")
    if as_json:
        typer.echo(to_json(result))
