"""`fedmc federation init` and `renew`: the folders, keys and certificates of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.announcing import tell_if_running
from fedmc.errors import require
from fedmc.federation.setup import founding, joining, keys, layout, request_key

Option = typer.Option
MISSING_CATALOGUE = (
    "still missing: the agreed items. Each organisation makes its list with `fedmc catalogue make SOURCE --out "
    "NAME.json`; `fedmc catalogue merge *.json --out catalogue.json` merges them. Put that file into the server's and "
    "every organisation's folder"
)


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    organisations: Annotated[str, Option(help="Names of the organisations, separated by commas.")],
    host: Annotated[str, Option(help="Name or address at which nodes reach the server.")],
    port: Annotated[int, Option(help="Port that nodes connect to.")] = 8000,
    bind: Annotated[str, Option(help="Address that the server listens on.")] = "0.0.0.0",
    control_port: Annotated[int, Option(help="Port of Flower itself, on loopback only.")] = 8001,
    catalogue: Annotated[
        Path | None, Option(help="Catalogue file of the agreed items; may be put into the folders later.")
    ] = None,
    days: Annotated[int, Option(help="Days that the server's certificate is valid.")] = 365,
    accept: Annotated[
        str | None,
        Option(
            help="Privacy modes that nodes accept, separated by commas: plain, secagg, dp, dp+secagg.",
            show_default="secagg; plain with fewer than 3 organisations",
        ),
    ] = None,
) -> None:
    """Create certificates, node keys and configurations: a folder for the server and one for each organisation."""
    founding.init(
        folder, organisations.split(","), founding.Address(host, port, bind, control_port), days=days, items=catalogue,
        accept=None if accept is None else [one.strip() for one in accept.split(",")],
    )  # fmt: skip
    typer.echo(f"{folder / 'server'}: for the server's machine; run `fedmc server start` there")
    for name in layout.check_names(organisations.split(",")):
        typer.echo(f"{folder / name}: hand it to {name} over a secure channel; its README says what to do")
    signs = request_key.fingerprint(request_key.load_public(folder / "server"))
    typer.echo(f"nodes obey requests that are signed by the server's key {signs}; `fedmc node check` prints it too")
    signing = "the authority's secret key, which signs certificates and the list of members: keep it offline"
    typer.echo(f"{folder / 'authority'}: {signing}")
    if catalogue is None:
        typer.echo(MISSING_CATALOGUE)


def renew(
    authority: Annotated[Path, typer.Argument(help="The certificate authority's folder.")],
    server: Annotated[Path, typer.Argument(help="The server's folder.")],
    days: Annotated[int, Option(help="Days that the new certificate is valid.")] = 365,
    member_keys: Annotated[
        Path | None,
        Option("--keys", help="keys.json of a member, which `fedmc node keys` made: renew these instead."),
    ] = None,
) -> None:
    """Make a new certificate for the server, or put a member's new keys into use. Nobody restarts.

    A running server takes either in at once.
    """
    require(days >= 1, f"--days must be at least 1, got {days}")
    keys.check_certificate(authority / "ca.crt")
    if member_keys is not None:
        federation = joining.open_(authority, server)
        listed = joining.renew(federation, member_keys)
        tell_if_running(federation.server, listed)  # while the old key still admits the member
        joining.put_into_use(federation.server, listed)
        typer.echo(f"version {listed.version} of the list of members has the new keys; the node takes them into use")
        return
    founding.write_certificate(server, keys.load_authority(authority), [layout.load_server(server).host], days)
    typer.echo(f"{server / 'server.pem'} is valid for {days} days; a server that runs here takes it in at once")
