"""A round of secure aggregation in one process, with the real members and aggregator, to get real masked uploads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.leakage import Observation
from fedmc.algorithms.messages import SUM_BITS
from fedmc.errors import require
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.fixed import from_fixed, limit_of, to_fixed
from fedmc.privacy.secagg.member import Member
from fedmc.privacy.secagg.session import Session, threshold_of
from fedmc.types import Array


def masked_round(messages: Mapping[int, Observation]) -> dict[int, Observation]:
    """Each client's message as it arrives at the server: the masked input, decoded as if it were not masked.

    The aggregator's sum is checked against the sum of the inputs.
    """
    require(len(messages) >= 3, f"a masked sum takes a cohort of at least 3 clients, got {len(messages)}: raise active")
    names = [name for name, part in next(iter(messages.values())).parts.items() if np.ndim(part)]
    words = {client: _words(seen, names, len(messages)) for client, seen in messages.items()}
    hidden, total = _protocol(words)
    expected = np.sum(list(words.values()), axis=0, dtype=np.uint64)
    assert np.array_equal(total, expected)
    return {client: _read(seen, names, hidden[client]) for client, seen in messages.items()}


def _words(seen: Observation, names: list[str], clients: int) -> Array:
    whole = np.concatenate([np.ravel(seen.parts[name]) for name in names])
    return to_fixed(whole, SUM_BITS, limit_of(clients, SUM_BITS)).view(np.uint64)


def _read(seen: Observation, names: list[str], words: Array) -> Observation:
    """The integers decoded in the message's shape; scalars, such as `joined`, are kept unmasked."""
    values, parts, at = from_fixed(words.view(np.int64), SUM_BITS), dict(seen.parts), 0
    for name in names:
        size = seen.parts[name].size
        parts[name] = values[at : at + size].reshape(seen.parts[name].shape)
        at += size
    return seen._replace(parts=parts)


def _protocol(words: Mapping[int, Array]) -> tuple[dict[int, Array], Array]:
    """All five stages without drop-outs: the masked inputs, and their unmasked sum."""
    cohort = tuple(sorted(words))
    session = Session("audit", 1, cohort, threshold_of(len(cohort)), len(words[cohort[0]]))
    identities = {client: Ed25519PrivateKey.generate() for client in cohort}
    pinned = {client: identity.public_key() for client, identity in identities.items()}
    members = {client: Member(client, identities[client], pinned, session, 3) for client in cohort}
    aggregator = Aggregator(session, pinned)
    adverts = aggregator.take_adverts({client: member.advertise() for client, member in members.items()})
    sealed = aggregator.take_sealed({client: member.share(adverts) for client, member in members.items()})
    hidden = {client: member.mask(sealed[client], words[client]) for client, member in members.items()}
    survivors = aggregator.take_hidden(hidden)
    signed = aggregator.take_signatures({client: member.confirm(survivors) for client, member in members.items()})
    return hidden, aggregator.unmask({client: member.reveal(signed) for client, member in members.items()})
