"""Attacks of a malicious server on secure sums: a failure oracle, two sessions of one sum, subtraction after drop-outs.

Each is carried out with the client code and the protocol's own members, on the given data and settings.

    failure oracle     V is zero but for one item, with numbers that no honest server sends: does the sum, which says
                       whether anybody failed, tell whether a certain client rated the item?
    two sessions       a sum is opened, its certificate is hidden, and the same sum is asked for again without a member
    subtraction        a measurement over all members, less the next one over all but one: is it that member's counts?
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.messages import Broadcast
from fedmc.audit.results import Finding
from fedmc.data.partition import Shard
from fedmc.errors import DataError
from fedmc.privacy.secagg import member as protocol
from fedmc.privacy.secagg.member import Member, MemberState
from fedmc.privacy.secagg.rules import Rules, losses_of
from fedmc.privacy.secagg.session import Invited, PublicKeys, Session
from fedmc.training.aggregation import aggregation_of
from fedmc.types import Array

SIZES = (1e-6, 1.0, 1e6)  # of the entries of V that is probed with: the bounds that nodes accept, and a usual one
COUNT = "train_count"
PROBES = 100  # of the failure oracle


def of_server(members: Sequence[Shard], broadcast: Broadcast, probes: int = PROBES) -> list[Finding]:
    """All three attacks against the clients of a cohort, around a broadcast of a real run."""
    found = [_failure_oracle(members, broadcast, probes), _two_sessions(len(members))]
    return [*found, _subtraction(members, broadcast)]


def _failure_oracle(members: Sequence[Shard], broadcast: Broadcast, probes: int) -> Finding:
    """Half of the probes are about an item that the victim rated: how often does the failure word tell?"""
    rng, items = np.random.default_rng(broadcast.settings.seed), members[0].by_user.shape[1]
    right = 0.0
    for probe in range(probes):
        victim = members[int(rng.integers(len(members)))]
        rated = bool(probe % 2)
        item = int(rng.choice(victim.rated if rated else np.setdiff1d(np.arange(items), victim.rated)))
        V = np.zeros_like(broadcast.V)
        V[item] = SIZES[probe % len(SIZES)]
        failed = any(_fails(shard, broadcast._replace(V=V)) for shard in members)
        right += float(failed == rated)
    share = right / probes
    meaning = (
        f"In {probes:,} probes of one item each, the failure word of the sum of {len(members)} clients tells whether a "
        f"certain client rated it {100 * share:.1f} times in 100; a coin is right 50 times."
    )
    sees = f"whether anybody of {len(members)} clients failed"
    return Finding("which items a client rated, by failures", sees, "right about a client", share, 0.5, meaning)


def _fails(shard: Shard, broadcast: Broadcast) -> bool:
    """Whether the update fails, or has numbers that do not fit into the sum."""
    cut: list[str] = []
    try:
        with np.errstate(all="ignore"):
            aggregation_of(broadcast.settings.privacy).quietly(cut.append).reply(shard, None, broadcast)
    except Exception:  # whatever a client fails with
        return True
    return bool(cut)


def _two_sessions(number: int) -> Finding:
    """Everybody opens a session; then the server asks for the same sum without the last member."""
    identities = [Ed25519PrivateKey.generate() for _ in range(number)]
    pinned = {k: identity.public_key() for k, identity in enumerate(identities)}
    members = [Member("audit", k, identity, pinned, Rules(2, 0)) for k, identity in enumerate(identities)]
    begun = [protocol.hello(member, MemberState()) for member in members]
    first = _session([keys for _, keys in begun], 1)
    replies = [protocol.reply(member, begun[k][0], first, _words(), failed=False) for k, member in enumerate(members)]
    heads = [masked.head for _, masked in replies]
    opened = [protocol.open_(member, replies[k][0], first.hash, heads)[0] for k, member in enumerate(members)]
    second = _session([head.next for head in heads[:-1]], 2)
    agreed = 0
    for member, state in zip(members[:-1], opened, strict=False):
        try:
            protocol.check(member, state, second)
            agreed += 1
        except DataError:
            pass
    share = agreed / max(number - 1, 1)
    meaning = f"A second sum without one member, after a first one was opened: {agreed} of {number - 1} members agree."
    return Finding("one client by two sums of a round", "two sessions", "members that agree", share, 0.0, meaning)


def _session(keys: Sequence[PublicKeys], attempt: int) -> Session:
    losses = min(losses_of(len(keys)), (len(keys) - 1) // 2)
    return Session("audit", 1, attempt, bytes(32), tuple(map(Invited, keys)), losses, b"", 1)


def _words() -> Array:
    return np.zeros(1, np.uint64)


def _subtraction(members: Sequence[Shard], broadcast: Broadcast) -> Finding:
    """Each member is absent once from the second of two measurements."""
    aggregation, measure = (
        aggregation_of(broadcast.settings.privacy).quietly(_ignore),
        broadcast._replace(task="measure"),
    )
    joined = [aggregation.reply(shard, None, broadcast)[0] for shard in members]
    first = [aggregation.reply(shard, state, measure) for shard, state in zip(members, joined, strict=True)]
    again = [aggregation.reply(shard, first[k][0], measure) for k, shard in enumerate(members)]
    name = COUNT if COUNT in first[0][1].parts else next(iter(first[0][1].parts))
    whole = sum(int(sums[name]) for _, sums in first)
    found = 0
    for absent in range(len(members)):
        less = sum(int(sums[name]) for k, (_, sums) in enumerate(again) if k != absent)
        found += whole - less == int(first[absent][1][name])
    share = found / len(members)
    meaning = (
        "Two neighbouring measurements, the second without a member: the difference is that member's count for "
        f"{found} of {len(members)} members. Measurements are sent as changes: a sum over fewer has no counts."
    )
    return Finding("one client's counts by subtraction", "two measurements", "counts read off", share, 0.0, meaning)


def _ignore(why: str) -> None:
    """Nobody is told of numbers that were cut."""
