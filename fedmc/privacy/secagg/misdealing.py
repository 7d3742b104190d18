"""Members that deal junk shares are traced: whoever misdealt is proven guilty by its own signature.

A dealer signs the hash of its boxes, its ephemeral key and a commitment to its secret. A box that does not open with
its holder's seal key, or shares that do not give the committed secret, prove that the dealer misdealt. The holder's
public seal key is part of the session, so a wrong private key convinces nobody: nobody can make a dealer look guilty.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.session import Head, Pinned, Proof, Session, box_key, box_label, boxes_hash, commitment_to


def secret_of(session: Session, head: Head, boxes: Mapping[int, bytes], seals: Mapping[int, bytes]) -> bytes | None:
    """The dealer's secret from its boxes and at least `threshold` holders' private seal keys; None: it misdealt."""
    holders = sorted(holder for holder in seals if holder != head.member)[: session.threshold]
    try:
        shares = {holder: _share(session, head, boxes[holder], seals[holder], holder) for holder in holders}
    except DataError:
        return None
    secret = crypto.combine(shares)
    return secret if commitment_to(secret) == head.commitment else None


def check(proof: Proof, session: Session, pinned: Pinned) -> None:
    """Refuse a proof that does not show that its dealer misdealt in this session."""
    head, boxes, seals = proof.head, dict(proof.boxes), dict(proof.seals)
    if head.member not in session.members:
        raise DataError(f"a proof against {head.member}, who was not in the session")
    crypto.check(pinned[head.member], head.signature, head.content(session.hash))
    if boxes_hash(boxes) != head.boxes:
        raise DataError(f"a proof against {head.member} with other boxes than it signed")
    for holder, private in seals.items():
        if holder not in session.members or crypto.public_of(private) != session.keys[holder].seal:
            raise DataError(f"a proof against {head.member} with a seal key that is not {holder}'s")
    if len(seals.keys() - {head.member}) < session.threshold:
        raise DataError(f"a proof against {head.member} with too few seal keys")
    if boxes.keys() == set(session.members) - {head.member} and secret_of(session, head, boxes, seals) is not None:
        raise DataError(f"a proof against {head.member}, whose shares are right")


def _share(session: Session, head: Head, box: bytes, seal: bytes, holder: int) -> bytes:
    key = box_key(seal, head.ephemeral, head.member, holder, session.hash)
    share = crypto.unseal(key, box, box_label(head.member, holder, session.hash))
    if len(share) != crypto.SHARE:
        raise DataError("a share of another length")
    return share
