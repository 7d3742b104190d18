"""Who is a member: adding and removing organisations, and new keys, with the authority's signature.

The coordinator does this where the authority's folder is. The new list goes into the server's folder, where a running
server takes it in at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmc import __version__
from fedmc.data.catalogue import Catalogue
from fedmc.errors import DataError, require
from fedmc.federation.setup import (
    founding,
    identities,
    keys,
    layout,
    member_keys,
    members,
    request_key,
    statements,
    succession,
)
from fedmc.federation.setup.keys import Authority
from fedmc.federation.setup.layout import ServerConfig
from fedmc.federation.setup.members import Entry, MemberList
from fedmc.federation.setup.statements import Departure
from fedmc.privacy.modes import default_for


class Federation(NamedTuple):
    """What the coordinator has: the authority, and the server's folder or a copy of it."""

    authority: Authority
    server: ServerConfig

    @property
    def listed(self) -> MemberList:
        return members.load(self.server.folder)

    def sign(self, found: MemberList) -> MemberList:
        return succession.signed(found, self.authority.key)


def open_(authority: Path, server: Path) -> Federation:
    return Federation(keys.load_authority(authority), layout.load_server(server))


def add(
    federation: Federation, name: str, folder: Path, public: Path | None = None, accept: Sequence[str] | None = None
) -> MemberList:
    """Make the folder of a new organisation; returns the list with it, which is not in use yet.

    `public` is the file with the public halves of the organisation's own keys; without it, keys are made here.
    """
    (name,) = layout.check_names([name])
    listed, server = federation.listed, federation.server
    require(name not in listed.names, f"{name} is a member already")
    require(not folder.exists() or not any(folder.iterdir()), f"{folder} exists and is not empty: choose a new folder")
    halves = None if public is None else _own(public, name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if halves is None:
        entry = Entry(name, identities.make(folder), member_keys.make_node_key(folder))
    else:
        entry = halves.entry()
    number = len(listed.active) + 1
    agreed = layout.check_accepted(accept if accept is not None else [default_for(number)])
    said = {"host": server.host, "port": str(server.port), "version": __version__}
    founding.write_node(folder, name, server.address, said, agreed, number)
    for shared in ("ca.crt", request_key.PUBLIC, "catalogue.json"):
        if (server.folder / shared).exists():
            (folder / shared).write_bytes((server.folder / shared).read_bytes())
    found = federation.sign(listed.with_entry(entry))
    members.save(folder, found)
    return found


def renew(federation: Federation, public: Path) -> MemberList:
    """The list with a member's new keys, which its identity of now has signed."""
    halves = member_keys.load(public)
    return federation.sign(federation.listed.with_entry(halves.entry(federation.listed.entry(halves.organisation))))


def remove(federation: Federation, leaving: Mapping[str, Departure | None]) -> MemberList:
    """The list in which these organisations have left, by their own statements or by the coordinator's."""
    listed = federation.listed
    for name, left in leaving.items():
        entry = listed.entry(name)
        own = left is None or statements.is_own(name, entry.identity, left)
        require(own, f"the statement that {name} leaves is not signed by its identity", DataError)
        require(len(listed.active) > 1, f"{name} is the only member left: end the federation instead")
        listed = listed.with_entry(entry._replace(left=left or Departure(False, False)))
    return federation.sign(listed)


def put_into_use(server: ServerConfig, found: MemberList) -> None:
    """Write the list into the server's folder; nodes' keys come first, so that a list never names one without."""
    member_keys.write_node_keys(server.folder, found)
    members.save(server.folder, found)


def take_in(server: ServerConfig, path: Path) -> MemberList:
    """A list that the coordinator handed over to the server's operator, after its checks."""
    try:
        found = members.parsed(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    succession.check_list(members.load(server.folder), found, succession.authority_of(server.folder))
    return found


def sign_catalogue(authority: Path, found: Catalogue) -> str:
    """The authority's signature on a catalogue, by which nodes take it in while they run."""
    return succession.sign(succession.catalogue_content(found), keys.load_authority(authority).key)


def _own(public: Path, name: str) -> member_keys.PublicHalves:
    halves = member_keys.load(public)
    require(halves.organisation == name, f"{public} holds the keys of {halves.organisation}, not of {name}", DataError)
    return halves
