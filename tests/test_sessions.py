"""Secure aggregation between server and nodes, in process: what travels, who is refused, and what is never told."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.messages import length
from fedmc.algorithms.schema import schema_of
from fedmc.errors import Diverged, TooFewError
from fedmc.federation.node.memberships import Memberships
from fedmc.federation.secagg_messages import Stage, encode_stage, keys_of, masked_of, open_arrays, read_stage
from fedmc.federation.setup.policy import Policy
from fedmc.federation.wire import Invitation, Reply, decode, encode, encode_reply, from_bytes, to_bytes
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.session import EXTRA
from fedmc.training.sums import FixedPointSum
from tests.secure_world import SecureWorld
from tests.world import (
    IDENTITIES,
    ITEMS,
    KINDS,
    RUN,
    World,
    broadcast_of,
    engine_on,
    invitation,
    read,
    refused,
    run,
)  # fmt: skip


def answers_of(world, kind):
    """The answers of this kind: (client, what was asked, the stage)."""
    found = [(client, asked, from_bytes(reply)) for _, client, asked, reply in world.seen]
    return [
        (client, asked, Stage(words["run"], client, words["stage"], arrays))
        for client, asked, (arrays, words) in found
        if words.get("stage") == kind
    ]


def test_what_travels_in_each_message(tmp_path):
    """The whole list: arrays with their types, and words that say who, which and what."""
    world = SecureWorld(tmp_path, 4)
    world.train(2)
    kinds = {
        "keys": {"keys": "uint8", "certified": "int64"},
        "masked": {"head": "uint8", "boxes": "uint8", "words": "uint64"},
        "opened": {"session": "uint8", "opened": "uint8"},
    }
    for _, _, asked, reply in world.seen:
        sent, header = read(asked)
        assert set(sent) == ({"session", "heads"} if header.get("stage") == "open" else {"V", "invitation"})
        arrays, words = from_bytes(reply)
        assert set(words) == {"run", "client", "stage", "status"}
        assert {name: array.dtype.name for name, array in arrays.items()} == kinds[words["stage"]]
    asked = [decode(*read(content)) for _, content, _ in answers_of(world, "masked")]
    sizes = [len(stage.arrays["words"]) for *_, stage in answers_of(world, "masked")]
    assert sizes == [length(schema_of(one.broadcast, ITEMS)) + EXTRA for one in asked]
    assert {one.broadcast.task for one in asked} == {"moments", "round", "measure"}


def test_a_round_is_two_exchanges(tmp_path):
    """With its measurement; at the start there is one more for keys, and at the end the last V is measured."""
    world = SecureWorld(tmp_path)
    history = world.train(3)
    keys, moments, updates, closing = ["moments"], ["moments", "open"], ["round", "open"], ["measure", "open"]
    assert world.exchanges == [{one} for one in keys + moments + 3 * updates + closing]
    assert all(round.diagnostics.train_rmse is not None for round in history)


def test_the_records_are_those_of_the_simulation(tmp_path):
    """V to the bit, and every measurement, although it comes a round later."""
    world = SecureWorld(tmp_path)
    for there, here in zip(world.train(4), world.simulated(4), strict=True):
        assert there.V.tobytes() == here.V.tobytes()
        assert there.diagnostics._replace(bound=None) == here.diagnostics._replace(bound=None)


def test_masked_words_are_not_the_words(tmp_path):
    """Each upload alone looks like noise, although most of what is in it is zero."""
    world = SecureWorld(tmp_path)
    world.train(1)
    masked = [stage.arrays["words"] for *_, stage in answers_of(world, "masked")]
    assert len({words.tobytes() for words in masked}) == len(masked)
    for words in masked:
        if len(words) > 100:
            high = np.unpackbits(words.view(np.uint8)).mean()
            assert 0.45 < high < 0.55
            assert not (words == 0).any()


# --- losses


def test_who_is_lost_in_exchange_1_is_left_out_and_waits_for_company(tmp_path):
    """One of six, where four are enough. It comes back with another base than all others: alone it would be seen."""
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: (stage, client, count) == ("round", 2, 2))
    history = world.train(4)
    rest = (0, 1, 3, 4, 5)
    assert [round.participants for round in history[1:]] == [(0, 1, 2, 3, 4, 5), rest, rest, rest]
    assert all(round.diagnostics.train_rmse is not None for round in history)


def test_who_accepts_to_be_seen_comes_back_alone(tmp_path):
    lose = lambda stage, client, count: (stage, client, count) == ("round", 2, 2)  # noqa: E731
    world = SecureWorld(tmp_path, alone=(2,), lose=lose)
    everybody, rest = tuple(range(6)), (0, 1, 3, 4, 5)
    assert [round.participants for round in world.train(4)[1:]] == [everybody, rest, everybody, everybody]


def test_whoever_comes_back_in_company_is_hidden(tmp_path):
    """Four of eight miss a round: together they are enough to hide among each other."""
    world = SecureWorld(tmp_path, 8, lose=lambda stage, client, count: (stage, count) == ("round", 2) and client < 4)
    everybody = tuple(range(8))
    assert [round.participants for round in world.train(3)[1:]] == [everybody, (4, 5, 6, 7), everybody]


def test_a_loss_in_exchange_2_costs_nothing(tmp_path):
    """Its sum is opened without it, and it learns from the certificate that it is counted."""
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: stage == "open" and client == 2)
    for there, here in zip(world.train(3), world.simulated(3), strict=True):
        assert there.V.tobytes() == here.V.tobytes()


def test_too_many_lost_unmask_nothing(tmp_path):
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: stage == "round" and count > 1 and client > 2)
    with pytest.raises(TooFewError, match=r"3 of 6 nodes take part, 4 must \(.*node 3: no answer \(masked\) in time"):
        world.train(2)
    opened = [stage for stage, *_ in world.seen if stage == "open"]
    assert len(opened) == 2 * 6  # of the moments and the first round


def test_a_first_contribution_takes_everybody(tmp_path):
    """Sums of whole contributions over all and over all but one could be subtracted."""
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: stage == "round" and client == 2)
    with pytest.raises(TooFewError, match="5 of 6 nodes take part, 6 must"):
        world.train(1)


def test_a_session_that_may_be_open_is_not_replaced(tmp_path):
    """Two are lost in exchange 2, one of them for good: the run waits for the other, and goes on to the same bits."""
    lost, states = {2, 3}, []
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: stage == "open" and count > 2 and client in lost)
    engine = world.engine(durable=True)
    with pytest.raises(TooFewError, match="4 of 6 nodes take part, 5 must"):
        world.train(2, engine, states)
    lost.remove(3)
    resumed = world.engine(durable=True)
    assert resumed.asking.record.opening
    resumed.restore(engine.counted, {}, engine.measured)
    history = world.train(2, resumed, states)
    assert history[-1].V.tobytes() == world.simulated(2)[-1].V.tobytes()
    assert history[-1].diagnostics == world.simulated(2)[-1].diagnostics


# --- what a node refuses


def test_what_a_node_refuses(tmp_path, caplog):
    world = World(tmp_path)
    asked = broadcast_of(world)
    assert refused(world, asked, invitation=None).status == "wrong-privacy"  # what is hidden is not told in plain
    for cohort, why in (
        ((0, 1), "at least 3 are needed"),
        ((0, 1, 2), "at least 3 are needed"),  # one of the four may collude
        ((0, 2, 3), "not this one"),
    ):
        caplog.clear()
        name, keys = f"cohort-{len(cohort)}-{cohort[1]}", Invitation()
        answer = world.ask(1, to_bytes(*encode(engine_on(None, run=name).asking.request(1, asked, keys))))
        own = {1: keys_of(read_stage(answer).arrays)[0]}
        given = invitation(cohort, run=name, known=own)
        assert refused(world, asked, client=1, run=name, invitation=given).status == "not-hidden"
        assert why in caplog.text
    change_terms(world.nodes[2], memberships=Memberships(world.stores[2], None, None))
    assert refused(world, asked, client=2).status == "wrong-member"
    change_terms(world.nodes[3], policy=Policy(accept=("plain",)))
    assert refused(world, asked, client=3).status == "wrong-privacy"
    change_terms(world.nodes[0], memberships=Memberships(world.stores[0], IDENTITIES[1], None))
    assert refused(world, asked, client=0).status == "wrong-member"


def change_terms(node, **changes):
    node.terms = node.terms._replace(**changes)


def test_a_plain_run_is_refused_by_who_wants_to_be_hidden(tmp_path):
    world = World(tmp_path)
    for node in world.nodes.values():
        change_terms(node, policy=Policy(accept=("secagg",)))
    with pytest.raises(TooFewError, match="wrong-privacy"):
        run(world, settings=KINDS["curvature"])


def test_a_repeated_message_gets_the_same_bytes(tmp_path):
    """Also after a restart: in exchange 1 until the next sum begins, and in exchange 2."""
    world = SecureWorld(tmp_path)
    world.train(1)
    for kind in ("masked", "opened"):
        client, asked, _ = answers_of(world, kind)[-1]
        reply = next(reply for _, one, content, reply in reversed(world.seen) if (one, content) == (client, asked))
        world.revive(client)
        assert world.nodes[client].answer_bytes(asked) == reply


def test_messages_out_of_turn(tmp_path, caplog):
    """An earlier session, another's number, heads of another session, what is no stage at all."""
    world = SecureWorld(tmp_path)
    world.train(2)
    opened = answers_of(world, "opened")
    client, asked, _ = opened[-1]
    arrays, words = read(asked)
    for changes, status in (
        ({"run": "another"}, "not-hidden"),
        ({"client": (client + 1) % 6}, "no-session"),
        ({"stage": "undress"}, "no-session"),
    ):
        answer = read_stage(world.ask(client, to_bytes(arrays, words | changes)))
        assert (answer.status, answer.arrays) == (status, {})
    old = next(asked for one, asked, _ in opened if one == client)
    assert read_stage(world.nodes[client].answer_bytes(old)).status == "not-hidden"
    assert "another session than the last one" in caplog.text


def test_a_session_is_opened_only_with_a_head_of_every_member(tmp_path, caplog):
    world = SecureWorld(tmp_path, lose=lambda stage, client, count: stage == "open" and count == 2)
    with pytest.raises(TooFewError):
        world.train(1)
    world.lose = lambda stage, client, count: False
    kept = {client: stage for client, _, stage in answers_of(world, "masked")[-6:]}
    heads = {client: masked_of(stage.arrays, range(6)).head for client, stage in kept.items()}
    session = read([asked for stage, _, asked, _ in world.seen if stage == "open"][-1])[0]["session"].tobytes()
    fresh = SecureWorld(tmp_path / "fresh")
    for given in (list(heads.values())[:-1], [*list(heads.values())[:-1], heads[0]]):
        asked = encode_stage(Stage(RUN, 0, "open", open_arrays(session, given)))
        assert read_stage(world.ask(0, asked)).status == "ok"  # it has opened: the same answer, whatever comes
        assert read_stage(fresh.ask(0, asked)).status == "not-hidden"
    assert "another session" in caplog.text


def test_a_second_request_for_the_same_round_is_refused(tmp_path, caplog):
    """Round 1 was answered; nearly the same V, asked for as the next sum, would measure the same data again."""
    world = SecureWorld(tmp_path)
    engine = world.engine()
    history = world.train(1, engine)
    again = history[0].broadcast._replace(task="round", round=1, V=1.001 * history[0].V)
    with pytest.raises(TooFewError, match="not-hidden"):
        engine.ask(again, range(6))
    assert "was answered for another V" in caplog.text


# --- members that lie


@pytest.mark.parametrize(
    "garble",
    [
        lambda arrays: {"words": np.zeros(3, np.uint64)},
        lambda arrays: {"words": arrays["words"] + np.uint64(1)},
        lambda arrays: {"boxes": arrays["boxes"][::-1].copy()},
        lambda arrays: {"head": arrays["head"][:-1]},
        lambda arrays: {"head": np.frombuffer(b"[" * 5000, np.uint8)},
        None,
    ],
)
def test_a_member_whose_answers_are_wrong_is_left_out(garble, tmp_path):
    world = SecureWorld(tmp_path)

    def change(stage, client, reply):
        if client != 2 or stage != "round" or world.counts[stage, client] != 2:
            return reply
        arrays, words = from_bytes(reply)
        return b"nonsense" if garble is None else to_bytes(arrays | garble(arrays), words)

    world.change, engine = change, world.engine()
    history = world.train(2, engine)
    assert history[-1].participants == (0, 1, 3, 4, 5)
    assert [one.client for one in engine.absent] == [2]
    assert engine.absent[0].why.startswith("masked: ")


def test_a_dealer_of_wrong_shares_is_named_and_left_out(tmp_path, monkeypatch):
    """Its masked input cannot be unmasked: the others are asked again, and the sum has what they sent before."""
    lose = lambda stage, client, count: (stage, client) == ("round", 2) and count > 1  # noqa: E731
    expected = SecureWorld(tmp_path / "without", lose=lose).train(3)[-1].V.tobytes()
    world, share = SecureWorld(tmp_path / "with"), crypto.share

    def junk(secret, holders, threshold):
        wrong = list(holders) == [0, 1, 3, 4, 5] and world.counts.get(("round", 2)) == 2
        return dict.fromkeys(holders, bytes(32)) if wrong else share(secret, holders, threshold)

    monkeypatch.setattr("fedmc.privacy.secagg.member.crypto.share", junk)
    engine = world.engine()
    history = world.train(3, engine)
    assert engine.asking.record.misdealt == {2}
    assert [(one.client, one.why) for one in engine.absent] == [(2, "it dealt wrong shares, by its own signature")]
    rest = (0, 1, 3, 4, 5)
    assert [round.participants for round in history[1:]] == [tuple(range(6)), rest, rest]
    assert history[-1].V.tobytes() == expected


def test_one_that_says_it_diverged_is_left_out(tmp_path):
    world = SecureWorld(tmp_path)

    def change(stage, client, reply):
        if client == 2 and stage == "round" and world.counts[stage, client] == 2:
            return to_bytes(*encode_reply(Reply(RUN, 2, 2, "round", "diverged")))
        return reply

    world.change = change
    assert world.train(2)[-1].participants == (0, 1, 3, 4, 5)


def test_a_failure_travels_inside_the_sum(tmp_path, monkeypatch):
    """The server learns that somebody failed, not who; the node goes on with nothing but failures, for good."""
    world, work = SecureWorld(tmp_path), FixedPointSum.reply

    def broken(self, shard, state, broadcast):
        if shard.client == 2 and broadcast.task == "round":
            raise Diverged(1, "numbers", "cure")
        return work(self, shard, state, broadcast)

    with monkeypatch.context() as patched:
        patched.setattr(FixedPointSum, "reply", broken)
        with pytest.raises(Diverged, match="a node could not compute its part; the sum does not say which one"):
            world.train(2)
    sizes = {len(reply) for stage, _, _, reply in world.seen if stage == "round"}
    assert len(sizes) <= 2  # hexadecimal heads have one length; the container may differ by a byte
    assert world.stores[2].ended(RUN).status == "diverged"
    assert all(world.stores[k].ended(RUN) is None for k in range(6) if k != 2)


# --- secrets


def test_no_used_key_is_kept_and_no_secret_is_said(tmp_path, caplog, monkeypatch):
    """What was used for masks is nowhere on disk; private keys are in no message but the one that opens a sum."""
    caplog.set_level(logging.DEBUG)
    secrets, opened = [], []
    for name in ("new_secret", "new_pair"):
        make = getattr(crypto, name)
        monkeypatch.setattr(crypto, name, lambda make=make: kept(make(), secrets))
    world = SecureWorld(tmp_path)
    world.train(2)
    for key in world.keys:
        secrets.append(key.private_bytes_raw())
    states = [node._member(node.trust.identity).store.load(RUN) for node in world.nodes.values()]
    unused = {private for state in states for private in (state.keys.mask, state.keys.seal)}
    last = {state.replied.seal for state in states}
    seals = {bytes.fromhex(one) for one in said_seals(world)}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [content for _, _, asked, reply in world.seen for content in (asked, reply)]
    for secret in secrets:
        forms = secret, secret.hex().encode()
        if secret not in unused | last:
            assert not any(form in content for content in written for form in forms)
        if secret not in seals:
            assert not any(form in content for content in said for form in forms)
        else:
            opened.append(secret)
        assert secret.hex() not in caplog.text
        assert secret.hex() not in repr(states)
    assert len(opened) == 6 * 4  # of the moments, two rounds and the last measurement
    assert len(secrets) > 100


def kept(made, secrets):
    secrets.append(made if isinstance(made, bytes) else made[0])
    return made


def said_seals(world):
    return [bytes(stage.arrays["opened"]).decode().split('"')[1] for *_, stage in answers_of(world, "opened")]
