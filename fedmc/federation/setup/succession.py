"""Which list of members and which catalogue may follow another one, and who says so: the authority, and members about
their own keys."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.x509 import load_pem_x509_certificate

from fedmc.data.catalogue import Catalogue
from fedmc.errors import DataError, quoted, require
from fedmc.federation.setup import statements
from fedmc.federation.setup.members import Entry, MemberList
from fedmc.federation.setup.statements import Replaced
from fedmc.privacy.secagg.serial import serialise

SIGNING = ECDSA(hashes.SHA384())


def sign(content: bytes, key: EllipticCurvePrivateKey) -> str:
    return key.sign(content, SIGNING).hex()


def signed(found: MemberList, key: EllipticCurvePrivateKey) -> MemberList:
    return replace(found, signature=sign(found.content, key))


def authority_of(folder: Path) -> EllipticCurvePublicKey:
    """The public key of the authority that a folder trusts."""
    try:
        key = load_pem_x509_certificate((folder / "ca.crt").read_bytes()).public_key()
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'ca.crt'} is not a certificate: {error}") from None
    require(isinstance(key, EllipticCurvePublicKey), f"{folder / 'ca.crt'} is not of a fedmc authority", DataError)
    assert isinstance(key, EllipticCurvePublicKey)
    return key


def check_signature(what: str, content: bytes, signature: str, authority: EllipticCurvePublicKey) -> None:
    """Refuse what the authority did not sign."""
    try:
        authority.verify(bytes.fromhex(signature), content, SIGNING)
    except (InvalidSignature, ValueError):
        raise DataError(f"{what} is not signed by the federation's authority (ca.crt)") from None


def catalogue_content(catalogue: Catalogue) -> bytes:
    """What the authority signs of a catalogue."""
    return serialise("fedmc: the catalogue of a federation", len(catalogue), catalogue.hash)


def check_catalogue(old: Catalogue, new: Catalogue, authority: EllipticCurvePublicKey) -> None:
    """Refuse a catalogue that the authority did not sign, or in which an item has another column."""
    check_signature("the catalogue", catalogue_content(new), new.signature, authority)
    begins = old.begins(new)
    require(begins, f"the catalogue of {len(new):,} items does not begin with the {len(old):,} known here", DataError)


def check_list(old: MemberList, new: MemberList, authority: EllipticCurvePublicKey) -> None:
    """Refuse a list of members that the authority did not sign, or that does not follow the one that is known."""
    what = f"version {new.version} of the list of members"
    check_signature(what, new.content, new.signature, authority)
    require(new.version > old.version, f"{what} is not newer than version {old.version}", DataError)
    known, named = len(old.entries), len(new.entries)
    require(named >= known, f"{what} names {named} members, {known} are known here", DataError)
    for before, now in zip(old.entries, new.entries, strict=False):
        same = before.name == now.name
        require(same, f"{what} names {quoted(now.name)} in the place of {before.name}", DataError)
        back = before.left is not None and before.left != now.left
        require(not back, f"{what} says otherwise how {before.name} left", DataError)
        _check_keys(before, now)


def _check_keys(before: Entry, now: Entry) -> None:
    """Refuse an identity that does not follow from the known one, by the signature of each key on the next."""
    keys = [*now.replaced, Replaced(now.identity, "")]
    known = next((k for k, one in enumerate(keys) if one.identity == before.identity), None)
    chain = [] if known is None else keys[known:]
    follows = all(statements.follows(now.name, one, after.identity) for one, after in itertools.pairwise(chain))
    cure = "compare the new key with that organisation, then `fedmc node identity --pin NAME=KEY`"
    require(known is not None and follows, f"{before.name} has a new key that its key did not sign: {cure}", DataError)
