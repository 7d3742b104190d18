"""`fedmc federation add`, `remove`, `members` and `take-out`: who takes part, while the federation goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.announcing import tell_if_running
from fedmc.cli.echo import echo
from fedmc.cli.federation_progress import RunName, Server, find_run
from fedmc.cli.parsing import parse_names
from fedmc.errors import FedmcError, require
from fedmc.federation.flower import superlink
from fedmc.federation.node import withdrawing
from fedmc.federation.server import taking_out
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.setup import joining, members
from fedmc.federation.setup.joining import Federation
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.federation.setup.statements import Departure

Option = typer.Option
Name = Annotated[str, typer.Argument(metavar="ORG", help="Name of the organisation.")]
Root = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder that `init` made, with authority/ and server/ in it.")
]
Authority = Annotated[Path | None, Option(help="The authority's folder.", show_default="FOLDER/authority")]
ServerFolder = Annotated[
    Path | None, Option("--server", help="The server's folder, or a copy of it.", show_default="FOLDER/server")
]


def add(
    name: Name,
    folder: Root = Path(),
    keys: Annotated[
        Path | None, Option(help="keys.json with the organisation's own keys, which `fedmc node keys` made.")
    ] = None,
    out: Annotated[Path | None, Option(help="Where to make its folder.", show_default="FOLDER/ORG")] = None,
    accept: Annotated[
        str | None, Option(help="Privacy modes that its node accepts, separated by commas.", show_default="secagg")
    ] = None,
    authority: Authority = None,
    server: ServerFolder = None,
) -> None:
    """Add an organisation to a federation that may be running. Nobody else restarts; it takes part in the next run."""
    federation = _open(folder, authority, server)
    place = folder / name if out is None else out
    listed = joining.add(federation, name, place, keys, parse_names(accept))
    joining.put_into_use(federation.server, listed)
    own = "" if keys is None else ", which puts its own node.key and identity.key into it"
    typer.echo(f"{place}: hand it to {name} over a secure channel{own}; its README says what to do")
    tell_if_running(federation.server, listed)
    echo(
        f"{name} takes part in the next run. The first secure sum with it, less the last one without it, is its part: "
        "nodes refuse that unless as many join together as the largest `min_cohort` of the others, and one more that "
        "may collude; alone it goes on only with `fedmc node start --alone-visible`"
    )


def remove(
    name: Annotated[str, typer.Argument(metavar="ORG[,ORG]", help="The organisations that leave.")],
    folder: Root = Path(),
    statement: Annotated[
        list[Path] | None,
        Option(
            help="leave.json of an organisation, which `fedmc node leave` made; may be repeated.",
            show_default="FOLDER/ORG/leave.json, if it is there",
        ),
    ] = None,
    run: RunName = None,
    authority: Authority = None,
    server: ServerFolder = None,
) -> None:
    """Mark organisations as gone. Nobody else restarts; the next run is without them.

    If their statements say so, their part is first taken out of the sum of the last run, through one more secure sum.
    """
    federation, names = _open(folder, authority, server), list(parse_names(name) or ())
    joining.remove(federation, dict.fromkeys(names))  # refuses before anything is done
    said = _statements(names, folder, statement or [])
    out = [one for one in names if one in said and said[one].take_out]
    if out:
        take_out_of(federation.server, out, run)
    listed = joining.remove(federation, {one: said.get(one) for one in names})
    tell_if_running(federation.server, listed)  # while those that leave are still admitted
    joining.put_into_use(federation.server, listed)
    for one in names:
        echo(_left(one, said.get(one)))


def take_out(
    name: Annotated[str, typer.Argument(metavar="ORG[,ORG]", help="The organisations that leave.")],
    server: Server = Path(),
    run: RunName = None,
) -> None:
    """Take the parts of organisations that leave out of the sum of a run, through one more secure sum.

    Each of them has said so (`fedmc node leave --take-out`), and its node runs. `remove` does this by itself.
    """
    take_out_of(load_server(server), list(parse_names(name) or ()), run)


def list_members(
    server: Server = Path(),
    take: Annotated[
        Path | None, Option("--take", help="Take in this newer members.json, which the authority has signed.")
    ] = None,
) -> None:
    """Show who is a member, and who has left. A running server takes a new list in at once."""
    config = load_server(server)
    if take is not None:
        listed = joining.take_in(config, take)
        tell_if_running(config, listed)  # while those that leave are still admitted
        joining.put_into_use(config, listed)
    found = members.load(config.folder)
    typer.echo(f"version {found.version}, {len(found.active)} members")
    for one in found.entries:
        echo(f"{one.name:20} {one.identity[:16]}" + ("" if one.left is None else "   has left"))


def take_out_of(config: ServerConfig, names: list[str], run: str | None) -> None:
    """Ask for a take-out, and wait until it is done; FedmcError if it fails."""
    folder = find_run(config, run)
    before = folder.status().get("taken_out", [])
    names = [name for name in names if name not in before]  # a repeated command goes on where it broke off
    if not names:
        return
    superlink.control_port(config)
    if not taking_out.asked(folder.path):
        taking_out.ask(folder, names)
    superlink.run(config, folder.path)
    _wait(folder, folder.plan().patience + 120)
    done, why = folder.status().get("taken_out", []), folder.status().get("why", "")
    missing = [name for name in names if name not in done]
    if missing:
        again = "nothing has changed; try again, or delete take-out.json in the run's folder"
        raise FedmcError(f"run {folder.path.name}: {why or ', '.join(missing) + ' not taken out'}; {again}")
    typer.echo(f"the part of {', '.join(names)} is out of the sum of run {folder.path.name}, exactly")


def _wait(folder: RunFolder, seconds: float) -> None:
    """Until the server has worked on the take-out, or it is done."""
    until, begun = time.monotonic() + seconds, False
    while time.monotonic() < until and taking_out.asked(folder.path):
        locked = folder.locked()
        if begun and not locked:
            return
        begun |= locked
        time.sleep(0.1)
    while folder.locked() and time.monotonic() < until:
        time.sleep(0.1)


def _open(folder: Path, authority: Path | None, server: Path | None) -> Federation:
    return joining.open_(folder / "authority" if authority is None else authority, server or folder / "server")


def _statements(names: list[str], folder: Path, given: list[Path]) -> dict[str, Departure]:
    """The statements of the organisations that leave: the given ones, and those in their folders."""
    paths = [*given, *(path for one in names if (path := folder / one / withdrawing.FILE).exists())]
    found = dict(withdrawing.load(path) for path in reversed(paths))
    strange = [name for name in found if name not in names]
    require(
        not strange, lambda: f"the statement of {strange[0]} came, who does not leave: name it too, or leave it out"
    )
    return found


def _left(name: str, left: Departure | None) -> str:
    if left is not None and left.take_out:
        return f"{name} has left, with its part: new runs of the others go on"
    if left is not None and left.visible:
        return f"{name} has left, and accepts that later sums over the others show its part"
    return (
        f"{name} has left. Its last contribution stays in the sums of its runs. A new secure sum over the others would "
        "show its part, by subtraction: nodes refuse that unless enough leave together, it accepts it in its statement "
        "(`fedmc node leave --alone-visible`), or each of the others does (`departed_visible = true` in [policy])"
    )
