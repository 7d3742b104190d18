"""Requests are authentic: a node acts on what its server signed for it, once, and on nothing else."""

from __future__ import annotations

import io
import itertools
import json
import time

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedmc import __version__
from fedmc.algorithms.messages import TASKS
from fedmc.errors import DataError, InputError, TooFewError
from fedmc.federation import envelope
from fedmc.federation.envelope import EnvelopeError, open_, seal
from fedmc.federation.node import trust
from fedmc.federation.node.store import StoreError
from fedmc.federation.protocol import PROTOCOL, VERSION_OF_1, Served
from fedmc.federation.server import signing
from fedmc.federation.server.signing import Counter
from fedmc.federation.wire import HEADER, decode_reply, encode, from_bytes, to_bytes
from fedmc.privacy.dp.ledger import Ledger, LedgerError
from fedmc.training.rounds import rounds
from tests.conftest import examples
from tests.world import (
    HIDDEN,
    KEYS,
    KINDS,
    NODES,
    RUN,
    SERVER,
    Between,
    World,
    engine_on,
    invitation,
    local,
    name_of,
    read,
    sealed,
    unsealed,
)  # fmt: skip

EVERYBODY = KINDS["exact"].replace(active=NODES)


def status_of(answer):
    return from_bytes(answer)[1]["status"]


def written(world, client):
    """Everything that a node keeps on disk, but its list of the last refusals."""
    return [line for line in world.stores[client]._database.iterdump() if 'INTO "refusals"' not in line]


class Models:
    """Counts what nodes are told at the end of a run, instead of writing models."""

    def __init__(self, world):
        self.written = []
        self.watch(world)

    def watch(self, world):
        for client, node in world.nodes.items():
            node.on_finish = lambda request, U, state, client=client: self.written.append((request.run, client))


def forgeries(content, client, others):
    """(what an attacker has, what it makes of a message to this node)"""
    inner, name, now = unsealed(content), name_of(client), time.time_ns() + 10**9
    middle = len(inner) // 2
    yield "nothing", inner
    yield "an old node's patience", inner + bytes(envelope.SIZE)
    yield "a member's key", seal(inner, KEYS[(client + 1) % NODES], name, now)
    yield "the node's own key", seal(inner, KEYS[client], name, now)
    yield "the content", inner[:middle] + bytes([inner[middle] ^ 1]) + content[middle + 1 :]
    yield "the end", content[:-1] + bytes([content[-1] ^ 1])
    yield "its number", content[: len(inner) + 19] + b"\xff" + content[len(inner) + 20 :]
    yield "the addressee", content[: len(inner) + 20] + bytes(32) + content[-64:]
    yield "less", content[:-1]
    yield "more", content + b"\0"
    yield "an envelope", content[len(inner) :]
    for other in others:
        yield "another's message", other
        swapped = unsealed(other) + content[len(inner) :]
        yield "another's content under its envelope", swapped


class Attacked:
    """Before each message reaches its node, the node gets every forgery of it."""

    def __init__(self, world):
        self.world, self.kinds, self.count = world, set(), 0

    def exchange(self, contents, max_bytes, needed):
        for client, content in contents.items():
            node = self.world.nodes[client]
            others = [other for key, other in contents.items() if key != client][:1]
            before, memory = written(self.world, client), dict(vars(node))
            for what, forged in forgeries(content, client, others):
                if forged == content:
                    continue
                answer = node.answer_bytes(forged)
                assert decode_reply(*from_bytes(answer))[:5] == ("", -1, -1, "", "not-signed"), what
                self.count += 1
            assert written(self.world, client) == before
            assert vars(node) == memory
            header = read(content)[1]
            self.kinds.add(header.get("stage") or header["task"])
        return self.world.exchange(contents, max_bytes, needed)


@pytest.mark.parametrize("settings", [EVERYBODY, HIDDEN, KINDS["paper"]], ids=["exact", "secagg", "paper"])
def test_forged_messages_of_every_kind_do_nothing(settings, tmp_path, caplog):
    """Neither answered nor stored: the run ends with the simulation's bits, and each node is told of its end once."""
    world = World(tmp_path)
    models, wire = Models(world), Attacked(world)
    engine, last = engine_on(wire), []
    list(itertools.islice(rounds(engine, settings, on_checkpoint=last.append), 3))
    assert engine.finish(last[-1].broadcast, range(NODES)) == tuple(range(NODES))
    assert models.written == [(RUN, client) for client in range(NODES)]
    assert last[-1].broadcast.V.tobytes() == local(settings, 2)[1].broadcast.V.tobytes()
    assert {"round", "measure", "finish"} <= wire.kinds
    assert ("open" in wire.kinds) == (settings is HIDDEN)
    assert wire.kinds <= {*TASKS, "open"}
    assert caplog.text.count("refused a message (not-signed)") == wire.count > 100
    world.close()


def test_a_node_that_knows_no_server_does_nothing(tmp_path):
    world = World(tmp_path)
    content = finish_of(world)
    world.nodes[0].trust = trust.NOBODY
    assert status_of(world.nodes[0].answer_bytes(content)) == "not-signed"


def test_an_envelope_says_what_is_wrong():
    key, public = SERVER, SERVER.public_key()
    content = seal(b"content", key, "north", 7, Served(1, 2))
    opened = open_(content, public, "north")
    assert (opened.content, opened.issued, opened.served) == (b"content", 7, (1, 2))
    for wrong, name, said in (
        (b"content", "north", "not signed: its sender runs fedmc 0.2 or older"),
        (content, "south", "addressed to another organisation than south"),
        (b"kontent" + content[7:], "north", "not by the key in server.pub"),
    ):
        with pytest.raises(EnvelopeError, match=said):
            open_(wrong, public, name)
    with pytest.raises(EnvelopeError, match="not by the key"):
        open_(content, Ed25519PrivateKey.generate().public_key(), "north")
    with pytest.raises(InputError, match="issued must be from 0"):
        seal(b"", key, "north", 2**63)


@examples(200)
@given(st.binary(max_size=300), st.text(max_size=20), st.integers(0, 2**63 - 1), st.data())
def test_whatever_is_changed_is_noticed(content, name, issued, data):
    """A byte of content, header or signature, the length, the addressee."""
    whole = seal(content, SERVER, name, issued)
    assert open_(whole, SERVER.public_key(), name)[:2] == (content, issued)
    place, other = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    changed = whole[:place] + bytes([whole[place] ^ other]) + whole[place + 1 :]
    for forged in (changed, whole[:place], whole[:place] + whole[place + 1 :], whole + content, content):
        if forged != whole:
            with pytest.raises(EnvelopeError):
                open_(forged, SERVER.public_key(), name)
    with pytest.raises(EnvelopeError):
        open_(whole, SERVER.public_key(), name + "x")


# --- old messages that come again


def train(world, settings=EVERYBODY, run=RUN, number=2):
    """A run to its end; every message that went to the nodes, in order, and its answer."""
    wire, last = Between(world), []
    engine = engine_on(wire, run=run)
    list(itertools.islice(rounds(engine, settings, on_checkpoint=last.append), number + 1))
    engine.finish(last[-1].broadcast, range(NODES))
    return engine, last[-1].broadcast, wire.seen


def finish_of(world, client=0, run=RUN):
    engine, broadcast, _ = train(world, run=run)
    return sealed(client, engine.asking.encoded(client, broadcast._replace(task="finish")))


@pytest.mark.parametrize("settings", [EVERYBODY, HIDDEN], ids=["exact", "secagg"])
def test_a_message_that_comes_again_changes_nothing(settings, tmp_path):
    """Every message of a finished run, also after a restart: only the very last are answered, to the same bytes."""
    world = World(tmp_path)
    models = Models(world)
    _, _, messages = train(world, settings)
    before = {client: written(world, client) for client in range(NODES)}
    for _ in range(2):
        said = {}
        for stage, client, asked, reply in messages:
            answer = world.nodes[client].answer_bytes(asked)
            assert stage == "finish" or status_of(answer) != "ok" or answer == reply
            said.setdefault(stage, []).append(status_of(answer))
        opened = said.pop("open", [])
        assert opened == (["not-hidden"] * (len(opened) - NODES) + ["ok"] * NODES if opened else [])
        assert bool(opened) == (settings is HIDDEN)
        for stage, found in said.items():
            assert set(found) == ({"ok"} if stage == "finish" else {"replayed"}), stage
        assert {client: written(world, client) for client in range(NODES)} == before
        for client in range(NODES):
            world.revive(client)
        models.watch(world)
    assert models.written == [(RUN, client) for client in range(NODES)]


def test_the_end_of_an_older_run_does_not_bring_its_model_back(tmp_path):
    world = World(tmp_path)
    models = Models(world)
    kept = finish_of(world, run="first")  # signed, and kept back by whoever carries it
    _, _, messages = train(world, run="second")
    models.written.clear()
    replayed = next(asked for stage, client, asked, _ in messages if (stage, client) == ("finish", 0))
    for _ in range(2):
        assert status_of(world.nodes[0].answer_bytes(kept)) == "replayed"
        assert status_of(world.nodes[0].answer_bytes(replayed)) == "ok"  # the newest one: nothing is written again
        world.revive(0)
        models.watch(world)
    assert models.written == []


def test_a_run_writes_its_model_once_and_resuming_it_says_so(tmp_path):
    world = World(tmp_path)
    models = Models(world)
    engine, broadcast, _ = train(world)
    models.written.clear()
    assert engine.finish(broadcast, range(NODES)) == tuple(range(NODES))  # as `resume` does: signed anew
    assert models.written == []
    other = broadcast._replace(V=broadcast.V + 1)
    assert engine.finish(other, range(NODES)) == ()
    assert {one.why.partition(":")[0] for one in engine.absent} == {"wrong-round"}
    assert models.written == []


def test_a_model_that_could_not_be_written_is_asked_for_again(tmp_path):
    world = World(tmp_path)

    def full(request, U, state):
        raise OSError("no space left on device")

    world.nodes[1].on_finish = full
    engine, broadcast, _ = train(world)
    assert engine.absent[-1].client == 1
    models = Models(world)
    assert engine.finish(broadcast, range(NODES)) == tuple(range(NODES))
    assert models.written == [(RUN, 1)]


def test_a_number_is_used_once(tmp_path):
    world = World(tmp_path)
    _, _, messages = train(world)
    asked = next(asked for stage, client, asked, _ in messages if (stage, client) == ("measure", 0))
    arrays, header = read(asked)
    now = time.time_ns()
    first, other = (
        seal(to_bytes(arrays, header | {"counted": 2, "factor": factor}), SERVER, name_of(0), now)
        for factor in ("0x1p0", "0x1p-1")
    )
    answer = world.nodes[0].answer_bytes(first)
    assert status_of(answer) == "ok"
    assert world.nodes[0].answer_bytes(first) == answer
    assert status_of(world.nodes[0].answer_bytes(other)) == "replayed"


def test_numbers_grow_over_restarts_and_clocks_that_are_set_back(tmp_path, monkeypatch):
    path = tmp_path / "issued"
    times = iter([1000, 1000, 400, 10**15, 7, 8])
    monkeypatch.setattr(signing.time, "time_ns", lambda: next(times))
    counter = Counter(path)
    issued = [counter.next() for _ in range(4)]
    again = Counter(path)
    issued += [again.next(), again.next()]
    assert issued == sorted(set(issued))
    assert issued[:4] == [1000, 1001, 1002, 10**15]
    path.write_text("much")
    with pytest.raises(DataError, match="is damaged"):
        Counter(path)


def test_few_messages_cost_a_write(tmp_path, monkeypatch):
    writes = []
    monkeypatch.setattr(signing, "write_whole", lambda path, content: writes.append(content))
    counter = Counter(tmp_path / "issued")
    for _ in range(1000):
        counter.next()
    assert len(writes) <= 2


# --- whatever the server itself signs, its nodes go on


def odd_messages(settings):
    """Messages that no server of ours would sign."""
    asked = invitation() if settings is HIDDEN else None
    arrays, header = encode(engine_on(None).asking.request(0, first_round(settings), asked))
    yield b""
    yield b"PK"
    yield to_bytes({}, {})
    yield to_bytes({}, [])
    yield to_bytes({}, {"stage": []})
    yield to_bytes({}, {"run": "r", "client": float("inf"), "stage": "open", "status": "ok"})
    yield to_bytes({}, {"run": {}, "client": 1e300, "stage": "open", "status": None})
    yield to_bytes({}, {"run": "r", "client": 0, "stage": "open", "status": "ok"})
    for name in header:
        yield to_bytes(arrays, {key: value for key, value in header.items() if key != name})
        for value in (None, [], {}, "", "\ud800", -1, 10**30, float("nan"), float("inf"), [[]], True):
            yield to_bytes(arrays, header | {name: value})
    for name in ("V", "shared/beta_items", "shared/", "invitation"):
        for array in (np.zeros(0), np.zeros((15, 3), "S3"), np.zeros((15, 3), complex), np.array(np.nan)):
            yield npz(arrays | {name: array}, json.dumps(header).encode())
    for text in (b"[" * 100_000 + b"]" * 100_000, b"\xff", b"", json.dumps(header).encode()[:-1]):
        yield npz(arrays, text)


def npz(arrays, text):
    file = io.BytesIO()
    np.savez(file, **{HEADER: np.frombuffer(text, np.uint8)}, **arrays)
    return file.getvalue()


def first_round(settings=EVERYBODY):
    return local(settings, 1)[1].broadcast._replace(task="round", round=1)


@pytest.mark.parametrize("settings", [EVERYBODY, HIDDEN], ids=["exact", "secagg"])
def test_no_signed_message_ends_a_node(settings, tmp_path):
    world = World(tmp_path)
    count = 0
    for content in odd_messages(settings):
        answer = world.ask(0, content)
        assert isinstance(status_of(answer), str)
        count += 1
    assert count > 150
    world.revive(0)
    check_still_works(world, settings)


def check_still_works(world, settings):
    engine = engine_on(Between(world), run="the-next")
    last = list(itertools.islice(rounds(engine, settings), 3))[-1]
    assert last.V.tobytes() == local(settings, 2)[1].broadcast.V.tobytes()


@pytest.mark.parametrize("counted", [-7, 0, 3, 4, 9, 10**30])
def test_a_count_that_does_not_fit_is_refused_and_changes_nothing(counted, tmp_path):
    """The server counted a round that is neither committed nor pending here: 1 is committed, 2 is pending."""
    world = World(tmp_path)
    broadcast = first_round()
    asking = engine_on(None).asking
    ask = asking.request(0, broadcast)
    assert status_of(world.nodes[0].answer(ask)) == "ok"
    second = ask._replace(counted=1, broadcast=broadcast._replace(round=2))
    assert status_of(world.nodes[0].answer(second)) == "ok"
    before = written(world, 0)
    for task in ("round", "measure", "finish"):
        odd = ask._replace(counted=counted, broadcast=broadcast._replace(task=task, round=3))
        assert status_of(world.nodes[0].answer(odd)) in ("lost-state", "wrong-round")
    assert written(world, 0) == before
    assert status_of(world.nodes[0].answer(ask._replace(counted=2, broadcast=broadcast._replace(round=3)))) == "ok"


def test_only_the_nodes_own_disk_ends_it(tmp_path, monkeypatch):
    world = World(tmp_path)
    request = engine_on(None).asking.request(0, first_round())

    def broken(*anything):
        raise DataError("anything but the store")

    def full(*anything):
        raise LedgerError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedmc.federation.node.node.aggregation_of", broken)
        assert status_of(world.ask(0, to_bytes(*encode(request)))) == "failed"
    with monkeypatch.context() as patched:
        patched.setattr("fedmc.federation.node.node.check", lambda *given: 1 / 0)
        assert status_of(world.ask(0, to_bytes(*encode(request)))) == "failed"
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "release", full)
        private = engine_on(None).asking.request(0, local(KINDS["dp"], 1)[1].broadcast._replace(round=1, task="round"))
        with pytest.raises(StoreError, match="no space left on device"):
            world.ask(0, to_bytes(*encode(private._replace(run="private"))))
    world.stores[0]._database.close()
    with pytest.raises(StoreError):
        world.ask(0, to_bytes(*encode(request)))


# --- protocol versions


def test_a_server_whose_protocols_are_too_new_is_refused_with_both_numbers(tmp_path, caplog):
    with pytest.raises(TooFewError, match="node 0: wrong-version: the server speaks protocols 3 to 4, the node pro"):
        next(rounds(engine_on(World(tmp_path), served=Served(3, 4)), EVERYBODY))
    said = f"speaks protocols 3 to 4, the node protocol {PROTOCOL}: install a newer fedmc at the node"
    assert f"refused a message (wrong-version): the server {said}" in caplog.text


@pytest.mark.parametrize("settings", [EVERYBODY, HIDDEN], ids=["exact", "secagg"])
def test_a_node_whose_protocol_is_too_new_is_refused_with_both_numbers(settings, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(trust, "PROTOCOL", 3)
    monkeypatch.setattr("fedmc.federation.wire.Reply.__new__.__defaults__", (None, 3))
    said = "the server speaks protocols 1 to 2, the node protocol 3: install a newer fedmc at the server"
    with pytest.raises(TooFewError, match=f"node 0: .*wrong-version: {said}"):
        next(rounds(engine_on(World(tmp_path), served=Served(1, 2)), settings))
    assert f"refused a message (wrong-version): {said}" in caplog.text


def test_a_server_of_the_next_protocol_serves_this_one(tmp_path):
    next(rounds(engine_on(World(tmp_path), served=Served(PROTOCOL, PROTOCOL + 1)), EVERYBODY))


def test_what_a_node_of_protocol_1_needs(tmp_path):
    """It opens a message as an .npz and demands its own version in it; a server may also leave such nodes out.

    Secure sums are asked of nodes of protocol 2 only.
    """
    for served, version, settings in (
        (Served(1, 2), VERSION_OF_1, KINDS["curvature"].replace(active=NODES)),
        (Served(2, 2), __version__, HIDDEN),
    ):
        wire = Between(World(tmp_path / version))
        list(itertools.islice(rounds(engine_on(wire, served=served), settings), 2))
        assert {stage for stage, *_ in wire.seen} >= {"moments", "round", "measure"}
        for stage, _, asked, _ in wire.seen:
            with np.load(
                io.BytesIO(asked)
            ) as file:  # as that version reads it: what follows the list of entries is no error
                header = json.loads(file[HEADER].tobytes())
                arrays = {name for name in file if name != HEADER}
            if stage == "open":
                assert header["stage"] == stage
            else:
                assert header["version"] == version
                assert header["invitation"] is (True if settings is HIDDEN else None)
                assert arrays == ({"V", "invitation"} if settings is HIDDEN else {"V"})
            assert "protocol" not in header


def test_a_reply_of_protocol_1_is_read(tmp_path):
    world = World(tmp_path)
    answer = world.ask(0, to_bytes(*encode(engine_on(None).asking.request(0, first_round()))))
    arrays, header = from_bytes(answer)
    assert header.pop("protocol") == PROTOCOL
    assert decode_reply(arrays, header).protocol == 1
    assert decode_reply(*from_bytes(answer)).protocol == PROTOCOL
