"""The signed envelope of every message to a node: requests, stages of secure aggregation, and the end of a run.

    content     the message itself (`wire.py`)
    header      magic, the protocols served, `issued`, and the hash of the addressee's name
    signature   Ed25519, by the server's request key

The signature covers the whole content, the addressee, the protocols and `issued`, so neither Flower nor a member can
write a message, change one, or show one organisation what was sent to another. `issued` grows from message to message:
by it a node notices that an old message comes again (`node/replays.py`).

Header and signature follow the content. Nodes of protocol 1 read an .npz and ignore what comes after it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import FedmcError, require
from fedmc.federation.protocol import DEFAULT, Served
from fedmc.privacy.secagg.serial import serialise

DOMAIN = "fedmc: a message of a federation's server to one of its nodes"
MAGIC = b"fedmcreq"
HEADER = struct.Struct(">8sHHQ32s")  # magic, oldest and newest protocol, issued, hash of the addressee
SIGNATURE = 64
SIZE = HEADER.size + SIGNATURE  # bytes that an envelope adds to its content
MAX_ISSUED = 2**63 - 1  # what a node's database can hold


class EnvelopeError(FedmcError):
    """A message that the server did not sign for this node."""


class Opened(NamedTuple):
    """What was in an envelope whose signature is valid."""

    content: bytes
    issued: int
    served: Served
    digest: bytes  # hash of the content


def seal(content: bytes, key: Ed25519PrivateKey, addressee: str, issued: int, served: Served = DEFAULT) -> bytes:
    """The content in an envelope for one node, given by its organisation's name."""
    require(0 <= issued <= MAX_ISSUED, f"issued must be from 0 to {MAX_ISSUED}, got {issued}")
    header = HEADER.pack(MAGIC, served.oldest, served.newest, issued, _hash(addressee))
    return content + header + key.sign(_signed(header, addressee, _digest(content)))


def open_(sealed: bytes, public: Ed25519PublicKey, addressee: str) -> Opened:
    """The content, if this server signed it for this node; EnvelopeError otherwise. The content is not parsed."""
    end = len(sealed) - SIZE
    if end < 0 or not sealed.startswith(MAGIC, end):
        raise EnvelopeError("it is not signed: its sender runs fedmc 0.2 or older, or is not the server")
    header, signature = sealed[end:-SIGNATURE], sealed[-SIGNATURE:]
    _, oldest, newest, issued, to = HEADER.unpack(header)
    if to != _hash(addressee):
        raise EnvelopeError(f"it is addressed to another organisation than {addressee}")
    digest = _digest(memoryview(sealed)[:end])
    try:
        public.verify(signature, _signed(header, addressee, digest))
    except InvalidSignature:
        raise EnvelopeError("its signature is not by the key in server.pub: it was forged or changed") from None
    if issued > MAX_ISSUED:
        raise EnvelopeError(f"its number {issued} is above {MAX_ISSUED}")
    return Opened(sealed[:end], issued, Served(oldest, newest), digest)


def _signed(header: bytes, addressee: str, digest: bytes) -> bytes:
    return serialise(DOMAIN, header, addressee, digest)


def _hash(addressee: str) -> bytes:
    return hashlib.sha256(addressee.encode()).digest()


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
