"""Keys that are derived for one session, and the contents that members sign and commit to."""

from __future__ import annotations

from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.serial import digest, serialise
from fedmc.privacy.secagg.session import Session


def self_key(b: bytes, session: Session) -> bytes:
    """The key of a member's own mask, which hides its input even if all its pairwise masks are known."""
    return crypto.derive(b, serialise("self", session.label))


def pair(private: bytes, own: int, peer: int, public: bytes, session: Session) -> tuple[bytes, int]:
    """The key and sign of a pairwise mask: plus for the smaller number, minus for the larger, so that it cancels."""
    low, high = sorted((own, peer))
    key = crypto.agree(private, public, serialise("mask", session.label, low, high))
    return key, 1 if own == low else -1


def commitment_to(b: bytes) -> bytes:
    return digest("commitment", b)


def confirmed(session: Session, survivors: tuple[int, ...]) -> bytes:
    return serialise("survivors", session.label, survivors)
