"""Attacks on secure aggregation through the nodes: making the inputs of all but one known, and what members can spoil."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.federation.node.store import Ended
from fedmc.privacy.secagg.session import PublicKeys, signed_keys
from tests.rogue_server import RogueServer, first_round, whole_of
from tests.secure_world import SecureWorld
from tests.world import RUN

COLLUDING, VICTIM = 0, 5


def alone(world, words, broadcast):
    """Whether a sum shows the victim's words, once those of the colluding member are subtracted."""
    return (words - whole_of(world, COLLUDING, broadcast) == whole_of(world, VICTIM, broadcast)).any()


def test_keys_that_nobody_can_use_are_refused_before_a_rating_is_read(tmp_path):
    """A member signs a key with which no other can agree: the others' sessions would fail, for whom the server says."""
    world = SecureWorld(tmp_path)
    server, asked = RogueServer(world), first_round(world)
    server.get_keys(asked)
    known = server.keys[COLLUDING]
    junk = signed_keys(world.keys[COLLUDING], RUN, PublicKeys(COLLUDING, known.seq, bytes(32), known.seal))
    invitation = server.invitation(range(6), keys={COLLUDING: junk})
    assert [server.send(k, asked, invitation) for k in (1, 2, 3, 4)] == 4 * ["not-hidden"]
    assert all(world.stores[k].ended(RUN) is None for k in range(6))


def test_failures_of_all_others_do_not_uncover_one(tmp_path):
    """Whatever made four of six fail: the sum is noise, and not that of the two others."""
    world = SecureWorld(tmp_path)
    server, asked = RogueServer(world), first_round(world)
    server.get_keys(asked)
    for k in (1, 2, 3, 4):
        world.stores[k].end(RUN, Ended("failed", "made to fail"))
    assert not alone(world, server.sum(asked), asked)
