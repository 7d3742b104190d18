"""What a running server takes in at once: members that join or leave, their new keys, and its own new certificate."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from fedmc.errors import FedmcError, reason
from fedmc.federation.flower.gateway.auth import load_members
from fedmc.federation.flower.gateway.gate import Gate
from fedmc.federation.flower.gateway.stream import server_context
from fedmc.federation.setup.keys import check_certificate
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.federation.setup.members import LIST

LOOK = 1.0  # seconds between two looks at the files
AGAIN = 30.0  # seconds until a file that was not taken in is tried again
WARN = 86400.0  # seconds between two warnings that the certificate expires

log = logging.getLogger("fedmc.gateway")


async def renewals(
    config: ServerConfig, gate: Gate, context: ssl.SSLContext, register: Callable[[ServerConfig], dict[str, int]]
) -> None:
    """Watch the files until cancelled. What cannot be taken in is logged; the server goes on with what it has."""
    listed, certificate = config.path(LIST), config.path("server.pem")
    seen, warned = {path: _changed(path) for path in (listed, certificate)}, time.monotonic()
    due = dict.fromkeys(seen, warned)
    while True:
        await asyncio.sleep(LOOK)
        for path, before in list(seen.items()):
            now = _changed(path)
            if now == before or time.monotonic() < due[path]:
                continue
            try:
                if path == listed:
                    await _take_in_members(config.folder, gate, register)
                else:
                    _take_in_certificate(certificate, config.path("server.key"), context)
                seen[path] = now
            except Exception as error:  # whatever is in the files, the server goes on with what it has
                log.error("%s is not taken in: %s; trying again in %.0f s", path, reason(error), AGAIN)
                due[path] = time.monotonic() + AGAIN
        if time.monotonic() - warned > WARN:
            warned = time.monotonic()
            _warn(certificate)


def _take_in_certificate(certificate: Path, key: Path, context: ssl.SSLContext) -> None:
    """Take a new pair into use; one that does not fit is refused before it can spoil the one in use."""
    server_context(certificate, key)
    context.load_cert_chain(certificate, key)
    log.info("the new certificate is in use")


async def _take_in_members(folder: Path, gate: Gate, register: Callable[[ServerConfig], dict[str, int]]) -> None:
    """Admit the nodes of the new list, and no others."""
    config = load_server(folder)
    nodes = await asyncio.to_thread(register, config)
    before = {member.name for member in gate.members.values()}
    gate.admit(load_members(config, nodes))
    for name in sorted(before.symmetric_difference(config.organisations)):
        log.info("%s %s", name, "has joined" if name in config.organisations else "has left")


def _changed(path: Path) -> tuple[int, int] | None:
    """When a file was replaced; None if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _warn(certificate: Path) -> None:
    try:
        warning = check_certificate(certificate)
    except FedmcError as error:
        warning = str(error)
    if warning is not None:
        log.warning("%s", warning)
