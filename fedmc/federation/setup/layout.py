"""The folders of a federation and their config.toml files.

DIR/authority/     the authority's secret key, to be kept offline
DIR/server/        for the machine that runs the server; of a node it holds only the public keys
DIR/NAME/          one per organisation, to be handed over to it
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from fedmc import __version__
from fedmc.data import catalogue
from fedmc.data.builder import Duplicates
from fedmc.data.catalogue import Catalogue, UnknownItems
from fedmc.data.files import write_whole
from fedmc.errors import DataError, InputError, require, unknown
from fedmc.federation.protocol import OLDEST, PROTOCOL
from fedmc.federation.setup import (
    deployment,
    entries,
    identities,
    keys,
    member_keys,
    members,
    policy,
    request_key,
    succession,
)
from fedmc.federation.setup.entries import EventEntries
from fedmc.federation.setup.members import Entry, MemberList
from fedmc.federation.setup.policy import DEFAULT, Policy
from fedmc.privacy.dp import bounds
from fedmc.privacy.modes import default_for
from fedmc.privacy.protocol import MODES
from fedmc.privacy.secagg.rules import SMALLEST_COHORT, cohort_for
from fedmc.types import whole

RESERVED = ("server", "authority")
MAX_KEPT = 10_000_000
AUTHORITY_DAYS = 20 * 365  # longer than any server certificate, which is renewed


@dataclass(frozen=True)
class ServerConfig:
    folder: Path
    organisations: tuple[str, ...]
    host: str  # what nodes call it
    port: int  # where nodes connect
    bind: str  # the address it listens on
    control_port: int  # of the SuperLink, on loopback only; 0: any that is free
    oldest_protocol: int = OLDEST  # nodes of an older one are refused
    page_port: int = 0  # of the operator's page, on loopback only; 0: any that is free
    log_format: str = "text"  # of its log and of run.log: text or json

    @property
    def address(self) -> str:
        """Where nodes connect, as their config.toml says it."""
        return f"{_bracketed(self.host)}:{self.port}"

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def catalogue(self) -> Catalogue:
        return _catalogue(self.folder)


@dataclass(frozen=True)
class NodeConfig(EventEntries):
    folder: Path
    organisation: str
    server: str  # host:port
    source: str = field(repr=False)  # it may hold a password
    columns: str | None = None
    query: str | None = None
    duplicates: Duplicates = "refuse"
    unknown_items: UnknownItems = "refuse"
    test: str | None = None
    seed: int = 0
    user_features: str | None = None  # files, relative to the folder like the source
    also_seen: str | None = None
    categorical: tuple[str, ...] = ()  # columns of the features whose numbers are categories
    times: bool = False  # whether to read the times of the ratings, for biases by user and day
    accept: tuple[str, ...] = ("secagg",)  # privacy modes that the organisation agreed to
    min_cohort: int = 8  # honest members of the smallest cohort that it accepts
    epsilon: float = 0.0  # with dp: the budget of each of its users over all runs; 0: no release is allowed
    delta: float = 1e-6
    policy: Policy = DEFAULT  # what a run may ask of the node
    keep_models: int = 20  # the models of the last runs, in models/
    keep_megabytes: int = 2_000  # of all these models together
    page_port: int = 0  # of its page, on loopback only; 0: any that is free
    log_format: str = "text"  # of its log: text or json

    def path(self, name: str) -> Path:
        return self.folder / name

    def catalogue(self) -> Catalogue:
        return _catalogue(self.folder)


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
        write_node(folder / name, name, f"{_bracketed(host)}:{port}", said, agreed, len(names))
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


def check_names(organisations: Sequence[str]) -> list[str]:
    names = [name.strip() for name in organisations]
    require(len(names) >= 1 and all(names), f"name at least one organisation, got {list(organisations)}")
    for name in names:
        plain = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name)
        require(plain is not None, f"{name!r}: names are up to 40 small letters, digits and dashes")
        require(name not in RESERVED, f"{name!r} is the name of another folder: choose another")
    require(len(set(names)) == len(names), f"each organisation has its own name, got {', '.join(names)}")
    return names


def check_accepted(accept: Sequence[str]) -> list[str]:
    for one in accept:
        if one not in MODES:
            raise unknown("kind of privacy", one, MODES)
    require(bool(accept), f"say which kinds of privacy to accept: some of {', '.join(MODES)}")
    return list(accept)


def load_server(folder: Path) -> ServerConfig:
    found = _read(folder, "server")
    try:
        listed = found.pop("organisations", None)  # of an earlier version: the list of members says it
        names = tuple(listed) if listed is not None and not members.there(folder) else tuple(members.load(folder).names)
        config = ServerConfig(folder, names, **found)
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / 'config.toml'} is not a server's: {error}") from None
    check_names(config.organisations)
    served, asked = range(OLDEST, PROTOCOL + 1), config.oldest_protocol
    require(
        asked in served,
        f"{folder / 'config.toml'}: oldest_protocol must be from {OLDEST} to {PROTOCOL}, got {asked!r}",
        DataError,
    )
    entries.check_watching(str(folder / "config.toml"), config.page_port, config.log_format)
    return config


def load_node(folder: Path) -> NodeConfig:
    found = _read(folder, "organisation")
    ratings = found.pop("ratings", {})
    known = {one.name for one in fields(NodeConfig)} - {"folder"}
    entries.check_local(str(folder / "config.toml"), ratings)
    strange = [name for name in (*found, *ratings) if name not in known]
    require(not strange, lambda: f"{folder / 'config.toml'}: unknown entry {strange[0]!r}", DataError)
    agreed = policy.read(found.pop("policy", {}), str(folder / "config.toml"))
    try:
        config = NodeConfig(folder, **found, **ratings, policy=agreed)
    except TypeError as error:
        raise DataError(f"{folder / 'config.toml'} is not a node's: {error}") from None
    check_accepted(config.accept)
    _check_budget(config)
    where = str(folder / "config.toml")
    entries.check_side(where, config.user_features, config.also_seen, config.categorical)
    entries.check_events(where, config)
    for name in ("keep_models", "keep_megabytes"):
        whole(f"{folder / 'config.toml'}: {name}", getattr(config, name), 1, MAX_KEPT)
    entries.check_watching(where, config.page_port, config.log_format)
    require(
        config.min_cohort >= SMALLEST_COHORT,
        f"min_cohort must be at least {SMALLEST_COHORT}, got {config.min_cohort}",
        DataError,
    )
    require(
        bool(config.source),
        f"{folder / 'config.toml'}: say where the ratings are, under [ratings] source = ...",
        DataError,
    )
    port = config.server.rpartition(":")[2]
    require(port.isdecimal(), f"{folder / 'config.toml'}: server must be HOST:PORT, got {config.server!r}", DataError)
    return config


def enter_source(folder: Path, source: str) -> None:
    """Write where the ratings are into an organisation's config.toml."""
    path = folder / "config.toml"
    require(path.is_file(), f"{folder} is not an organisation's folder: there is no config.toml in it")
    where = Path(source).resolve().as_posix() if Path(source).exists() else source
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next((number for number, line in enumerate(lines) if line.startswith("source =")), None)
    require(place is not None, f"{path} has no line `source = ...` under [ratings]: add it", DataError)
    lines[place or 0] = f"source = {json.dumps(where, ensure_ascii=False)}"
    write_whole(path, ("\n".join(lines) + "\n").encode(), 0o600)


def _check_budget(config: NodeConfig) -> None:
    """Refuse an epsilon or delta out of bounds; epsilon may be 0, which allows no release."""
    try:
        bounds.check_delta(config.delta)
        if bounds.number("epsilon", config.epsilon) != 0:
            bounds.check_epsilon(config.epsilon)
    except InputError as error:
        raise DataError(f"{config.path('config.toml')}: {error}") from None


def _read(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / "config.toml"
    require(path.is_file(), f"{folder} is not a {kind}'s folder: there is no config.toml in it", InputError)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from None


def _catalogue(folder: Path) -> Catalogue:
    path = folder / "catalogue.json"
    cure = "make one with `fedmc catalogue make` and `merge`, and put the same file into every folder"
    require(path.is_file(), f"there is no catalogue {path}: {cure}", DataError)
    return catalogue.load(path)


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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
