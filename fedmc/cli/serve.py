"""`fedmc serve`, and the same at a node."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.as_trained import recency_of, scale_of, settings_beside
from fedmc.cli.groups import Group
from fedmc.cli.logs import as_json, log_to_stderr, notice
from fedmc.cli.model import ModelPath, TitleTable
from fedmc.cli.predict import Folder, model_of_node
from fedmc.cli.runs import model_path
from fedmc.cli.titles import with_titles
from fedmc.federation.setup.layout import load_node
from fedmc.model import load
from fedmc.serving import server
from fedmc.serving.api import Parts
from fedmc.serving.guard import Access
from fedmc.serving.holder import Holder, Loaded
from fedmc.serving.server import Binding
from fedmc.web import token as tokens
from fedmc.web.hosts import named

TOKEN = "serve.token"


@dataclass(frozen=True)
class Listening(Group):
    """Options of a server."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any.")] = 8000
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File of the token that requests must show; made if there is none.",
            show_default=f"{TOKEN} beside the model",
            metavar="FILE",
        ),
    ] = None
    no_token: Annotated[bool, typer.Option("--no-token", help="Let everybody on this machine ask; on loopback.")] = (
        False
    )
    remote: Annotated[
        bool, typer.Option("--remote", help="Listen on an address that other machines reach; see --tls-cert.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name under which clients reach the server; may be repeated.", metavar="NAME"),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, to speak TLS.", metavar="FILE")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate.", metavar="FILE")] = None

    @property
    def binding(self) -> Binding:
        return Binding(self.host, self.port, self.tls_cert, self.tls_key)


def serve(model: ModelPath, items: TitleTable = None, *, listening: Listening) -> None:
    """Serve a model over HTTP until told to stop: recommend, predict, fold in visitors, similar items, search.

    Requests show the token in the file that the first start makes. A new model in the place of the old one is taken
    into use without a restart, and a broken one is refused. The page at / describes the API.
    """
    log_to_stderr()
    path = model_path(model)

    def read() -> Loaded:
        trained = settings_beside(model)
        return Loaded(with_titles(load(path), items, model), scale_of(trained), recency_of(trained))

    _run(path, read, model, listening)


def serve_at_node(folder: Folder = Path(), items: TitleTable = None, *, listening: Listening) -> None:
    """Serve the model of the organisation's last run to its own programs, until told to stop. Nothing is sent.

    What training, `rollback` and `forget` write is taken into use without a restart.
    """
    config = load_node(folder)
    log_to_stderr(config.log_format)
    path = model_of_node(folder)
    _run(path, lambda: Loaded(with_titles(load(path), items, folder), config.scale, config.recency), folder, listening)


def _run(path: Path, read: Callable[[], Loaded], place: Path, listening: Listening) -> None:
    """Serve the model at this path; `place` is the run folder, the model's file or the node's folder."""
    binding = listening.binding
    server.check_binding(binding, listening.remote, not listening.no_token)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server runs: it is reading the model anyway
    names = frozenset({"localhost", *map(named, listening.allow_host or ())})

    file = listening.token_file or path.parent / TOKEN
    with server.listen(binding) as listener:
        token = None if listening.no_token else tokens.make_or_load(file)
        holder = Holder(path, read, place.resolve().name)
        access = Access(token, names)
        about, address = holder.current.model, server.address(binding, listener)

        def ready() -> None:
            notice(f"ready: {address} answers from {about} ({holder.current.hash})")
            notice(_about_token(token, file))

        with suppress(KeyboardInterrupt):  # the usual way to stop it
            server.run(holder, Parts(access, on_ready=ready), binding, listener)


def _about_token(token: str | None, file: Path) -> str:
    """What to send; the token itself is printed to terminals only, not into logs."""
    if token is None:
        return "no token: everybody on this machine can ask"
    if sys.stderr.isatty() and not as_json():
        return f"requests need the header  Authorization: Bearer {token}"
    return f"requests need the header  Authorization: Bearer TOKEN, with the token in {file}"
