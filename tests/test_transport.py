"""The transport over Flower, in process: what a node answers, and how the server asks."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.task_identity import TaskIdentity

from fedmc.federation.flower import node_client, records, transport
from fedmc.federation.flower.post import Answer, FlowerPost


@pytest.fixture(autouse=True)
def _inside_of_a_run(monkeypatch):
    """Messages can be made in a Flower process only."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


instruction = partial(Message, dst_node_id=7, message_type="query")


def _npy_header(said):
    text = f"{repr(said)[:-1]}, }}".encode().ljust(117) + b"\n"  # as numpy writes it
    return len(text).to_bytes(2, "little") + text


class FakeFleet:
    """Holds the objects of one message."""

    def __init__(self, parcel):
        self.parcel, self.pulls = parcel, 0

    def pull(self, run, names):
        self.pulls += len(names)
        return {name: self.parcel.objects[name] for name in names}


def asked_and_answered(parcel, kind=node_client.SERVER_APP, answer=lambda content: content[::-1]):
    fleet = FakeFleet(parcel)
    found = PullMessagesResponse(messages_list=[parcel.head], message_object_trees=[parcel.tree])
    return node_client._reply(found, {parcel.head.metadata.run_id: kind}, fleet, answer), fleet


def opened(parcel):
    return records.unwrap(parcel.head, parcel.tree, lambda names: {name: parcel.objects[name] for name in names})


class TestForms:
    @pytest.mark.parametrize("size", [0, 1, records.INLINE, records.INLINE + 1, records.SMALL + 1])
    @pytest.mark.parametrize("short", [True, False])
    def test_bytes_survive(self, size, short):
        content = bytes(size)
        parcel = records.wrap(instruction, content, short)
        assert opened(parcel) == content
        assert parcel.head.metadata.message_id == parcel.tree.object_id
        assert records.is_short(parcel.head, parcel.tree) == short
        for item in parcel.objects.values():
            validate_object_content(item)  # the SuperLink does
        if short:
            assert len(parcel.objects) == (size > records.INLINE)
        else:
            assert len(parcel.objects) >= 3

    def test_a_message_too_large_for_one_object_goes_in_flowers_form(self, monkeypatch):
        monkeypatch.setattr(records, "OBJECT", 10)
        parcel = records.wrap(instruction, b"eleven bytes", True)
        assert opened(parcel) == b"eleven bytes"
        assert not records.is_short(parcel.head, parcel.tree)

    @pytest.mark.parametrize("size", [5, records.INLINE + 1])
    def test_two_equal_messages_have_two_ids(self, size):
        first, second = (records.wrap(instruction, bytes(size), True) for _ in range(2))
        assert first.tree.object_id != second.tree.object_id

    def test_what_is_not_ours_is_an_error(self):
        strange = records.wrap(lambda record: instruction(RecordDict({"run": ConfigRecord({"code": "x"})})), b"", True)
        with pytest.raises(KeyError):
            opened(strange)
        large = records.wrap(instruction, bytes(records.INLINE + 1), True)
        for broken in (b"", b"ArrayChunk  3\0abc", b"Message  20\0" + bytes(20), b"ArrayChunk  999\0" + bytes(20)):
            with pytest.raises(ValueError, match="another kind"):
                opened(large._replace(objects={large.tree.object_id: broken}))

    @pytest.mark.parametrize("shape", [(2**43,), (3, 2), (7,), ()])
    def test_an_array_is_not_believed_to_be_larger_than_it_is(self, shape):
        """A header may claim 8 TB."""
        content = np.lib.format.magic(1, 0) + _npy_header({"descr": "|u1", "fortran_order": False, "shape": shape})
        wrong = Array("uint8", shape, "numpy.ndarray", content + b"8 bytes.")
        with pytest.raises(ValueError, match=r"not an array|expected bytes"):
            records.unpack(RecordDict({"fedmc": ArrayRecord({"bytes": wrong})}))

    def test_stock_supernodes_find_flowers_records(self):
        parcel = records.wrap(instruction, b"x", False)
        assert not recorddict_from_proto(parcel.head.content)


class TestNode:
    @pytest.mark.parametrize("short", [True, False])
    def test_it_answers_in_the_form_in_which_it_was_asked(self, short):
        reply, fleet = asked_and_answered(records.wrap(instruction, b"asked", short))
        assert opened(reply) == b"deksa"
        assert records.is_short(reply.head, reply.tree) == short
        assert fleet.pulls == (0 if short else 3)
        data = reply.head.metadata
        assert (data.src_node_id, data.dst_node_id, data.run_id) == (7, 1, 1)

    def test_it_answers_bytes_of_ours_and_nothing_else(self):
        asked = []
        strange = (RecordDict({"run this": ConfigRecord({"code": "print()"})}),
                   RecordDict({"fedmc": ConfigRecord({"bytes": "text"})}), RecordDict({}))  # fmt: skip
        tries = [(records.wrap_records(instruction(record)), node_client.SERVER_APP) for record in strange]
        tries += [(records.wrap(instruction, b"asked", short), "flwr-agentapp") for short in (True, False)]
        for parcel, kind in tries:
            reply, _ = asked_and_answered(parcel, kind, asked.append)
            assert reply.head.HasField("error")
            assert reply.head.error.reason == "refused"
        assert asked == []


class FakePost:
    """What Flower does, without a network: `script` says what becomes of each message, in order."""

    def __init__(self, online, script):
        self.there, self.script, self.held, self.pushed, self.pulls = online, iter(script), {}, [], 0

    def online(self):
        return set(self.there() if callable(self.there) else self.there)

    def push(self, contents):
        ids = []
        for node, _ in contents:
            ids.append(f"message-{len(self.pushed)}")
            self.pushed.append(node)
            self.held[ids[-1]] = next(self.script)
        return ids

    def pull(self, ids, most):
        self.pulls += 1
        there = [name for name in ids if self.held.get(name) is not None]
        return [Answer(name, self.held.pop(name)) for name in there]


class FakeBell:
    """The gateway's notices: none, unless a test gives some."""

    def __init__(self, connected=False):
        self.connected, self.heard, self.notices = connected, threading.Event(), (set(), set())

    def wait(self, seconds):
        self.heard.wait(max(seconds, 0))

    def take(self):
        found, self.notices = self.notices, (set(), set())
        self.heard.clear()
        return found

    def ring(self, replied=(), back=()):
        self.notices = (set(replied), set(back))
        self.heard.set()


def ask(post, monkeypatch, patience=5.0, needed=2, bell=None):
    monkeypatch.setattr(transport, "LOOK", 0.05)
    monkeypatch.setattr(transport, "EARLY", 0.1, raising=False)
    monkeypatch.setattr(transport, "BLIND", 0.02)
    made = transport.FlowerTransport(post, bell or FakeBell(), [11, 12], patience)
    return made.exchange({0: b"", 1: b""}, 100, needed)


class TestTransport:
    def test_answers_by_number(self, monkeypatch):
        assert ask(FakePost([11, 12], [b"a", b"b"]), monkeypatch) == {0: b"a", 1: b"b"}

    def test_a_node_that_comes_back_is_asked_again(self, monkeypatch):
        """It pulled the first message and died with it."""
        looks = iter([[11, 12], [11], [11, 12]])
        post = FakePost(lambda: next(looks, [11, 12]), [b"a", None, b"again"])
        assert ask(post, monkeypatch) == {0: b"a", 1: b"again"}
        assert post.pushed == [11, 12, 12]

    def test_a_silent_node_is_asked_again(self, monkeypatch):
        monkeypatch.setattr(transport, "AGAIN", 0.3)
        post = FakePost([11, 12], [b"a", None, None, b"at last"])
        assert ask(post, monkeypatch) == {0: b"a", 1: b"at last"}

    def test_who_is_not_there_is_waited_for_only_below_the_quorum(self, monkeypatch):
        began = time.monotonic()
        assert ask(FakePost([11], [b"a"]), monkeypatch, patience=60, needed=1) == {0: b"a"}
        assert time.monotonic() - began < 10
        assert ask(FakePost([11], [b"a"]), monkeypatch, patience=0.3, needed=2) == {0: b"a"}

    def test_what_is_too_large_is_dropped(self, monkeypatch):
        assert ask(FakePost([11, 12], [b"a", bytes(101)]), monkeypatch) == {0: b"a"}

    def test_who_answers_too_much_is_not_asked_again(self, monkeypatch, caplog):
        post = FakePost([11, 12], [b"a", None])
        post.pull = lambda ids, most: [
            Answer(name, post.held.pop(name) or b"", size=0 if name == "message-0" else most + 1)
            for name in ids
            if name in post.held
        ]
        began = time.monotonic()
        assert ask(post, monkeypatch) == {0: b"a"}
        assert time.monotonic() - began < 2
        assert post.pushed == [11, 12]
        assert "node 1 answered 101 bytes or more, at most 100" in caplog.text

    def test_a_node_that_goes_and_comes_all_the_time_gets_few_copies(self, monkeypatch):
        """It is seen online and offline in turn."""
        looks = iter(range(10_000))
        post = FakePost(lambda: [11, 12] if next(looks) % 2 else [11], [b"a"] + 1000 * [None])
        assert ask(post, monkeypatch, patience=2.0) == {0: b"a"}
        assert 3 <= post.pushed.count(12) <= 6

    def test_a_node_that_answers_errors_gets_few_copies(self, monkeypatch):
        post = FakePost([11, 12], 1000 * [b""])
        post.pull = lambda ids, *most: [Answer(name, error=1) for name in ids if post.held.pop(name, None) is not None]
        assert ask(post, monkeypatch, patience=2.0) == {}
        assert 3 <= post.pushed.count(12) <= 6

    def test_a_message_that_flower_did_not_take_is_sent_again(self, monkeypatch):
        monkeypatch.setattr(transport, "AGAIN", 0.1)
        post = FakePost([11, 12], [b"a", b"b", b"c"])
        push = post.push
        post.push = lambda contents: ["", *push(contents)[1:]] if len(contents) == 2 else push(contents)
        assert ask(post, monkeypatch) == {0: b"c", 1: b"b"}


class TestNotices:
    def ringing(self, bell, after, **notice):
        threading.Timer(after, lambda: bell.ring(**notice)).start()

    def test_the_server_pulls_when_it_is_told_to_and_not_before(self, monkeypatch):
        post, bell = FakePost([11, 12], [b"a", b"b"]), FakeBell(connected=True)
        self.ringing(bell, 0.5, replied=[11, 12])
        began = time.monotonic()
        assert ask(post, monkeypatch, bell=bell) == {0: b"a", 1: b"b"}
        assert 0.4 < time.monotonic() - began < 2.0
        assert post.pulls == 1

    def test_a_lost_notice_costs_seconds_and_nothing_else(self, monkeypatch):
        monkeypatch.setattr(transport, "FALLBACK", 0.5)
        post, bell = FakePost([11, 12], [b"a", b"b"]), FakeBell(connected=True)
        assert ask(post, monkeypatch, bell=bell) == {0: b"a", 1: b"b"}
        assert post.pulls == 1

    def test_a_node_that_came_back_is_asked_at_once(self, monkeypatch):
        """It was never seen to be away: its process died and came back between two looks."""
        post, bell = FakePost([11, 12], [b"a", None, b"again"]), FakeBell(connected=True)
        monkeypatch.setattr(transport, "FALLBACK", 0.3)
        self.ringing(bell, 0.3, back=[12])
        assert ask(post, monkeypatch, bell=bell) == {0: b"a", 1: b"again"}
        assert post.pushed == [11, 12, 12]

    def test_a_node_that_comes_back_all_the_time_gets_few_copies(self, monkeypatch):
        """101 copies in 3 s before; Flower keeps each of them."""
        post, bell = FakePost([11, 12], [b"a"] + 1000 * [None]), FakeBell(connected=True)
        bell.wait = lambda seconds: time.sleep(min(max(seconds, 0), 0.01))
        bell.take = lambda: ({11}, {12})
        assert ask(post, monkeypatch, patience=2.0, bell=bell) == {0: b"a"}
        assert 3 <= post.pushed.count(12) <= 6

    def test_one_restart_is_answered_within_seconds(self):
        """With the real pauses: asked, dead, back after half a second, and once more."""
        turn = transport._Turn()
        turn.asked(100.0)
        turn.soon()
        assert turn.due == 102.0
        turn.asked(turn.due)
        turn.soon()
        assert turn.due == 106.0
        turn = transport._Turn()
        turn.asked(100.0)
        turn.soon(109.0)
        assert turn.due == 109.0  # long after it was asked: at once


class LargePost(FlowerPost):
    """A FlowerPost to which one node has replied, with so many objects of a MiB."""

    def __init__(self, count, patience=5.0):
        node, run = Node(node_id=1), SimpleNamespace(run_id=1)
        grid = SimpleNamespace(node=node, run=run, _runtime_client=None)
        super().__init__(grid, SimpleNamespace(short=frozenset()), patience)
        self.count, self.made = count, []

    def _call(self, name, request):
        self.made.append(name)
        if name == "PullMessages":
            head = ProtoMessage(metadata=Metadata(reply_to_message_id="b" * 64, src_node_id=5))
            head.content.SetInParent()
            children = [ObjectTree(object_id=f"{number:064x}") for number in range(self.count)]
            tree = ObjectTree(object_id="f" * 64, children=children)
            return SimpleNamespace(messages_list=[head], message_object_trees=[tree])
        return PullObjectResponse(object_found=True, object_available=True, object_content=bytes(2**20))


class TestPost:
    def test_a_large_reply_is_pulled_up_to_the_bound(self, caplog):
        """All of its objects were pulled before: 16 GB of them at most."""
        post = LargePost(100)
        (answer,) = post.pull(["b" * 64], 3 * 2**20)
        assert post.made.count("PullObject") < 10
        assert answer.content == b""
        assert 3 * 2**20 < answer.size < 10 * 2**20
        assert "node 5: a message has" in caplog.text
        assert post.made[-1] == "ConfirmMessageReceived"  # Flower need not keep it

    def test_copies_are_kept_as_long_as_somebody_waits(self, monkeypatch):
        sent = []
        for patience, kept in ((300.0, 3900.0), (1e9, 12 * 3600.0)):
            post = LargePost(0, patience)
            post.notices.announce = lambda nodes, calls: None
            monkeypatch.setattr(post, "_push", lambda batch: sent.extend(batch) or ["x"] * len(batch))
            post.push([(7, b"content")])
            assert sent[-1].head.metadata.ttl == kept
