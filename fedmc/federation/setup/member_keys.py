"""An organisation's own keys, and the file with their public halves, `keys.json`, which it hands to the coordinator.

    node.key       its node signs its calls with it, so that the server admits them
    identity.key   its identity in secure aggregation

A member that makes new keys keeps them in `next/` until the list of members names them. Its old identity signs the new
one, so that the other members know that it is still the same organisation.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedmc.data.files import write_whole
from fedmc.errors import DataError, require
from fedmc.federation.setup import identities, keys, statements
from fedmc.federation.setup.members import Entry, MemberList
from fedmc.federation.setup.statements import Replaced

FILE, NEXT, NODE = "keys.json", "next", "node.key"


class PublicHalves(NamedTuple):
    """What an organisation hands over: its name, its public keys and, if they replace others, the proof."""

    organisation: str
    identity: str
    node: str
    replaces: Replaced | None = None
    proof: str = ""  # the signature of its identity on its name and both keys

    def entry(self, before: Entry | None = None) -> Entry:
        """The organisation as a member; `before`, if it is one already."""
        if before is None:
            return Entry(self.organisation, self.identity, self.node)
        own = self.replaces
        known = own is not None and own.identity == before.identity
        require(
            known and own is not None and statements.follows(self.organisation, own, self.identity),
            f"the new keys of {self.organisation} are not signed by its identity: make them with `fedmc node keys` in "
            "the folder that holds the keys of now",
            DataError,
        )
        assert own is not None
        return before._replace(identity=self.identity, node=self.node, replaced=(*before.replaced, own))


def make_node_key(folder: Path) -> str:
    """Write a new key with which the node signs its calls; returns its public half, a line in OpenSSH's format."""
    private, public = keys.make_node_keys()
    (folder / NODE).unlink(missing_ok=True)
    keys.write_private(folder / NODE, private)
    return public.decode()


def make(folder: Path, organisation: str) -> PublicHalves:
    """Make an organisation's own keys in its folder: its first ones, or further ones in `next/`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    replaces, place = None, folder
    if (folder / identities.KEY).exists():
        place = folder / NEXT
        place.mkdir(exist_ok=True, mode=0o700)
    public, node = identities.make(place), make_node_key(place)
    if place != folder:
        replaces = statements.replaced(organisation, identities.load_key(folder), public)
    proof = statements.owned(organisation, identities.load_key(place), node)
    made = PublicHalves(organisation, public, node, replaces, proof)
    said = made._asdict() | {"replaces": None if replaces is None else list(replaces)}
    write_whole(folder / FILE, json.dumps(said, indent=1).encode() + b"\n")
    return made


def load(path: Path) -> PublicHalves:
    """The public halves that an organisation handed over."""
    cure = "`fedmc node keys` makes it"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        replaces = None if found["replaces"] is None else Replaced(*map(str, found["replaces"]))
        name, public, line, proof = (str(found[one]) for one in ("organisation", "identity", "node", "proof"))
        statements.public_key(public)
        node = load_ssh_public_key(line.encode())
    except (OSError, ValueError, TypeError, KeyError, RecursionError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} does not hold an organisation's public keys: {error}; {cure}") from None
    elliptic = isinstance(node, EllipticCurvePublicKey)
    require(elliptic, f"{path}: the node's key is not an elliptic curve key, which Flower needs", DataError)
    plain = line == node.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    require(plain, f"{path}: the node's key is not one plain line; {cure}", DataError)
    own = statements.is_owned(name, public, line, proof)
    require(own, f"{path} was changed: the identity in it has not signed this; {cure}", DataError)
    return PublicHalves(name, public, line, replaces, proof)


def pending(folder: Path) -> bool:
    """Whether there are new keys that wait until the list of members names them."""
    return (folder / NEXT / identities.KEY).exists()


def promote(folder: Path, listed: MemberList, organisation: str) -> bool:
    """Take new keys into use if the list of members names them; whether that was so. A kill in between does no harm."""
    if not pending(folder) or organisation not in listed.names:
        return False
    public = identities.public_hex(identities.load_key(folder / NEXT))
    if listed.entry(organisation).identity != public:
        return False
    if (folder / NEXT / NODE).exists():
        os.replace(folder / NEXT / NODE, folder / NODE)
    os.replace(folder / NEXT / identities.KEY, folder / identities.KEY)  # last: by it a repetition knows
    (folder / NEXT).rmdir()
    return True


def write_node_keys(server: Path, listed: MemberList) -> None:
    """Write the public keys of the members' nodes, by which the gateway admits them."""
    (server / "nodes").mkdir(exist_ok=True)  # a copy of the folder may lack it
    for place in listed.active:
        one = listed.entries[place]
        if one.node:  # a list of an earlier version holds none
            write_whole(server / "nodes" / f"{one.name}.pub", one.node.encode() + b"\n")
