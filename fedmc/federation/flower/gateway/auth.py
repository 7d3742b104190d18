"""Whose key signed a call. This is decided from the header alone, before a byte of the body is read."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, verify_signature

from fedmc.errors import DataError
from fedmc.federation.flower.gateway.http import Headers, Refusal
from fedmc.federation.setup.layout import ServerConfig

KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
SIGNATURE = FLEET_HTTP_SIGNATURE_HEADER.lower().encode()
TIME = TIMESTAMP_HEADER.lower().encode()
FLOWER = b"flwr-"  # the prefix of Flower's headers
UNKNOWN_KEY, BAD_SIGNATURE = 421, 420  # Flower gives 401 and 403 meanings of its own: they end a SuperNode, or a run


class Member(NamedTuple):
    """An organisation's node."""

    name: str
    node: int  # Flower's id
    key: EllipticCurvePublicKey
    pem: bytes  # the same key, as Flower writes it


Members = Mapping[bytes, Member]  # by the value of the key's header


def load_members(config: ServerConfig, nodes: Mapping[str, int]) -> Members:
    """The organisations' public keys and node ids."""
    found = {}
    for name in config.organisations:
        path = config.path(f"nodes/{name}.pub")
        key = load_ssh_public_key(path.read_bytes())
        if not isinstance(key, EllipticCurvePublicKey):
            raise DataError(f"{path} is not an elliptic curve key, which Flower needs")
        pem = public_key_to_bytes(key)
        found[b64encode(pem)] = Member(name, nodes[name], key, pem)
    return found


def authenticate(headers: Headers, members: Members) -> Member:
    """The member whose key signed the header's time; a Refusal if none did."""
    said: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.startswith(FLOWER):
            if name in said:
                raise Refusal(400, f"the header {name.decode()} comes twice")
            said[name] = value
    member = members.get(said.get(KEY, b""))
    if member is None:
        raise Refusal(UNKNOWN_KEY, f"{fingerprint(said[KEY])} is not registered" if KEY in said else "no key")
    try:
        stamp = said[TIME].decode("ascii")
        age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        signature = b64decode(said[SIGNATURE], validate=True)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise Refusal(BAD_SIGNATURE, f"a call with the key of {member.name} has no time or no signature") from None
    if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        raise Refusal(BAD_SIGNATURE, f"a call with the key of {member.name} is {age:.0f} s old: is its clock right?")
    if not verify_signature(member.key, stamp.encode(), signature):
        raise Refusal(BAD_SIGNATURE, f"a call with the key of {member.name} has a wrong signature")
    return member


def fingerprint(key: bytes) -> str:
    """A short name of a key, for the log."""
    return "key " + hashlib.sha256(key).hexdigest()[:16]
