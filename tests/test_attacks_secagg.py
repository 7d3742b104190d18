"""Attacks on secure aggregation through the nodes: making all inputs but one known, and what members can spoil."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.federation.node.store import KEPT_RUNS, Ended
from fedmc.federation.secagg_messages import Stage, encode_stage, keys_arrays
from fedmc.federation.wire import NEVER, from_bytes
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg import member as protocol
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


@pytest.mark.parametrize("counted", [NEVER, 0, 1, 7])
def test_the_end_of_a_run_does_not_tell_who_failed(counted, tmp_path):
    """Whatever the server says was counted, and however often it says that the run ends."""
    world = SecureWorld(tmp_path)
    server, asked = RogueServer(world), first_round(world)
    server.get_keys(asked)
    world.stores[3].end(RUN, Ended("failed", "numbers"))
    server.sum(asked)
    for V in (asked.V, 2 * asked.V):
        last = asked._replace(task="finish", V=V)
        assert {server.send(k, last, counted=counted) for k in range(6)} == {"ok"}


def killed(*given):
    raise KeyboardInterrupt


def test_a_contribution_that_was_never_sent_is_not_committed_by_a_sum_of_statistics(tmp_path, monkeypatch):
    """Four nodes die after they stored a contribution, before they reply. Then statistics are summed, and certified.

    If that committed the contribution, the four would next send no change, and the victim its whole contribution.
    """
    world = SecureWorld(tmp_path)
    server, asked = RogueServer(world), first_round(world, entry_penalty=1.0)
    server.get_keys(asked)
    for k in (1, 2, 3, 4):
        with monkeypatch.context() as patched:
            patched.setattr(protocol, "reply", killed)
            with pytest.raises(KeyboardInterrupt):
                server.send(k, asked, server.invitation(range(6)))
        world.revive(k)
    assert not isinstance(server.sum(asked._replace(task="moments", round=0)), dict)
    found = server.sum(asked)
    assert (found == sum(whole_of(world, k, asked) for k in range(6))).all()


def test_a_node_whose_state_was_dropped_does_not_join_twice(tmp_path):
    """The states of old runs make room for new ones: a server that begins many at one node makes it forget this run."""
    world = SecureWorld(tmp_path)
    server, asked = RogueServer(world), first_round(world)
    server.get_keys(asked)
    assert not isinstance(server.sum(asked), dict)
    for number in range(KEPT_RUNS):
        other = RogueServer(world, f"run-{number}")
        other.get_keys(asked)
        assert other.send(VICTIM, asked, other.invitation(range(6))).stage == "masked"
    assert server.sum(asked._replace(round=2)) == {VICTIM: "lost-state"}


# --- the server


def keys_instead(world, seq):
    """Node 5 answers rounds after the first with keys, of a number that `seq` makes of how often it did so."""
    made = itertools.count()

    def change(stage, client, reply):
        if client != 5 or stage != "round" or world.counts[stage, client] == 1:
            return reply
        keys = PublicKeys(5, seq(next(made)), crypto.new_pair()[1], crypto.new_pair()[1])
        arrays = keys_arrays(signed_keys(world.keys[5], RUN, keys), 0)
        return encode_stage(Stage(RUN, 5, "keys", arrays))

    return change


@pytest.mark.parametrize("seq", [lambda time: 1_000 + time, lambda time: 1])
def test_a_member_that_sends_nothing_but_keys_is_left_out(seq, tmp_path):
    """With newer keys each time it would take all attempts; older ones would make all others refuse."""
    world = SecureWorld(tmp_path)
    world.change = keys_instead(world, seq)
    assert [round.participants for round in world.train(3)[1:]] == [tuple(range(6)), *2 * [(0, 1, 2, 3, 4)]]


def test_a_member_that_has_no_keys_does_not_hold_up_the_others(tmp_path):
    """It accepts to be seen, so it is asked again in every round, and does not answer."""
    lose = lambda stage, client, count: client == 2 and stage == "round" and count > 1  # noqa: E731
    world = SecureWorld(tmp_path, alone=(2,), lose=lose)
    assert [round.participants for round in world.train(3)[1:]] == [tuple(range(6)), *2 * [(0, 1, 3, 4, 5)]]


def test_a_member_that_never_replies_does_not_fill_the_record(tmp_path):
    """It gives keys in every round, and no masked input: the server keeps two certificates for it, and not all."""
    world = SecureWorld(tmp_path, alone=(2,))
    engine, states = world.engine(), []
    world.train(1, engine, states)
    silent = lambda client, reply: client == 2 and from_bytes(reply)[1].get("stage") == "masked"  # noqa: E731
    world.change = lambda stage, client, reply: b"" if silent(client, reply) else reply
    assert world.train(6, engine, states)[-1].participants == (0, 1, 3, 4, 5)
    assert len(engine.asking.record.certificates) <= 3


def test_every_group_is_measured_at_the_end(tmp_path):
    """The groups get the same request one after the other: each has a session of its own."""
    world = SecureWorld(tmp_path, 12)
    last, simulated = world.train(4, active=6)[-1], world.simulated(4, active=6)[-1]
    assert last.diagnostics._replace(bound=None) == simulated.diagnostics._replace(bound=None)


def test_a_first_measurement_is_of_all_members_in_any_run(tmp_path):
    """Two runs whose members join unmeasured: measurements over all, less those over all but one, are one member's."""
    world = SecureWorld(tmp_path)
    for run, cohort, expected in (("one", range(6), None), ("two", range(5), dict.fromkeys(range(5), "not-hidden"))):
        server = RogueServer(world, run)
        broadcast = first_round(world)
        server.get_keys(broadcast)
        assert not isinstance(server.sum(broadcast), dict)
        found = server.sum(broadcast._replace(task="measure", round=2), cohort)
        assert (found == expected) if expected else not isinstance(found, dict)
