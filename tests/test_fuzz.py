"""Mutated messages against a node, in process: nothing but answers with a status, in bounded time and memory."""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import suppress
from functools import partial

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import DataError
from fedmc.federation.secagg_messages import decode_stage
from fedmc.federation.statuses import OK, STATUS
from fedmc.federation.wire import decode_reply, from_bytes, to_bytes
from fedmc.training.rounds import rounds
from tests.mutations import hammer, mutants
from tests.world import KINDS, NODES, Between, World, engine_on, sealed, unsealed

FAST, ALL = 5_000, 100_000
SEED = 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """What an honest server signs for node 0: every task, every stage, every kind of run."""
    found = []
    for kind, settings in KINDS.items():
        wire, states = Between(World(tmp_path_factory.mktemp("honest"))), []
        engine = engine_on(wire, run=f"run-{kind}".replace("+", "-"))
        list(itertools.islice(rounds(engine, settings, on_checkpoint=states.append), 3))
        engine.finish(states[-1].broadcast, range(NODES))
        found += [unsealed(asked) for _, client, asked, _ in wire.seen if client == 0]
        wire.world.close()
    return found


class Target:
    """A node that stays the same whatever its server signs; stages find the session that they belong to."""

    def __init__(self, folder, corpus):
        self.world = World(folder)
        self.node = self.world.nodes[0]
        self.node.store._database.execute("PRAGMA synchronous=OFF")
        self.invitations = {}
        for content in corpus:
            header = from_bytes(content)[1]
            if header.get("invitation") and header["round"] <= 1:
                self.invitations[header["invitation"][0]] = content

    def send(self, signed):
        token = None
        with suppress(DataError):
            token = from_bytes(unsealed(signed))[1].get("token")
        if isinstance(token, str) and token in self.invitations:
            self.node._member = None
            self.node.answer_bytes(sealed(0, self.invitations[token]))
        return self.node.answer_bytes(signed)


def outcome(answer):
    """The status of an answer; raises for anything that is none."""
    arrays, header = from_bytes(answer)
    status = (decode_stage if "stage" in header else decode_reply)(arrays, header).status
    assert status in STATUS
    return status


def in_run(name, content):
    arrays, header = from_bytes(content)
    return sealed(0, to_bytes(arrays, header | {"run": name}))


def bombard(folder, corpus, number, seed):
    logging.getLogger("fedmc").setLevel(logging.CRITICAL)
    try:
        target = Target(folder, corpus)
        honest = next(one for one in corpus if from_bytes(one)[1].get("task") == "start")
        assert outcome(target.node.answer_bytes(in_run("before", honest))) == OK
        found = hammer(target.send, mutants(corpus, seed, number), outcome, wrap=partial(sealed, 0))
        tomorrow = time.time() + 86_400  # today, the policy may allow no further run
        target.node.terms = target.node.terms._replace(now=lambda: tomorrow)
        assert outcome(target.node.answer_bytes(in_run("after", honest))) == OK
        target.world.close()
    finally:
        logging.getLogger("fedmc").setLevel(logging.NOTSET)
    return found


def test_mutated_messages_get_a_status(tmp_path, corpus):
    began = time.process_time()
    found = bombard(tmp_path, corpus, FAST, SEED)
    assert found.total() == FAST
    assert found["malformed"] > FAST / 3  # most are not read
    assert found["wrong-settings"] > FAST / 100
    assert found["not-hidden"] > FAST / 100  # stages get through to a session
    assert found[OK] > 0  # and some mutations are harmless, so that the others were seen
    assert time.process_time() - began < 120


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_mutated_messages_get_a_status(tmp_path, corpus):
    assert bombard(tmp_path, corpus, ALL, SEED + 1).total() == ALL
