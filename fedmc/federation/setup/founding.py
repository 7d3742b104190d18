"""Makes the folders of a federation: keys, certificates, configurations, and what starts a server or a node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from fedmc import __version__
from fedmc.data import catalogue
from fedmc.data.files import write_whole
from fedmc.errors import require
from fedmc.federation.protocol import OLDEST, PROTOCOL
from fedmc.federation.setup import (
    deployment,
    identities,
    keys,
    member_keys,
    members,
    policy,
    request_key,
    succession,
)
from fedmc.federation.setup.layout import RESERVED, bracketed, check_accepted, check_names
from fedmc.federation.setup.members import Entry, MemberList
from fedmc.privacy.modes import default_for
from fedmc.privacy.secagg.rules import cohort_for

AUTHORITY_DAYS = 20 * 365  # longer than any server certificate, which is renewed


class Address(NamedTuple):
    """The address under which nodes find a server, and the one it listens on."""

    host: str  # what nodes call it
    port: int = 8000
    bind: str = "0.0.0.0"
    control_port: int = 8001  # of the SuperLink, on loopback only; 0: any that is free


def init(
    folder: Path,
    organisations: Sequence[str],
    address: Address,
    *,
    days: int = 365,
    items: Path | None = None,
    accept: Sequence[str] | None = None,
) -> None:
    """Make all folders, and copy the catalogue into each if `items` names one.

    Nodes take part only in runs of a privacy mode that they `accept`; the default depends on how many nodes there are.
    """
    names = check_names(organisations)
    agreed = check_accepted(accept if accept is not None else [default_for(len(names))])
    host, port = keys.check_host(address.host), address.port
    for number in (port, address.control_port):
        require(0 <= number < 65536, f"a port is a number below 65536, got {number}")
    require(1 <= days < AUTHORITY_DAYS, f"days must be from 1 to {AUTHORITY_DAYS - 1}, got {days}")
    require(not folder.exists() or not any(folder.iterdir()), f"{folder} exists and is not empty: choose a new folder")
    known = None if items is None else catalogue.load(items)
    for place in (folder, *(folder / name for name in (*RESERVED, *names))):
        place.mkdir(parents=True, exist_ok=True)
        os.chmod(place, 0o700)
    authority = keys.make_authority(AUTHORITY_DAYS)
    keys.write_private(folder / "authority" / "ca.key", keys.private_pem(authority.key))
    write_certificate(folder / "server", authority, [host], days)
    said = {"host": host, "port": str(port), "version": __version__}
    _write_server(folder / "server", address, said)
    for name in names:
        write_node(folder / name, name, f"{bracketed(host)}:{port}", said, agreed, len(names))
    made = [Entry(name, identities.make(folder / name), member_keys.make_node_key(folder / name)) for name in names]
    listed = succession.signed(members.checked(MemberList(tuple(made))), authority.key)
    requests = request_key.make(folder / "server")
    for name in ("server", *names):
        members.save(folder / name, listed)
        request_key.pin(folder / name, requests)
    member_keys.write_node_keys(folder / "server", listed)
    for place in (folder / "authority", *(folder / name for name in names)):
        (place / "ca.crt").write_bytes(keys.pem(authority.certificate))
    if known is not None:
        for name in ("server", *names):
            known.save(folder / name / "catalogue.json")


def write_certificate(server: Path, authority: keys.Authority, hosts: list[str], days: int) -> None:
    """Write the server's certificate and key, and the authority's certificate. Each file is replaced whole."""
    key, certificate = keys.make_server_certificate(authority, hosts, days)
    write_whole(server / "server.key", keys.private_pem(key), 0o600)
    write_whole(server / "server.pem", keys.pem(certificate))
    write_whole(server / "ca.crt", keys.pem(authority.certificate))


def _write_server(folder: Path, address: Address, said: dict[str, str]) -> None:
    (folder / "nodes").mkdir()
    (folder / "runs").mkdir()
    text = f'host = "{address.host}"\nport = {address.port}\nbind = "{address.bind}"\n'
    text += f"control_port = {address.control_port}  # Flower's own interface, on loopback only\n"
    text += "page_port = 0  # the operator's page, on loopback only; 0: any that is free\n"
    text += 'log_format = "text"  # of the server\'s log and of run.log: text or json\n'
    text += f"oldest_protocol = {PROTOCOL}  # {OLDEST}: also serve nodes of fedmc 0.2, which check no signatures\n"
    (folder / "config.toml").write_text(text, encoding="utf-8")
    _fill("server.md", folder / "README.md", said)
    _fill("fedmc-server.service", folder / "fedmc-server.service", said)
    deployment.write(folder, "server", said, (address.port, address.control_port))


def write_node(folder: Path, name: str, server: str, said: dict[str, str], accept: Sequence[str], members: int) -> None:
    """Write what an organisation's folder holds besides keys: config.toml, a README and what starts the node."""
    words = {"organisation": name, "accept": ", ".join(f'"{one}"' for one in accept)}
    said = said | words | {"min_cohort": str(cohort_for(members))}
    text = Template(_handover("config.toml")).substitute(said, server=server, policy=policy.template())
    keys.write_private(folder / "config.toml", text.encode())
    _fill("organisation.md", folder / "README.md", said)
    _fill("fedmc-node.service", folder / "fedmc-node.service", said)
    deployment.write(folder, "node", said)


def _fill(template: str, path: Path, said: dict[str, str]) -> None:
    path.write_text(Template(_handover(template)).substitute(said), encoding="utf-8")


def _handover(name: str) -> str:
    return (files("fedmc.federation.setup") / "handover" / name).read_text(encoding="utf-8")
