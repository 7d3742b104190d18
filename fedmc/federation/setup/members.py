"""The list of a federation's members, `members.json`: the same in every folder, signed by the authority, and growing.

An entry is never removed, so a member keeps its place in the list: by it, nodes know in which sums a member was. A
member that leaves is marked. A run is among the members that have not left, numbered in the order of the list.

A newer list follows an older one if it names the same members in the same order, and more after them. A member's key
changes only with a signature by the key before, and nobody comes back after leaving. So whoever holds the authority's
key can add members and mark them as gone, but never take an identity over.

Folders of earlier versions have `identities.json` instead: names and keys, without a signature.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedmc.data.files import write_whole
from fedmc.errors import DataError, quoted, reason, require
from fedmc.federation.setup import statements
from fedmc.federation.setup.statements import Departure, Replaced
from fedmc.privacy.secagg.serial import digest, serialise
from fedmc.types import MAX_CLIENTS

LIST, EARLIER = "members.json", "identities.json"
FORMAT = "fedmc-members"
DOMAIN = "fedmc: the members of a federation"
MAX_BYTES = 20_000_000
FIRST = 1  # the version of a list that `init` makes, and of one without a signature


class Entry(NamedTuple):
    """A member. Keys are in hexadecimal digits (identity), or a line in OpenSSH's format (its node's)."""

    name: str
    identity: str
    node: str = ""
    replaced: tuple[Replaced, ...] = ()
    left: Departure | None = None

    @property
    def visible(self) -> bool:
        """Whether the member has left, and accepted that sums show its part."""
        left = self.left
        return left is not None and left.visible and statements.is_own(self.name, self.identity, left)


@dataclass(frozen=True)
class MemberList:
    """All members that ever were; `active` are the places of those that have not left."""

    entries: tuple[Entry, ...]
    version: int = FIRST
    signature: str = ""  # by the authority, in hexadecimal digits

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(place for place, one in enumerate(self.entries) if one.left is None)

    @property
    def names(self) -> list[str]:
        """The members that have not left: member k of a run is the k-th of them."""
        return [self.entries[place].name for place in self.active]

    @property
    def identities(self) -> list[str]:
        """Their public keys."""
        return [self.entries[place].identity for place in self.active]

    @property
    def visible(self) -> frozenset[int]:
        """The places of the members that have left and accept that sums show their part."""
        return frozenset(place for place, one in enumerate(self.entries) if one.visible)

    @property
    def departed(self) -> frozenset[int]:
        """The places of all members that have left."""
        return frozenset(place for place, one in enumerate(self.entries) if one.left is not None)

    @property
    def hash(self) -> str:
        """By this, server and nodes know whether they have the same list: names, keys and departures."""
        said = [[one.name, one.identity, _left(one)] for one in self.entries]
        return digest(DOMAIN, said).hex()

    @property
    def content(self) -> bytes:
        """What the authority signs."""
        said = [[*one[:3], [list(old) for old in one.replaced], _left(one)] for one in self.entries]
        return serialise(DOMAIN, self.version, said)

    def entry(self, name: str) -> Entry:
        """The member of this name that has not left."""
        found = next((self.entries[place] for place in self.active if self.entries[place].name == name), None)
        require(found is not None, f"{quoted(name)} is no member: the members are {', '.join(self.names)}", DataError)
        assert found is not None
        return found

    def with_entry(self, entry: Entry) -> MemberList:
        """The next version, with this entry in the place of the active one of its name, or as a new one."""
        place = next((k for k in self.active if self.entries[k].name == entry.name), len(self.entries))
        entries = (*self.entries[:place], entry, *self.entries[place + 1 :])
        return checked(MemberList(entries, self.version + 1))

    def pinned(self, name: str, public: str) -> MemberList:
        """The list with another key of a member, on the word of whoever edits it here: the signature is gone."""
        try:
            statements.public_key(public)
        except ValueError:
            raise DataError(f"{public!r} is not a public key: 64 hexadecimal digits, in small letters") from None
        entry = self.entry(name)._replace(identity=public)
        return checked(replace(self.with_entry(entry), version=self.version))


def checked(found: MemberList) -> MemberList:
    """Refuse a list that names a member or a key twice, or a key that is none."""
    names, publics = found.names, [one.identity for one in found.entries]
    nodes = [found.entries[place].node for place in found.active if found.entries[place].node]
    try:
        for public in publics:
            statements.public_key(public)
    except ValueError as error:
        raise DataError(f"a key in the list of members is none: {error}") from None
    require(len(set(names)) == len(names), "the list of members names an organisation twice", DataError)
    require(len(set(publics)) == len(publics), "the list of members names a key twice", DataError)
    require(len(set(nodes)) == len(nodes), "the list of members names a node's key twice", DataError)
    require(len(found.entries) <= MAX_CLIENTS, f"at most {MAX_CLIENTS:,} members are possible", DataError)
    return found


# --- files


def of_names(listed: Sequence[tuple[str, str]]) -> MemberList:
    """A list without a signature: names and identities by number."""
    return checked(MemberList(tuple(Entry(name, public) for name, public in listed)))


def path_in(folder: Path) -> Path:
    """The list of a folder: of an earlier version, if it has no other."""
    now, earlier = folder / LIST, folder / EARLIER
    return earlier if earlier.exists() and not now.exists() else now


def there(folder: Path) -> bool:
    return path_in(folder).exists()


def load(folder: Path) -> MemberList:
    """The list of members in this folder."""
    path = path_in(folder)
    try:
        return parsed(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no {path}: the same list of members belongs into every folder") from None
    except (DataError, OSError) as error:
        raise DataError(f"{path} is not a list of members: {error}") from None


def save(folder: Path, found: MemberList) -> None:
    write_whole(folder / LIST, to_bytes(found))


def to_bytes(found: MemberList) -> bytes:
    members = [
        {
            "name": one.name, "identity": one.identity, "node": one.node,
            "replaced": [list(old) for old in one.replaced], "left": _left(one),
        }
        for one in found.entries
    ]  # fmt: skip
    said = {"format": FORMAT, "version": found.version, "members": members, "signature": found.signature}
    return json.dumps(said, indent=1).encode() + b"\n"


def parsed(content: bytes) -> MemberList:
    """A list from its file, or from a message; DataError for anything else, whatever the bytes."""
    require(len(content) <= MAX_BYTES, f"{len(content)} bytes, at most {MAX_BYTES:,} are read", DataError)
    try:
        found = json.loads(content)
        if isinstance(found, list):
            return of_names([(str(name), str(public)) for name, public in found])
        require(found["format"] == FORMAT, f"it has the format {quoted(found['format'])}", DataError)
        version = found["version"]
        require(isinstance(version, int) and FIRST <= version < 2**31, f"it has version {quoted(version)}", DataError)
        return checked(MemberList(tuple(map(_entry, found["members"])), version, str(found["signature"])))
    except DataError:
        raise
    except Exception as error:  # strange values can raise anything
        raise DataError(reason(error)) from None


def _entry(found: dict[str, Any]) -> Entry:
    replaced = tuple(Replaced(str(public), str(proof)) for public, proof in found["replaced"])
    return Entry(str(found["name"]), str(found["identity"]), str(found["node"]), replaced, _departure(found["left"]))


def _departure(left: list[Any] | None) -> Departure | None:
    if left is None:
        return None
    take_out, visible, proof = left
    return Departure(take_out is True, visible is True, str(proof))


def _left(entry: Entry) -> list[bool | str] | None:
    return None if entry.left is None else list(entry.left)
