"""Secure aggregation between server and nodes, in process: what travels, who is refused, and what is never told."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.messages import length
from fedmc.algorithms.schema import schema_of
from fedmc.errors import TooFewError
from fedmc.federation.secagg_messages import FOLLOWING, read_stage
from fedmc.federation.setup.policy import Policy
from fedmc.federation.wire import Reply, decode, encode_reply, from_bytes, to_bytes
from fedmc.training.rounds import rounds
from tests.world import (
    HIDDEN,
    IDENTITIES,
    ITEMS,
    KEYS,
    KINDS,
    NODES,
    RUN,
    Between,
    World,
    broadcast_of,
    engine_on,
    invitation,
    read,
    refused,
    run,
)  # fmt: skip


def test_what_travels_in_each_message(tmp_path):
    """The whole list: arrays with their types and bytes, and words that say who, which and what."""
    wire = Between(World(tmp_path))
    run(wire)
    found = {}
    for stage, _, asked, reply in wire.seen:
        arrays, words = from_bytes(reply)
        if stage not in FOLLOWING:
            stage = "advert"
            assert set(read(asked)[0]) == {"V"}
        assert set(words) == {"token", "client", "stage", "status"}
        sizes = {name: (array.dtype.name, array.nbytes) for name, array in arrays.items()}
        if stage == "mask":
            sizes = {name: kind for name, (kind, _) in sizes.items()}
        found.setdefault(stage, []).append(sizes)
    shares, others = 66, NODES - 1
    keys = {"members": ("int64", 8), "new": ("uint8", 1), "seal": ("uint8", 32), "mask": ("uint8", 32)}
    keys |= {"commitments": ("uint8", 32)}
    one_of = {
        "advert": keys | {"signatures": ("uint8", 64)},
        "share": {"members": ("int64", 8 * others), "members_contents": ("uint8", (2 * shares + 16) * others)},
        "mask": {"words": "uint64"},
        "confirm": {"signature": ("uint8", 64)},
        "reveal": {
            "survivors": ("int64", 8 * NODES), "survivors_contents": ("uint8", shares * NODES),
            "lost": ("int64", 0), "lost_contents": ("uint8", 0),
        },
    }  # fmt: skip
    assert found.keys() == one_of.keys()
    for stage, messages in found.items():
        assert all(one == one_of[stage] for one in messages), stage
    sizes = {len(from_bytes(reply)[0]["words"]) for stage, _, _, reply in wire.seen if stage == "mask"}
    expected = {length(schema_of(asked_in(wire, task), ITEMS)) for task in ("moments", "measure", "round")}
    assert sizes == expected


def asked_in(wire, task):
    return next(decode(*read(asked)).broadcast for stage, _, asked, _ in wire.seen if stage == task)


def test_masked_words_are_not_the_words(tmp_path):
    """Each upload alone looks like noise, although most of what is in it is zero."""
    world = World(tmp_path)
    wire = Between(world)
    _, history = run(wire, 1)
    assert history[-1].participants == (0, 1, 2, 3)
    masked = [read_stage(reply).arrays["words"] for stage, _, _, reply in wire.seen if stage == "mask"]
    assert len({words.tobytes() for words in masked}) == len(masked)
    for words in masked:
        if len(words) > 100:
            high = np.unpackbits(words.view(np.uint8)).mean()
            assert 0.45 < high < 0.55
            assert not (words == 0).any()


@pytest.mark.parametrize("stage", ["round", *FOLLOWING])
def test_who_is_lost_at_a_stage_is_left_out_of_the_sum(stage, tmp_path):
    """One of four, where three are enough: the sum is that of whose words arrived, and next time all are in again."""
    rounds_seen = []

    def lose(now, client, reply):
        if now == "round":
            rounds_seen.append(client)
        second = len(rounds_seen) > NODES and len(rounds_seen) <= 2 * NODES
        return None if second and now == stage and client == 2 else reply

    _, history = run(Between(World(tmp_path), lose), 3, quorum=3)
    arrived = (0, 1, 2, 3) if stage in ("confirm", "reveal") else (0, 1, 3)
    assert [round.participants for round in history[1:]] == [(0, 1, 2, 3), arrived, (0, 1, 2, 3)]


def test_too_many_lost_unmask_nothing(tmp_path):
    def lose(stage, client, reply):
        return None if stage == "mask" and client in (1, 2) else reply

    wire = Between(World(tmp_path), lose)
    why = r"2 of 4 members sent a masked input, 4 must \(.*node 2: no answer to mask in time"
    with pytest.raises(TooFewError, match=why):
        run(wire)
    assert not any(stage in ("confirm", "reveal") for stage, *_ in wire.seen)


def test_the_same_words_are_not_revealed_among_others(tmp_path, caplog):
    """The sum was seen and never counted; asked for again without one member, it could be subtracted."""
    reveals = []

    def crash(stage, client, reply):
        reveals.extend([client] if stage == "reveal" else [])
        if len(reveals) == 5 * NODES:  # of round 2, after the moments, a round and two measurements
            raise KeyboardInterrupt
        return reply

    def lose(stage, client, reply):
        return None if stage == "mask" and client == 3 else reply

    world, states = World(tmp_path), []
    engine = engine_on(Between(world, crash), 3)
    with pytest.raises(KeyboardInterrupt):
        list(itertools.islice(rounds(engine, HIDDEN, on_checkpoint=states.append), 4))
    assert states[-1].number == 1
    without = engine_on(Between(world, lose), 3)
    without.restore(dict.fromkeys(range(NODES), 1), {})
    with pytest.raises(TooFewError, match="0 of 4 members confirmed, 3 must"):
        next(rounds(without, HIDDEN, checkpoint=states[-1]))
    assert "the same reply was in a sum over (0, 1, 2, 3)" in caplog.text
    everybody = engine_on(Between(world), 3)
    everybody.restore(dict.fromkeys(range(NODES), 1), {})
    again = next(rounds(everybody, HIDDEN, checkpoint=states[-1]))
    undisturbed = run(Between(World(tmp_path / "undisturbed")), 2)[1][-1]
    assert again.V.tobytes() == undisturbed.V.tobytes()


def test_what_a_node_refuses(tmp_path, caplog):
    world = World(tmp_path)
    asked = broadcast_of(world)
    assert refused(world, asked, invitation=None).status == "wrong-privacy"  # what is hidden is not told in plain
    assert refused(world, asked, client=1, invitation=invitation((0, 1))).status == "not-hidden"
    assert "too small to hide in" in caplog.text
    assert refused(world, asked, client=1, invitation=invitation((0, 1, 2, 9))).status == "not-hidden"
    assert refused(world, asked, client=1, invitation=invitation((0, 1, 1, 2))).status == "not-hidden"
    assert refused(world, asked, client=1, invitation=invitation(threshold=2)).status == "not-hidden"
    change_terms(world.nodes[2], identity=None)
    assert refused(world, asked, client=2).status == "wrong-member"
    change_terms(world.nodes[3], policy=Policy(accept=("plain",)))
    assert refused(world, asked, client=3).status == "wrong-privacy"
    change_terms(world.nodes[0], identity=IDENTITIES[1])
    assert refused(world, asked, client=0).status == "wrong-member"


def change_terms(node, **changes):
    node.terms = node.terms._replace(**changes)


def test_a_plain_run_is_refused_by_who_wants_to_be_hidden(tmp_path):
    world = World(tmp_path)
    for node in world.nodes.values():
        change_terms(node, policy=Policy(accept=("secagg",)))
    with pytest.raises(TooFewError, match="wrong-privacy"):
        run(world, settings=KINDS["curvature"])


def test_stages_out_of_turn(tmp_path, caplog):
    """Unknown sessions, stages asked for twice in two ways, and what is no stage at all."""
    world = World(tmp_path)
    wire = Between(world)
    run(wire, 1)
    by_stage = {stage: (client, asked, reply) for stage, client, asked, reply in wire.seen}
    client, asked, reply = by_stage["reveal"]
    assert world.nodes[client].answer_bytes(asked) == reply  # the same question: the same bytes
    arrays, words = read(asked)
    for changes, status in (
        ({"token": "another"}, "no-session"),
        ({"client": 1 - client % 2}, "no-session"),
        ({"stage": "undress"}, "not-hidden"),
    ):
        answer = read_stage(world.ask(client, to_bytes(arrays, words | changes)))
        assert (answer.status, answer.arrays) == (status, {})
    fewer = {name: array[1:] for name, array in arrays.items()}
    answer = read_stage(world.ask(client, to_bytes(fewer, words)))
    assert answer.status == "not-hidden"
    assert "asked for twice, differently" in caplog.text
    world.revive(client)
    assert read_stage(world.nodes[client].answer_bytes(asked)).status == "no-session"


def test_a_member_whose_answers_are_wrong_is_left_out(tmp_path):
    """Forged adverts, words of a wrong length, garbage: by one of four."""
    for stage, garble in (
        ("round", lambda reply: with_arrays(reply, signatures=np.zeros((1, 64), np.uint8))),
        ("round", lambda reply: with_arrays(reply, new=np.ones(1, np.uint8))),
        ("share", lambda reply: with_arrays(reply, members=np.array([0, 1, 1]))),
        ("mask", lambda reply: with_arrays(reply, words=np.zeros(3, np.uint64))),
        ("mask", lambda reply: b"nonsense"),
        ("confirm", lambda reply: with_arrays(reply, signature=np.zeros((1, 64), np.uint8))),
        ("reveal", lambda reply: with_arrays(reply, survivors=np.array([0, 1, 2, 2]))),
    ):
        turns = []

        def change(now, client, reply, stage=stage, garble=garble, turns=turns):
            turns.append(now)
            later = turns.count("confirm") >= 3 * NODES or stage in ("round", "share", "mask")
            return garble(reply) if client == 2 and now == stage and turns.count("round") > NODES and later else reply

        world = World(tmp_path / f"{stage}-{id(garble)}")
        engine, history = run(Between(world, change), 2, quorum=3)
        assert all(np.isfinite(round.V).all() for round in history)
        assert any(one.client == 2 and one.why.startswith(stage.replace("round", "advertise")) for one in engine.absent)


def with_arrays(reply, **changes):
    arrays, words = from_bytes(reply)
    return to_bytes(arrays | changes, words)


def test_no_secret_is_written_or_said(tmp_path, caplog):
    """Not in a node's state, not in the server's checkpoint, not in any message, not in the log."""
    caplog.set_level(logging.DEBUG)
    world, secrets = World(tmp_path), [key.private_bytes_raw() for key in KEYS]
    wire = Between(world)
    world_exchange = world.exchange
    world.exchange = lambda *given: Between.exchange(wire, *given)
    wire.world = type("Inner", (), {"exchange": staticmethod(world_exchange)})()
    world.quorum = NODES
    world.finish(HIDDEN, 2)
    for node in world.nodes.values():
        member = node._member._member
        secrets += [member._b, member._mask_private, member._seal_private]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [content for _, _, asked, reply in wire.seen for content in (asked, reply)]
    assert len(written) > NODES
    assert len(said) > 50
    for secret in secrets:
        assert not any(secret in content for content in (*written, *said))
        assert secret.hex() not in caplog.text
        assert repr(secret) not in repr([vars(node) for node in world.nodes.values()])


def test_a_share_that_was_changed_is_noticed(tmp_path, caplog):
    """One flipped bit in what a member reveals: the sum is not taken, and the round is tried again."""

    def change(stage, client, reply):
        if stage != "reveal" or client != 2:
            return reply
        arrays, words = from_bytes(reply)
        arrays["survivors_contents"] = arrays["survivors_contents"].copy()
        arrays["survivors_contents"][0, -1] ^= 1
        return to_bytes(arrays, words)

    with pytest.raises(TooFewError, match="do not give its secret"):
        run(Between(World(tmp_path), change))


def test_one_that_says_it_diverged_is_left_out(tmp_path):
    def change(stage, client, reply):
        if client == 2 and stage == "round" and len(turns) >= 2 * NODES:
            return to_bytes(*encode_reply(Reply(RUN, 2, 2, "round", "diverged")))
        turns.extend([stage] if stage == "round" else [])
        return reply

    turns = []
    _, history = run(Between(World(tmp_path), change), 3, quorum=3)
    assert history[-1].participants == (0, 1, 3)


def test_a_node_without_a_session_says_so(tmp_path):
    world = World(tmp_path)
    words = {"token": "t", "client": 0, "stage": "mask", "status": "ok"}
    assert read_stage(world.ask(0, to_bytes({}, words))).status == "no-session"
