"""`fedmc federation announce`, and the announcement after every change of members or items."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import typer

from fedmc.cli.echo import echo
from fedmc.cli.federation_progress import Server
from fedmc.federation.flower import superlink
from fedmc.federation.server import announcing
from fedmc.federation.server.announcing import Announcement
from fedmc.federation.setup import members
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.federation.setup.members import MemberList
from fedmc.federation.statuses import OK, explain

FOLDER, START = "announcements", 45.0  # seconds until the ServerApp has started
ELSEWHERE = (
    "no server runs on {folder}. If it runs elsewhere, hand it {folder}/members.json, for `fedmc federation members "
    "SERVER --take members.json`; otherwise nodes hear of it in the next run"
)


def announce(server: Server = Path()) -> None:
    """Tell all nodes who is a member and which items there are. Nodes that are away hear of it in the next run."""
    config = load_server(server)
    say(tell(config, members.load(config.folder)))


def tell(config: ServerConfig, listed: MemberList) -> dict[str, str]:
    """Send the list, and the catalogue if it is signed, to all nodes that are registered; returns their answers."""
    nodes = superlink.registered(config)
    names = [name for name in config.organisations if name in nodes]
    plan = Announcement(names, [nodes[name] for name in names])
    folder = config.path(FOLDER) / datetime.now().strftime("%Y-%m-%d-%H%M%S-%f")
    catalogue = config.catalogue() if config.path("catalogue.json").exists() else None
    announcing.write(folder, plan, listed, catalogue)
    superlink.run(config, folder)
    until, found = time.monotonic() + START + plan.patience, None
    while found is None and time.monotonic() < until:
        time.sleep(0.2)
        found = announcing.result(folder)
    return dict.fromkeys(names, announcing.NO_ANSWER) if found is None else found


def tell_if_running(config: ServerConfig, listed: MemberList) -> None:
    """Tell all nodes if the server runs here; else say how they hear of it."""
    try:
        superlink.control_port(config)
    except superlink.LinkError:
        echo(ELSEWHERE.format(folder=config.folder))
        return
    say(tell(config, listed))


def say(answers: Mapping[str, str]) -> None:
    """Print who has heard of it."""
    for name, status in answers.items():
        later = f"{name}: {status}; it hears of it in the next run"
        said = later if status == announcing.NO_ANSWER else f"{name}: {explain(status)}"
        echo(f"{name}: told" if status == OK else said)
    if not answers:
        typer.echo("no node is registered yet")
