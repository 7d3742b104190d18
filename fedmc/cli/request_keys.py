"""`fedmc federation sign-key` and `fedmc node trust`: the key that signs a server's requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.logs import notice
from fedmc.errors import require
from fedmc.federation.setup import request_key
from fedmc.federation.setup.layout import ServerConfig, load_server

Option = typer.Option


def sign_key(
    server: Annotated[Path, typer.Argument(help="The server's folder.")] = Path(),
    renew: Annotated[bool, Option("--renew", help="Make a new key in place of one that was lost or stolen.")] = False,
) -> None:
    """Show the key that signs the server's requests; make it, where a folder of fedmc 0.2 has none.

    Every organisation pins its public half, `server.pub`, and its node obeys no other key.
    """
    config = load_server(server)
    if renew:
        request_key.make(server)
    if request_key.make_if_new(server) or renew:
        print_handover(config)
    typer.echo(f"{server / request_key.PUBLIC}: {request_key.fingerprint(request_key.load(server).public_key())}")


def trust(
    folder: Annotated[Path, typer.Argument(help="The organisation's folder.")],
    key: Annotated[Path, typer.Argument(help="The server.pub that the server's operator handed over.")],
    replace: Annotated[bool, Option("--replace", help="Replace the key that was pinned before.")] = False,
) -> None:
    """Pin the server's public key in this folder. The node then acts only on requests that this key signed.

    Compare the fingerprint with the server's operator over a channel that nobody else controls.
    """
    require((folder / "config.toml").is_file(), f"{folder} is not an organisation's folder: it has no config.toml")
    pinned = request_key.trust(folder, key, replace)
    typer.echo(f"{folder / request_key.PUBLIC}: {request_key.fingerprint(pinned)}; restart the node")


def print_handover(config: ServerConfig) -> None:
    """Print what each organisation needs after a key was made."""
    names, public = ", ".join(config.organisations), config.path(request_key.PUBLIC)
    notice(
        f"{config.path(request_key.KEY)} is new: it signs the server's requests. Hand {public} to {names}; each pins "
        f"it with `fedmc node trust FOLDER {request_key.PUBLIC}` (with --replace, if it had another). Until then its "
        "node refuses to take part"
    )
