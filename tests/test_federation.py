"""The protocol of a real federation, in process: every contribution counts once, whatever dies and whenever."""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import sqlite3
import stat

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")


from fedmc.algorithms.messages import Rows, Sums
from fedmc.algorithms.schema import max_bytes
from fedmc.errors import DataError, Diverged, InputError, TooFewError
from fedmc.federation import wire
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import NOTHING, BusyError, Ended, Store
from fedmc.federation.secagg_messages import Stage, encode_stage
from fedmc.federation.server import checkpoint
from fedmc.federation.server.direct import Replies
from fedmc.federation.statuses import OK
from fedmc.federation.wire import Reply, decode, decode_reply, encode, encode_reply, from_bytes, to_bytes
from fedmc.problem.penalties import l2
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.sums import PlainSum
from tests.world import (
    CATALOGUE,
    ITEMS,
    KINDS,
    NODES,
    ROUNDS,
    RUN,
    RecordedWorld,
    RelentlessWorld,
    World,
    engine_on,
    local,
    request_of,
    sealed,
)

ALGORITHM = KINDS["curvature"].make_algorithm()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dp" not in kind])  # whose noise nobody draws twice
def test_the_same_bits_as_the_simulation(kind, tmp_path):
    _, expected = local(KINDS[kind])
    world = World(tmp_path)
    check_same(world.finish(KINDS[kind]), expected)


KILLED = ["paper", "exact", "curvature", "bayes", "secagg", "clipped"]


def check_same(found, expected, where=""):
    assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes(), where
    assert found.server.S.tobytes() == expected.server.S.tobytes(), where
    assert found.server.seen == expected.server.seen, where


def check_kills(kind, folder, measure_every=1, from_the_start=False):
    """Kill at every boundary between the messages of a run, one after the other: all end with the same bits."""
    settings = KINDS[kind]
    # With secure aggregation who is lost in a session is left out of its sum, unless everybody must be in it.
    quorum, number = (NODES, 2) if kind == "secagg" else (1, ROUNDS)
    _, expected = local(settings, number)
    calm = RecordedWorld(folder, quorum, measure_every)
    calm.finish(settings, number)
    assert calm.boundaries > 50
    assert {place.split()[0] for place in calm.places} == {"node", "the"}
    for kill_at in range(calm.boundaries):
        # Under secure aggregation a round ends when the next one is under way, so that no snapshot lies between two.
        world = calm.killed_at(kill_at, folder / "killed", from_the_start or kind == "secagg")
        check_same(world.finish(settings, number), expected, world.killed)
        assert world.killed == calm.places[kill_at]
        world.close()
        shutil.rmtree(world.folder)


@pytest.mark.parametrize("kind", [*KILLED, "secagg-exact", "secagg-bayes"])
def test_killed_everywhere_in_one_run_every_contribution_counts_once(kind, tmp_path):
    world = RelentlessWorld(tmp_path)
    check_same(world.finish(KINDS[kind]), local(KINDS[kind])[1])
    assert len(world.struck) > 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KILLED)
def test_killed_anywhere_every_contribution_counts_once(kind, tmp_path):
    check_kills(kind, tmp_path, measure_every=2 if kind == "secagg" else 1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KILLED)
def test_killed_anywhere_with_processes_as_old_as_the_run(kind, tmp_path):
    """The same from round 0, without snapshots: nothing that a node or the server holds in memory is new."""
    check_kills(kind, tmp_path, from_the_start=True)


def test_a_node_that_is_late_is_left_out_and_welcome_later(tmp_path):
    """Its reply is written but never counted; the next time it starts from what was."""
    settings = KINDS["curvature"].replace(active=NODES)
    world, lost = World(tmp_path), {2: 3}  # in round 2 the reply of node 3 gets lost

    class Lossy:
        def exchange(self, contents, max_bytes, needed):
            answers = world.exchange(contents, max_bytes, needed)
            number = request_of(contents).broadcast
            if number.task == "round" and number.round in lost:
                del answers[lost[number.round]]
            return answers

    engine = engine_on(Lossy(), NODES - 1)
    history = list(itertools.islice(rounds(engine, settings), ROUNDS + 1))
    assert history[2].participants == (0, 1, 2)
    assert history[3].participants == (0, 1, 2, 3)
    assert [one.why for one in engine.absent] == ["no answer in time"]

    class Draws:
        def draw(self, number, clients, seed):
            return np.array([0, 1, 2] if number == 2 else [0, 1, 2, 3])

        def probabilities(self, clients):
            return np.ones(clients)

    engine = LocalEngine(world.shards)
    same = list(itertools.islice(rounds(engine, settings.replace(sampler=Draws())), ROUNDS + 1))
    assert history[-1].V.tobytes() == same[-1].V.tobytes()


def test_too_few_nodes_end_a_round_with_their_reasons(tmp_path):
    class Silent:
        def exchange(self, contents, max_bytes, needed):
            return {}

    engine = engine_on(Silent(), 2)
    with pytest.raises(TooFewError, match=r"0 of 4 nodes took part, 2 must .*node 3: no answer in time"):
        next(rounds(engine, KINDS["curvature"]))


def test_asked_again_a_node_says_the_same_bytes(tmp_path):
    world = World(tmp_path)
    seen = []

    class Twice:
        def exchange(self, contents, max_bytes, needed):
            for client, content in contents.items():
                first, again = (world.node(client).answer_bytes(content) for _ in range(2))
                world.revive(client)
                seen.append(first == again == world.node(client).answer_bytes(content))
            return world.exchange(contents, max_bytes, needed)

    engine = engine_on(Twice(), NODES)
    list(itertools.islice(rounds(engine, KINDS["curvature"]), 4))
    assert len(seen) > 10
    assert all(seen)


def request_for(world, client=0, **changes):
    """The first round's request, with something wrong about it."""
    caught = []

    class Catch:
        def exchange(self, contents, max_bytes, needed):
            caught.append(request_of(contents))
            return world.exchange(contents, max_bytes, needed) if caught[-1].broadcast.task != "round" else {}

    engine = engine_on(Catch(), 1)
    with pytest.raises(TooFewError):
        list(itertools.islice(rounds(engine, KINDS["curvature"]), 2))
    return caught[-1]._replace(client=client, **changes)


def status_of(answer):
    return decode_reply(*from_bytes(answer)).status


def test_what_a_node_refuses(tmp_path):
    world = World(tmp_path)
    request = request_for(world)
    node, broadcast = world.node(0), request.broadcast
    for wrong, status in (
        (request._replace(catalogue="another"), "wrong-catalogue"),
        (request._replace(broadcast=broadcast._replace(V=broadcast.V[:-1])), "malformed"),
        (request._replace(broadcast=broadcast._replace(V=broadcast.V[:, :-1].copy())), "malformed"),
        (request._replace(broadcast=broadcast._replace(task="exec")), "malformed"),
        (request._replace(client=NODES), "wrong-member"),
        (request._replace(run="../../elsewhere"), "malformed"),
        (request._replace(run=""), "malformed"),
    ):
        assert status_of(node.answer(wrong)) == status
        assert world.stores[0].get(RUN, "pending", ALGORITHM) == NOTHING
    assert status_of(node.answer(request)) == OK


def test_a_question_that_comes_late_touches_nothing(tmp_path):
    """The server asks a silent node again; the second question may arrive after the next round's."""
    world = World(tmp_path)
    first = request_for(world)
    node = world.node(0)
    one = node.answer(first)
    assert node.answer(first) == one
    second = first._replace(counted=1, broadcast=first.broadcast._replace(round=2))
    two = node.answer(second)
    measure = first._replace(broadcast=first.broadcast._replace(task="measure"))
    for late in (first, measure):
        assert status_of(node.answer(late)) == "wrong-round"
    assert node.answer(second) == two
    assert world.stores[0].get(RUN, "committed", ALGORITHM).round == 1


def test_a_message_that_would_grow_when_opened_is_refused():
    file = io.BytesIO()
    np.savez_compressed(file, V=np.zeros(10**6))
    with pytest.raises(DataError, match="would grow"):
        from_bytes(file.getvalue())


def test_ratings_that_changed_within_a_run_are_refused(tmp_path):
    world = World(tmp_path)
    request, node = request_for(world), world.node(0)
    node.answer(request)
    node.terms = node.terms._replace(ratings="others")
    assert status_of(node.answer(request)) == "changed-ratings"
    assert status_of(node.answer(request._replace(run="a-new-run"))) == OK


def test_settings_that_were_changed_on_the_way_are_refused(tmp_path):
    arrays, words = encode(request_for(World(tmp_path)))
    words["settings"] = words["settings"] | {"rank": 4}
    with pytest.raises(InputError, match="do not match their hash"):
        decode(arrays, words)
    with pytest.raises(DataError, match="not a request"):
        decode(arrays, {"task": "round"})
    for content, status in ((to_bytes(arrays, words), "wrong-settings"), (b"anything", "malformed")):
        answer = World(tmp_path / status).ask(0, content)
        assert status_of(answer) == status


def test_a_round_that_lies_behind_is_refused(tmp_path):
    world = World(tmp_path)
    world.finish(KINDS["curvature"].replace(active=NODES))
    world.node(0)  # its round ROUNDS was counted by the server, but not yet committed
    request = request_for(World(tmp_path / "other"))
    settings = KINDS["curvature"].replace(active=NODES)
    late = request._replace(counted=ROUNDS, broadcast=request.broadcast._replace(round=ROUNDS, settings=settings))
    assert status_of(world.node(0).answer(late)) == "wrong-round"
    other = late._replace(broadcast=late.broadcast._replace(settings=settings.replace(entry_penalty=0.9)))
    assert status_of(world.node(0).answer(other)) == "wrong-settings"


def test_a_node_whose_state_was_lost_refuses_the_run_and_takes_part_in_the_next(tmp_path):
    request = request_for(World(tmp_path))
    with Store(tmp_path / "fresh") as store:
        node = Node(World(tmp_path / "w").shards[0], CATALOGUE, store)
        assert status_of(node.answer(request._replace(counted=3))) == "lost-state"
        assert store.get(RUN, "pending", ALGORITHM) == NOTHING
        assert status_of(node.answer(request._replace(run="the-next"))) == OK


def test_every_refusal_is_a_line_in_the_nodes_log_with_its_cure(tmp_path, caplog):
    """The server gets a word; the organisation reads what was asked, which status it was given, and what to do."""
    world = World(tmp_path)
    request = request_for(world)
    node = world.node(0)
    arrays, header = encode(request)
    for content, line in (
        (to_bytes(*encode(request._replace(catalogue="b" * 64))), r"\(wrong-catalogue\): .*'bbbbbbbbbbbb'.*--reread"),
        (
            to_bytes(arrays, header | {"settings": header["settings"] | {"algorithm": "mine:2"}}),
            r"\(missing-plugin\): unknown algorithm 'mine'.*install it here",
        ),
        (
            to_bytes(arrays, header | {"settings": header["settings"] | {"rank": 0}}),
            r"\(wrong-settings\): settings: rank must be at least 1, got 0",
        ),
        (
            to_bytes(arrays, header | {"counted": None}),
            r"\(malformed\): [0-9]+ bytes, .*counted must be a whole number",
        ),
        (b"PK", r"\(malformed\): 2 bytes, not a message"),
        (
            to_bytes(arrays | {"shared/beta_items": np.ones(3, np.int64)}, header),
            r"\(malformed\): beta_items is of type int64",
        ),
        (to_bytes(*encode(request._replace(counted=7))), r"\(lost-state\): the server counted round 7.*backup"),
        (to_bytes(*encode_invited(request)), r"\(wrong-privacy\): round came with an invitation, not so under plain"),
        (encode_stage(Stage(RUN, 0, "masked", {})), rf"stage 'masked' of run '{RUN}' \(no-session\): there is no such"),
        (
            encode_stage(Stage(RUN, 0, "open", {})),
            rf"stage 'open' of run '{RUN}' \(not-hidden\): the hash of a session",
        ),
    ):
        caplog.clear()
        node.answer_bytes(sealed(0, content))
        (record,) = caplog.records
        assert re.search(line, record.getMessage()), record.getMessage()
    node.terms = node.terms._replace(ratings="e" * 64)
    node.answer(request)
    assert "the run began with" in caplog.text


def encode_invited(request):
    return encode(request._replace(invitation=wire.Invitation()))


def test_a_failure_is_logged_with_its_kind(tmp_path, caplog, monkeypatch):
    world = World(tmp_path)
    request = request_for(world)

    def broken(*anything):
        raise MemoryError

    monkeypatch.setattr(PlainSum, "reply", broken)
    assert status_of(world.node(0).answer(request)) == "failed"
    assert f"round 1 of run {RUN} failed (failed): MemoryError: " in caplog.text
    assert "Traceback" in caplog.text


def test_a_run_that_ended_at_a_node_says_why_again(tmp_path, caplog):
    with Store(tmp_path / "state") as store:
        store.end("a-run", Ended("failed", "MemoryError: "))
        store.end("a-run", Ended("diverged", "the first reason stays"))
        assert store.ended("a-run") == ("failed", "MemoryError: ")
    database = sqlite3.connect(tmp_path / "state" / "state.sqlite", isolation_level=None)
    database.execute("ALTER TABLE ended DROP COLUMN reason")  # as version 0.1 wrote it
    database.close()
    with Store(tmp_path / "state") as store:
        assert store.ended("a-run") == ("failed", "")


@pytest.mark.parametrize("saying_so", [1, 2])
def test_not_finite_numbers_are_a_word_to_the_server(saying_so, tmp_path):
    """One node that says so is left out, and cannot end the run; half of them do."""
    world = World(tmp_path)
    request = request_for(world)
    broken = request._replace(broadcast=request.broadcast._replace(V=np.full_like(request.broadcast.V, 1e200)))
    answer = world.node(0).answer(broken)
    reply = decode_reply(*from_bytes(answer))
    assert reply == Reply(RUN, 0, 1, "round", "diverged", None)
    world = World(tmp_path / "another")

    class Saying:
        def exchange(self, contents, max_bytes, needed):
            answers = world.exchange(contents, max_bytes, needed)
            if request_of(contents).broadcast.task == "round":
                answers |= {k: to_bytes(*encode_reply(reply._replace(client=k))) for k in range(saying_so)}
            return answers

    engine = engine_on(Saying(), 1)
    run = rounds(engine, KINDS["curvature"].replace(active=NODES))
    next(run)
    if saying_so == 1:
        assert next(run).participants == (1, 2, 3)
    else:
        with pytest.raises(Diverged, match="2 of 4 nodes have numbers"):
            next(run)


def hostile():
    """(what is wrong, a reply made of an honest one)"""
    yield "not finite", lambda r: changed(r, values=np.full_like(r.sums.parts["S"].values, np.nan))
    yield "expected", lambda r: changed(r, values=r.sums.parts["S"].values[:, :-1])
    yield "expected", lambda r: changed(r, height=10**6)
    yield "items that are not there", lambda r: changed(r, rows=r.sums.parts["S"].rows + 1000)
    yield "out of order, or twice", lambda r: changed(r, rows=r.sums.parts["S"].rows[::-1].copy())
    yield "of type", lambda r: changed(r, values=r.sums.parts["S"].values.astype(np.complex128))
    yield "expected", lambda r: r._replace(round=7)
    yield "expected", lambda r: r._replace(client=2)
    yield "expected", lambda r: r._replace(run="another-run")
    yield "never joined", lambda r: r._replace(sums=Sums.of(S=r.sums.parts["S"], joined=0))
    yield "it holds", lambda r: r._replace(sums=Sums.of(S=r.sums.parts["S"], joined=1, more=1))
    yield "unknown status", lambda r: r._replace(status="please run this")


def changed(reply, **fields):
    S = reply.sums.parts["S"]
    given = {"rows": S.rows, "values": S.values, "height": S.height} | fields
    return reply._replace(sums=Sums.of(S=Rows(**given), joined=1))


@pytest.mark.parametrize("case", range(12))
def test_hostile_updates_are_refused_and_not_counted(case, tmp_path, caplog):
    message, make = list(hostile())[case]
    world = World(tmp_path)

    class Hostile:
        def exchange(self, contents, max_bytes, needed):
            answers = world.exchange(contents, max_bytes, needed)
            if request_of(contents).broadcast.task == "round":
                honest = decode_reply(*from_bytes(answers[1]))
                answers[1] = to_bytes(*encode_reply(make(honest)))
            return answers

    settings = KINDS["curvature"].replace(active=NODES)
    engine = engine_on(Hostile(), NODES - 1)
    first = list(itertools.islice(rounds(engine, settings), 2))[-1]
    assert first.participants == (0, 2, 3)
    assert 1 not in engine.counted
    assert message in engine.absent[0].why
    assert message in caplog.text
    assert np.isfinite(first.V).all()


@pytest.mark.parametrize(
    "garbage", [b"", b"PK", os.urandom(1000), to_bytes({}, {}), to_bytes({"S": np.zeros(3)}, {"status": "ok"})]
)
def test_garbage_is_refused(garbage, tmp_path):
    engine = engine_on(World(tmp_path), 1)
    replies = Replies(engine.asking, request_for(World(tmp_path / "w")).broadcast)
    assert replies.read(0, garbage) is None
    assert engine.absent[0].why.startswith("refused")


def test_a_reply_larger_than_an_honest_one_can_be_is_known_by_its_size(tmp_path):
    broadcast = request_for(World(tmp_path)).broadcast
    assert max_bytes(broadcast, ITEMS) < 200_000


def test_two_processes_of_one_organisation(tmp_path):
    with Store(tmp_path / "state"), pytest.raises(BusyError, match="in use"):
        Store(tmp_path / "state")
    Store(tmp_path / "state").close()


def test_the_state_is_the_organisations_own(tmp_path):
    with Store(tmp_path / "state"):
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "state" / "state.sqlite").stat().st_mode) == 0o600


def test_a_damaged_store_is_refused(tmp_path):
    with Store(tmp_path / "state"):
        pass
    (tmp_path / "state" / "state.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(DataError, match="cannot be used"):
        Store(tmp_path / "state")
    Store(tmp_path / "other").close()  # the lock is free again


def test_a_damaged_state_is_refused(tmp_path):
    world = World(tmp_path)
    request = request_for(world)
    world.node(0).answer(request)
    world.stores[0].close()
    with sqlite3.connect(tmp_path / "node-0" / "state.sqlite") as database:
        database.execute("UPDATE states SET state = substr(state, 1, 40)")
    world.stores[0] = Store(tmp_path / "node-0")
    with pytest.raises(DataError, match="is damaged"):
        world.node(0).answer(request)


def test_what_cannot_be_written_is_not_sent(tmp_path):
    """A disk that is full: the pages of the database may not grow."""
    world = World(tmp_path)
    request = request_for(world)
    pages = world.stores[0]._database.execute("PRAGMA page_count").fetchone()[0]
    world.stores[0]._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DataError, match="full"):
        world.node(0).answer(request)
    assert world.stores[0].get(RUN, "pending", ALGORITHM) == NOTHING


def test_a_checkpoint_that_is_damaged_or_missing(tmp_path):
    world = World(tmp_path)
    world.finish(KINDS["curvature"], 1)
    content = world.path.read_bytes()
    for broken in (content[:100], content[:-30], b""):
        world.path.write_bytes(broken)
        with pytest.raises(DataError, match="is damaged"):
            checkpoint.load(world.path)
    with pytest.raises(DataError, match="no checkpoint"):
        checkpoint.load(tmp_path / "nowhere")


def test_settings_of_ones_own_do_not_travel():
    wire.portable(KINDS["paper"])
    wire.portable(KINDS["curvature"].replace(penalty_users="l1:0.1"))
    with pytest.raises(InputError, match="in words only"):
        wire.portable(KINDS["paper"].replace(penalty_users=_Own()))


class _Own:
    value, prox = l2(1.0).value, l2(1.0).prox

    def __mul__(self, weight):
        return self


def test_rows_and_numbers_survive_the_wire():
    sums = Sums.of(S=Rows(np.array([1, 3], np.int32), np.ones((2, 4), np.float32), 7), joined=1)
    reply = decode_reply(*from_bytes(to_bytes(*encode_reply(Reply(RUN, 1, 2, "round", "ok", sums)))))
    assert reply.sums.parts["S"].height == 7
    assert reply.sums.parts["S"].values.dtype == np.float32
    assert reply.sums.sent == sums.sent
