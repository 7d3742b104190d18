"""The folders of a federation and their config.toml files.

DIR/authority/     the authority's secret key, to be kept offline
DIR/server/        for the machine that runs the server; of a node it holds only the public keys
DIR/NAME/          one per organisation, to be handed over to it
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedmc.data import catalogue
from fedmc.data.builder import Duplicates
from fedmc.data.catalogue import Catalogue, UnknownItems
from fedmc.data.files import write_whole
from fedmc.data.forms import Wide, form_of
from fedmc.errors import DataError, InputError, require, unknown
from fedmc.federation.protocol import OLDEST, PROTOCOL
from fedmc.federation.setup import (
    entries,
    members,
    policy,
)
from fedmc.federation.setup.entries import EventEntries
from fedmc.federation.setup.policy import DEFAULT, Policy
from fedmc.privacy.dp import bounds
from fedmc.privacy.protocol import MODES
from fedmc.privacy.secagg.rules import SMALLEST_COHORT
from fedmc.types import whole

RESERVED = ("server", "authority")
MAX_KEPT = 10_000_000


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
        return f"{bracketed(self.host)}:{self.port}"

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
    wide: bool | None = None  # whether the source is a matrix with a row for each user and a column for each item
    missing: str | float | None = None  # then: the numbers that mean that there is no rating, such as "99"
    unknown_items: UnknownItems = "refuse"
    test: str | None = None
    seed: int = 0
    items: str | None = field(default=None, repr=False)  # titles where the catalogue has none; a file or an address
    user_features: str | None = field(default=None, repr=False)  # relative to the folder like the source
    also_seen: str | None = field(default=None, repr=False)
    categorical: tuple[str, ...] = ()  # columns of the features whose numbers are categories
    times: bool = False  # whether to read the times of the ratings, for biases by user and day
    accept: tuple[str, ...] = ("secagg",)  # privacy modes that the organisation agreed to
    min_cohort: int = 8  # honest members of the smallest cohort that it accepts
    epsilon: float = 0.0  # with dp: the budget of each of its users over all runs; 0: no release is allowed
    delta: float = 1e-6
    policy: Policy = DEFAULT  # what a run may ask of the node
    objective: Mapping[str, str] = field(default_factory=dict)  # its own penalty_users and loss, by their specs
    keep_models: int = 20  # the models of the last runs, in models/
    keep_megabytes: int = 2_000  # of all these models together
    page_port: int = 0  # of its page, on loopback only; 0: any that is free
    log_format: str = "text"  # of its log: text or json

    def path(self, name: str) -> Path:
        return self.folder / name

    def form(self) -> Wide | bool | None:
        """How the source is read: as a matrix, as rows of ratings, or as it looks."""
        return form_of(self.wide, self.missing)

    def catalogue(self) -> Catalogue:
        return _catalogue(self.folder)


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
    own = entries.check_objective(str(folder / "config.toml"), found.pop("objective", {}))
    try:
        config = NodeConfig(folder, **found, **ratings, policy=agreed, objective=own)
    except TypeError as error:
        raise DataError(f"{folder / 'config.toml'} is not a node's: {error}") from None
    check_accepted(config.accept)
    _check_budget(config)
    where = str(folder / "config.toml")
    entries.check_side(where, config.items, config.user_features, config.also_seen, config.categorical)
    entries.check_events(where, config)
    config.form()
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


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
