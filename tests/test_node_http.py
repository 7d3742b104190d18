"""What a node makes of a server that answers as it likes: it takes in a bounded number of bytes, and goes on."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import httpx
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.run_pb2 import GetRunResponse
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from fedmc.federation.flower import fleet, node_client, records
from fedmc.federation.setup import founding

MIB = 2**20


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node-http")
    founding.init(folder / "made", ["north", "south"], founding.Address("127.0.0.1", 1, "127.0.0.1", 0))
    return folder / "made" / "server" / "ca.crt"


class Endless(httpx.SyncByteStream):
    """A body of a GiB; `taken` bytes of it were read."""

    def __init__(self):
        self.taken = 0

    def __iter__(self):
        while self.taken < 1024 * MIB:
            self.taken += MIB
            yield bytes(MIB)


class Body(httpx.SyncByteStream):
    """These bytes, which httpx does not look at before somebody reads them."""

    def __init__(self, content):
        self.content = content

    def __iter__(self):
        yield self.content


def asked(content=b"hello", run=1):
    return make_message(Metadata(run, "a" * 64, 1, 7, "", "", 1.8e9, 1e9, "query"), records.pack(content))


def inline(content=b"hello"):
    parcel = records.wrap(lambda record: asked(content), content, True)
    return PullMessagesResponse(messages_list=[parcel.head], message_object_trees=[parcel.tree]).SerializeToString()


class Server:
    """Answers a node's calls, some of them as the test says, and counts them."""

    def __init__(self, monkeypatch, ca, tmp_path):
        self.answers, self.calls = {}, []
        self.place = fleet.Place("127.0.0.1:1", ca, generate_key_pairs(), tmp_path / "node-id")
        kind = GetRunResponse()
        kind.run.primary_task_type = node_client.SERVER_APP
        good = (ActivateNodeResponse(node_id=7), SendNodeHeartbeatResponse(success=True), kind)
        names = ("activate-node", "send-node-heartbeat", "get-run")
        self.good = {name: said.SerializeToString() for name, said in zip(names, good, strict=True)}
        made = httpx.MockTransport(self.handle)
        for module in ("httpx", "httpx._client"):
            monkeypatch.setattr(f"{module}.HTTPTransport", lambda *args, **kwargs: made)
        monkeypatch.setattr(node_client.tls_check, "check", lambda *args: None)
        for name, value in (("PAUSE", 0.01), ("QUICK", 0.0)):
            monkeypatch.setattr(node_client, name, value)
        monkeypatch.setattr(fleet, "PATIENCE", 0.0)

    def handle(self, request):
        name = request.url.path.rpartition("/")[2]
        self.calls.append(name)
        answer = self.answers.get(name, self.good.get(name, b""))
        answer = answer(request) if callable(answer) else answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, content=answer)

    def serve(self, turns=6, answer=lambda content: content):
        left = iter(range(turns))
        node_client.serve(answer, lambda: [self.place], again=0.001, going_on=lambda: next(left, None) is not None)


@pytest.fixture
def server(monkeypatch, ca, tmp_path):
    return Server(monkeypatch, ca, tmp_path)


def test_the_stub_is_a_server(server):
    heard = []
    server.answers["pull-messages"] = inline(b"asked")
    server.serve(answer=lambda content: heard.append(content) or content)
    assert heard[0] == b"asked"
    assert "push-messages" in server.calls


class TestMemory:
    def test_a_compressed_answer_is_refused_as_it_is(self, server, caplog):
        said = gzip.compress(inline(b"asked"))
        kind = {"content-encoding": "gzip"}
        server.answers["pull-messages"] = lambda request: httpx.Response(200, stream=Body(said), headers=kind)
        heard = []
        server.serve(answer=lambda content: heard.append(content) or content)
        assert not heard
        assert "is compressed" in caplog.text

    def test_a_compressed_answer_takes_no_memory(self, server):
        bomb = gzip.compress(bytes(200 * MIB), 1)
        kind = {"content-encoding": "gzip"}
        server.answers["pull-messages"] = lambda request: httpx.Response(200, stream=Body(bomb), headers=kind)
        assert peak(server) < 50 * MIB

    @pytest.mark.parametrize("call", ["pull-messages", "activate-node", "get-run", "push-messages"])
    @pytest.mark.parametrize("status", [200, 400])
    def test_an_answer_is_read_up_to_a_bound(self, server, call, status):
        bodies = []
        server.answers["pull-messages"] = inline()
        server.answers[call] = lambda request: bodies.append(Endless()) or httpx.Response(status, stream=bodies[-1])
        server.serve()
        assert bodies
        assert max(body.taken for body in bodies) <= 6 * MIB

    def test_the_charset_of_an_error_is_not_a_decompressor(self, server):
        """httpx would decode the text of an answer with any codec of Python's."""
        bomb = gzip.zlib.compress(bytes(200 * MIB), 9)
        kind = {"content-type": "text/plain; charset=zlib"}
        server.answers["activate-node"] = lambda request: httpx.Response(400, content=bomb, headers=kind)
        assert peak(server) < 50 * MIB

    def test_cookies_are_not_kept(self, server):
        sent = []
        server.answers["activate-node"] = httpx.Response(
            200, content=server.good["activate-node"], headers={"set-cookie": "a=b; Path=/"}
        )
        server.answers["pull-messages"] = lambda request: sent.append(request.headers) or httpx.Response(200)
        server.serve()
        assert sent
        assert all("cookie" not in headers for headers in sent)

    def test_a_message_is_bounded_by_its_objects(self, server, monkeypatch):
        monkeypatch.setattr(fleet, "REQUEST", 10 * MIB, raising=False)
        names = [f"{number:064x}" for number in range(100)]
        whole = PullObjectResponse(object_found=True, object_available=True, object_content=bytes(MIB))
        server.answers["pull-object"] = whole.SerializeToString()
        with fleet.connected(server.place) as (made, _), pytest.raises(ValueError, match="at most"):
            made.pull(1, names)
        assert server.calls.count("pull-object") < 20

    def test_a_message_is_bounded_in_the_number_of_its_objects(self, server):
        with fleet.connected(server.place) as (made, _), pytest.raises(ValueError, match="10000 objects"):
            made.pull(1, [f"{number:064x}" for number in range(10_000)])
        assert "pull-object" not in server.calls


def peak(server):
    tracemalloc.start()
    try:
        server.serve(3)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def repeated(times):
    """A message of one MiB whose array names its piece so many times."""
    parcel = records.wrap_records(
        make_message(
            Metadata(1, "", 1, 7, "", "", 1.8e9, 1e9, "query"),
            RecordDict({"fedmc": ArrayRecord({"bytes": Array(np.zeros(MIB, np.uint8))})}),
        )
    )
    objects = dict(parcel.objects)
    for name, content in objects.items():
        if content.startswith(b"Array "):
            start, _, body = content.partition(b"\0")
            said = json.loads(body) | {"arraychunk_ids": [0] * times}
            body = json.dumps(said).encode()
            objects[name] = b"%s %d\0%s" % (start.rpartition(b" ")[0], len(body), body)
    return parcel, objects


@pytest.mark.parametrize(("times", "most", "taken"), [(1, 2 * MIB, True), (300, 2 * MIB, False)])
def test_an_array_that_names_a_piece_many_times_is_not_built(times, most, taken):
    parcel, objects = repeated(times)
    if taken:
        assert len(records.unwrap(parcel.head, parcel.tree, lambda names: objects, most)) == MIB
        return
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="arrays has"):
            records.unwrap(parcel.head, parcel.tree, lambda names: objects, most)
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    finally:
        tracemalloc.stop()


class TestGoingOn:
    @pytest.mark.parametrize(
        "call",
        ["activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "pull-messages", "push-messages"],
    )
    @pytest.mark.parametrize("body", [b"\xff\xff", b"[]" * 100])
    def test_an_answer_that_is_not_protobuf_does_not_end_a_node(self, server, call, body):
        server.answers["pull-messages"] = inline()
        server.answers[call] = body
        server.serve()
        assert call in server.calls

    @pytest.mark.parametrize(
        "body", [b"[]", b'{"code": 1}', b"\xff", b"[" * 100_000, b'{"code": 9' + b"9" * 9999 + b"}"]
    )
    def test_an_error_in_any_form_does_not_end_a_node(self, server, body):
        server.answers["activate-node"] = httpx.Response(400, content=body)
        server.serve()
        assert server.calls.count("activate-node") > 1

    def test_a_call_that_came_too_soon_is_made_again(self, server, monkeypatch):
        monkeypatch.setattr(fleet, "PATIENCE", 10.0)
        answers = iter([httpx.Response(429)])
        server.answers["activate-node"] = lambda request: next(answers, server.good["activate-node"])
        with fleet.connected(server.place) as (made, _):
            assert made.node.node_id == 7

    def test_a_run_that_ended_is_no_reason_to_end(self, server):
        server.answers["activate-node"] = httpx.Response(403)
        server.serve()
        assert server.calls.count("activate-node") > 1

    @pytest.mark.parametrize("status", [420, 421])
    def test_a_key_that_is_refused_later_is_shown_again(self, server, monkeypatch, caplog, status):
        pauses = []
        monkeypatch.setattr(node_client, "time", SimpleNamespace(sleep=pauses.append, monotonic=fleet.time.monotonic))
        server.answers["pull-messages"] = httpx.Response(status)
        answers = iter([server.good["activate-node"]])
        server.answers["activate-node"] = lambda request: next(answers, httpx.Response(status))
        server.serve()
        assert server.calls.count("activate-node") > 2
        assert max(pauses) > 5 * min(pauses)  # slowly
        assert "trying again" in caplog.text

    @pytest.mark.parametrize("status", [420, 421])
    def test_a_key_that_was_never_admitted_ends_the_node(self, server, status):
        server.answers["activate-node"] = httpx.Response(status)
        with pytest.raises(fleet.NotAdmittedError):
            server.serve()
