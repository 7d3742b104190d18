"""Mutated messages against a node, in process: nothing but answers with a status, in bounded time and memory."""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import DataError
from fedmc.federation.node.secagg_store import SecAggStore
from fedmc.federation.secagg_messages import decode_stage
from fedmc.federation.statuses import OK, STATUS
from fedmc.federation.wire import decode_reply, from_bytes, to_bytes
from fedmc.training.rounds import rounds
from tests.mutations import hammer, mutants
from tests.world import KINDS, NODES, Between, World, engine_on, read, sealed, unsealed

FAST, ALL = 5_000, 100_000
SEED = 16


class Watched(World):
    """Remembers what node 0 knew of secure aggregation before each message to it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.known = {}

    def exchange(self, contents, max_bytes, needed):
        if 0 in contents:
            self.known[place_of(unsealed(contents[0]))] = row_of(self.stores[0], read(contents[0])[1]["run"])
        return super().exchange(contents, max_bytes, needed)


def place_of(content):
    """Which part of which run a message belongs to; None if it does not say."""
    with suppress(DataError):
        arrays, header = from_bytes(content)
        if header.get("stage") == "open" and "session" in arrays:
            return str(header.get("run")), arrays["session"].tobytes()
        return str(header.get("run")), str(header.get("task")), str(header.get("round"))
    return None


def row_of(store, run):
    SecAggStore(store)
    return store._database.execute("SELECT state, reply FROM secagg WHERE run = ?", (run,)).fetchone()


class Corpus(NamedTuple):
    messages: list[bytes]  # what an honest server signs for node 0: every task, both exchanges, every kind of run
    known: dict  # what node 0 knew of secure aggregation before each


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    found = Corpus([], {})
    for kind, settings in KINDS.items():
        wire, states = Between(Watched(tmp_path_factory.mktemp("honest"))), []
        engine = engine_on(wire, run=f"run-{kind}".replace("+", "-"))
        list(itertools.islice(rounds(engine, settings, on_checkpoint=states.append, last=2), 3))
        engine.finish(states[-1].broadcast, range(NODES))
        found.messages.extend(unsealed(asked) for _, client, asked, _ in wire.seen if client == 0)
        found.known.update(wire.world.known)
        wire.world.close()
    return found


class Target:
    """A node that stays the same whatever its server signs; messages find the session that they belong to."""

    def __init__(self, folder, known):
        self.world, self.known = World(folder), known
        self.node = self.world.nodes[0]
        self.database = self.node.store._database
        self.database.execute("PRAGMA synchronous=OFF")
        SecAggStore(self.node.store)

    def send(self, signed):
        place = place_of(unsealed(signed))
        if self.known.get(place) is not None:
            self.database.execute("INSERT OR REPLACE INTO secagg VALUES (?, ?, ?)", (place[0], *self.known[place]))
            self.database.execute("DELETE FROM whole_sums")
        return self.node.answer_bytes(signed)


def outcome(answer):
    """The status of an answer, or what it is in secure aggregation; raises for anything that is none."""
    arrays, header = from_bytes(answer)
    found = (decode_stage if "stage" in header else decode_reply)(arrays, header)
    assert found.status in STATUS
    return found.stage if "stage" in header and found.status == OK else found.status


def in_run(name, content):
    arrays, header = from_bytes(content)
    return sealed(0, to_bytes(arrays, header | {"run": name}))


def bombard(folder, corpus, number, seed):
    logging.getLogger("fedmc").setLevel(logging.CRITICAL)
    try:
        target = Target(folder, corpus.known)
        honest = next(one for one in corpus.messages if from_bytes(one)[1].get("task") == "start")
        assert outcome(target.node.answer_bytes(in_run("before", honest))) == OK
        found = hammer(target.send, mutants(corpus.messages, seed, number), outcome, wrap=partial(sealed, 0))
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
    assert found["not-hidden"] > FAST / 100  # both exchanges get through to a session
    assert min(found[one] for one in (OK, "keys", "masked", "opened")) > 0  # and some mutations are harmless
    assert time.process_time() - began < 120


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_mutated_messages_get_a_status(tmp_path, corpus):
    assert bombard(tmp_path, corpus, ALL, SEED + 1).total() == ALL
