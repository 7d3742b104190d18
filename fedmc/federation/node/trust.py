"""Whom a node trusts: the one server whose requests it fulfils, and the members among whom its replies are hidden."""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedmc.federation import envelope
from fedmc.federation.envelope import EnvelopeError, Opened
from fedmc.federation.node.memberships import Own
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.protocol import PROTOCOL, mismatch
from fedmc.federation.setup.identities import Identity
from fedmc.federation.statuses import WRONG_VERSION


class Trust(NamedTuple):
    """The organisation's name, its server's public key, and its identity in secure aggregation.

    Without a server's key a node refuses every message. `own` is its part in the federation's newest list of members.
    """

    name: str = ""
    server: Ed25519PublicKey | None = None
    identity: Identity | None = None
    own: Own | None = None

    def open(self, sealed: bytes) -> Opened:
        """What the server signed for this node; anything else is refused before it is parsed."""
        if self.server is None:
            raise RefusedError("not-signed", "this node knows no server's key: it needs the file server.pub")
        try:
            opened = envelope.open_(sealed, self.server, self.name)
        except EnvelopeError as error:
            raise RefusedError("not-signed", f"{len(sealed)} bytes, {error}") from None
        if not opened.served.oldest <= PROTOCOL <= opened.served.newest:
            raise RefusedError(WRONG_VERSION, mismatch(PROTOCOL, opened.served))
        return opened


NOBODY = Trust()
