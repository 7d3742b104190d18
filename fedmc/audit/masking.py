"""A round of secure aggregation in one process, with the real members and aggregator, to get real masked uploads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.leakage import Observation
from fedmc.algorithms.messages import SUM_BITS
from fedmc.errors import require
from fedmc.privacy.secagg import member as protocol
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.fixed import from_fixed, limit_of, to_fixed
from fedmc.privacy.secagg.member import Member, MemberState
from fedmc.privacy.secagg.rules import Rules
from fedmc.privacy.secagg.session import EXTRA, Invited, Session
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
    """Both exchanges without drop-outs: the masked inputs, and their unmasked sum."""
    cohort = tuple(sorted(words))
    identities = {client: Ed25519PrivateKey.generate() for client in cohort}
    pinned = {client: identity.public_key() for client, identity in identities.items()}
    rules = Rules(2, 0)
    members = {client: Member("audit", client, identities[client], pinned, rules) for client in cohort}
    begun = {client: protocol.hello(member, MemberState()) for client, member in members.items()}
    invited = tuple(Invited(keys) for _, keys in begun.values())
    session = Session("audit", 1, 1, bytes(32), invited, 0, b"", len(words[cohort[0]]))
    aggregator = Aggregator(session, pinned)
    states = {}
    for client, member in members.items():
        states[client], masked = protocol.reply(member, begun[client][0], session, words[client], failed=False)
        aggregator.take_masked(client, masked)
    for client, member in members.items():
        _, opened = protocol.open_(member, states[client], session.hash, aggregator.heads())
        aggregator.take_opened(client, opened)
    hidden = {client: one.words[:-EXTRA] for client, one in aggregator.masked.items()}
    return hidden, aggregator.unmask().words
