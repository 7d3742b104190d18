"""Serve the application with uvicorn until a signal, and end gracefully: requests that are answered are answered."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import NamedTuple

import uvicorn

from fedmc.errors import InputError, require
from fedmc.serving.api import Parts, make
from fedmc.serving.connection import HEADER_BYTES, Connection
from fedmc.serving.holder import Holder
from fedmc.web import listening
from fedmc.web.hosts import is_loopback

BACKLOG = 2048
IDLE = 30  # seconds that a connection may wait for its next request
GRACE = 10  # seconds for answers that are being made when the server is told to stop


class Binding(NamedTuple):
    """Where to listen, and the certificate and its key, if the server speaks TLS itself."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


def check_binding(binding: Binding, remote: bool, token: bool) -> None:
    """Refuse to be reached from other machines unless that was asked for, or without a token."""
    pair = (binding.certificate is None) == (binding.key is None)
    require(pair, "TLS needs both a certificate and its key: give --tls-cert and --tls-key")
    if binding.host == "localhost" or is_loopback(binding.host):
        return
    means = "other machines will reach this server, and without TLS (a reverse proxy, or --tls-cert and --tls-key) the "
    require(
        remote, f"{binding.host} is not loopback: {means}token and answers travel in the clear; --remote accepts it"
    )
    require(token, f"--no-token is for loopback only, and {binding.host} is not: leave it out")


def listen(binding: Binding) -> socket.socket:
    try:
        return listening.listen(binding.host, binding.port, BACKLOG)
    except (OSError, OverflowError) as error:
        at = f"{binding.host}:{binding.port}"
        raise InputError(f"cannot listen on {at}: {error}; choose another with --port (0: any)") from None


def address(binding: Binding, listener: socket.socket) -> str:
    scheme = "http" if binding.certificate is None else "https"
    host = f"[{binding.host}]" if ":" in binding.host else binding.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}/"


def run(holder: Holder, parts: Parts, binding: Binding, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT. SIGHUP reads the model again."""
    asyncio.run(_serve(holder, parts, binding, listener))


async def _serve(holder: Holder, parts: Parts, binding: Binding, listener: socket.socket) -> None:
    poke = asyncio.Event()
    server = uvicorn.Server(configuration(holder, parts._replace(poke=poke), binding))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, poke.set)
    await server.serve(sockets=[listener])


def configuration(holder: Holder, parts: Parts, binding: Binding) -> uvicorn.Config:
    config = uvicorn.Config(
        make(holder, parts), http=Connection, ws="none", lifespan="on", loop="asyncio", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=IDLE, timeout_graceful_shutdown=GRACE, ssl_certfile=binding.certificate,
        ssl_keyfile=binding.key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:
        files = f"{binding.certificate} and {binding.key}"
        raise InputError(f"{files} are not a certificate and its key in PEM: {error}") from None
    return config
