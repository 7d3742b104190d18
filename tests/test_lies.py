"""A server that lies: what a curious one would never do, and what it gets for it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.beta import constant
from fedmc.errors import TooFewError
from fedmc.federation.wire import decode, decode_reply, encode, from_bytes, to_bytes
from fedmc.problem.scaling import Scaling
from tests.secure_world import SecureWorld
from tests.world import ITEMS, NODES, World, broadcast_of, read, refused, sealed


class LyingWorld(SecureWorld):
    """The server changes what it asks some nodes, after it has worked out what to ask."""

    def __init__(self, folder, lie):
        super().__init__(folder)
        self.lie = lie

    def exchange(self, contents, max_bytes, needed):
        changed = {}
        for client, content in contents.items():
            arrays, words = read(content)
            if "stage" not in words:
                content = sealed(client, to_bytes(*encode(self.lie(decode(arrays, words)))))
            changed[client] = content
        return super().exchange(changed, max_bytes, needed)


def other_v(request):
    """Zeros to all but node 3: else the others' V could be such that their part of the sum is known."""
    if request.client == 3 or request.broadcast.task != "round":
        return request
    return request._replace(broadcast=request.broadcast._replace(V=np.zeros_like(request.broadcast.V)))


def other_settings(request):
    if request.client != 3 or request.broadcast.task != "round":
        return request
    return request._replace(broadcast=request.broadcast._replace(shared=constant(2.0)))


def other_cohort(request):
    """Node 3 is told that node 5 is not there."""
    if request.client != 3 or not request.invitation.invited or request.broadcast.task != "round":
        return request
    return request._replace(invitation=request.invitation._replace(invited=request.invitation.invited[:-1]))


def other_base(request):
    """Node 3 is told that nothing of node 5 is counted."""
    if request.client != 3 or request.broadcast.round < 2:
        return request
    last = request.invitation.invited[-1]._replace(base=0)
    invited = (*request.invitation.invited[:-1], last)
    return request._replace(invitation=request.invitation._replace(invited=invited))


@pytest.mark.parametrize("lie", [other_v, other_settings, other_cohort, other_base])
def test_members_that_were_told_different_things_have_no_common_sum(lie, tmp_path):
    """Every mask and signature covers the whole request and the cohort."""
    world = LyingWorld(tmp_path, lie)
    engine = world.engine()
    with pytest.raises(TooFewError):
        world.train(2, engine, min_cohort=5)
    opened = [stage for stage, *_ in world.seen if stage == "open"]
    assert len(opened) == 6 * (2 if lie is other_base else 1)  # of what came before the lie
    assert all(any(word in one.why for word in ("signature", "not-hidden", "wrong-settings")) for one in engine.absent)


def test_a_counted_round_is_not_taken_from_the_servers_word(tmp_path):
    """`counted` and `factor` of a request mean nothing in a session: the certificates decide."""
    truthful = SecureWorld(tmp_path / "truthful").train(3)
    world = LyingWorld(tmp_path / "lying", lambda request: request._replace(counted=-1, factor=0.5))
    for one, other in zip(world.train(3), truthful, strict=True):
        assert one.V.tobytes() == other.V.tobytes()


def test_a_session_of_another_run_has_other_keys(tmp_path):
    """A request under the name of another run finds keys that were signed for this one."""
    world = SecureWorld(tmp_path)
    world.train(1)
    content = next(asked for stage, client, asked, _ in world.seen if stage == "round" and client == 0)
    request = decode(*read(content))._replace(run="another-run")
    assert decode_reply(*from_bytes(world.ask(0, to_bytes(*encode(request))))).status == "not-hidden"


def test_numbers_that_would_make_the_failure_tell(tmp_path):
    """A V that breaks those who rated an item: all nodes answer alike, whatever they rated."""
    world = World(tmp_path)
    asked = broadcast_of(world)
    for item in range(ITEMS):
        for value in (np.nan, np.inf, 1e200):
            V = asked.V.copy()
            V[item] = value
            assert {refused(world, asked._replace(V=V), k).status for k in range(NODES)} == {"diverged"}
    bad = Scaling(0.0, 0.0)
    assert {refused(world, asked._replace(scaling=bad), k).status for k in range(NODES)} == {"malformed"}


def test_a_message_that_comes_twice_gets_the_same_bytes(tmp_path):
    """A slow node is asked again while it works."""
    world = SecureWorld(tmp_path)
    world.train(1)
    _, client, asked, reply = next(one for one in reversed(world.seen) if one[0] == "measure")
    assert world.nodes[client].answer_bytes(asked) == reply
    assert from_bytes(reply)[1]["stage"] == "masked"
