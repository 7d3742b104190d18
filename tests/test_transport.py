"""The transport over Flower, in process: what a node answers, and how the server asks."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmc.federation.flower import node_client, records, transport


@pytest.fixture
def inside_of_a_run(monkeypatch):
    """Messages can be made in a Flower process only."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def message(content: RecordDict) -> Message:
    made = Message(content, 1, "query")
    made.metadata.__dict__.update(_run_id=1, _src_node_id=1, _message_id="m")
    return made


@pytest.mark.usefixtures("inside_of_a_run")
def test_a_node_answers_bytes_of_ours_and_nothing_else():
    asked = []

    def answer(content):
        asked.append(content)
        return b"said"

    reply = node_client._reply(message(records.pack(b"asked")), node_client.SERVER_APP, answer)
    assert records.unpack(reply.content) == b"said"
    for wrong, kind in (
        (records.pack(b"asked"), "flwr-agentapp"),
        (RecordDict({"run this": ConfigRecord({"code": "print()"})}), node_client.SERVER_APP),
        (RecordDict({"fedmc": ConfigRecord({"bytes": "text"})}), node_client.SERVER_APP),
        (RecordDict({}), node_client.SERVER_APP),
    ):
        assert node_client._reply(message(wrong), kind, answer).has_error()
    assert asked == [b"asked"]


def test_bytes_survive_flowers_records():
    for content in (b"", b"x", bytes(range(256)) * 1000, bytes(records.SMALL + 1)):
        assert records.unpack(records.pack(content)) == content
    with pytest.raises(KeyError):
        records.unpack(RecordDict({}))


class FakeGrid:
    """What Flower's Grid does, without a network: `script` says what becomes of each message, in order."""

    def __init__(self, online, script):
        self.online, self.script, self.held, self.pushed = online, iter(script), {}, []

    def get_node_ids(self):
        return self.online() if callable(self.online) else list(self.online)

    def push_messages(self, messages):
        for sent in messages:
            name = f"message-{len(self.pushed)}"
            self.pushed.append(sent.metadata.dst_node_id)
            sent.metadata.__dict__.update(_run_id=1, _src_node_id=9, _message_id=name)
            content = next(self.script)
            self.held[name] = None if content is None else Message(records.pack(content), reply_to=sent)
            yield name

    def pull_messages(self, names):
        return [reply for name in names if (reply := self.held.pop(name, None)) is not None]


def ask(grid, monkeypatch, patience=5.0, needed=2):
    monkeypatch.setattr(transport, "LOOK", 0.05)
    made = transport.FlowerTransport(grid, [11, 12], patience, poll=0.02)
    return made.exchange({0: b"", 1: b""}, 100, needed)


@pytest.mark.usefixtures("inside_of_a_run")
class TestTransport:
    def test_answers_by_number(self, monkeypatch):
        assert ask(FakeGrid([11, 12], [b"a", b"b"]), monkeypatch) == {0: b"a", 1: b"b"}

    def test_a_node_that_comes_back_is_asked_again(self, monkeypatch):
        """It pulled the first message and died with it."""
        looks = iter([[11, 12], [11], [11, 12]])
        grid = FakeGrid(lambda: next(looks, [11, 12]), [b"a", None, b"again"])
        assert ask(grid, monkeypatch) == {0: b"a", 1: b"again"}
        assert grid.pushed == [11, 12, 12]

    def test_a_silent_node_is_asked_again(self, monkeypatch):
        monkeypatch.setattr(transport, "AGAIN", 0.3)
        grid = FakeGrid([11, 12], [b"a", None, None, b"at last"])
        assert ask(grid, monkeypatch) == {0: b"a", 1: b"at last"}

    def test_who_is_not_there_is_waited_for_only_below_the_quorum(self, monkeypatch):
        began = time.monotonic()
        assert ask(FakeGrid([11], [b"a"]), monkeypatch, patience=60, needed=1) == {0: b"a"}
        assert time.monotonic() - began < 10
        assert ask(FakeGrid([11], [b"a"]), monkeypatch, patience=0.3, needed=2) == {0: b"a"}

    def test_what_is_too_large_is_dropped(self, monkeypatch):
        assert ask(FakeGrid([11, 12], [b"a", bytes(101)]), monkeypatch) == {0: b"a"}
