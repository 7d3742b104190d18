"""Mutated requests: what is still valid is answered with 2xx, all else with 4xx, and nothing with 5xx or never."""

from __future__ import annotations

import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from fedmc.serving import connection, server
from fedmc.serving.guard import Limits
from fedmc.serving.schema import Problem
from tests import mutations
from tests.serving_requests import corpus, is_valid, mutants
from tests.serving_world import HOST, Direct, Sent, event_model, get, holder_of, post, running, titled_model

SEED = 22


@pytest.fixture(scope="module")
def holder(tmp_path_factory):
    return holder_of(titled_model(), tmp_path_factory.mktemp("mutations") / "model.npz")


@pytest.fixture(scope="module")
def api(holder):
    made = Direct(holder)
    yield made
    made.close()


def judge(api, kind, request):
    """Compare what the server does with what the oracle says; returns the status."""
    got, valid = api.ask(request), is_valid(request)
    if valid:
        assert got.status == 200, (kind, request, got.body)
    else:
        assert 400 <= got.status < 500, (kind, request, got.status, got.body[:500])
        Problem.model_validate_json(got.body)
        assert len(got.body) < 10_000
    return got.status


def test_the_oracle_takes_the_honest_ones(api):
    for request in corpus():
        assert is_valid(request), request
        assert judge(api, "honest", request) == 200


def hammered(api, number):
    return Counter(judge(api, kind, request) for kind, request in mutants(SEED, number))


def test_500_mutations(api):
    found = hammered(api, 500)
    assert found[200] > 100
    assert {400, 401, 404, 405, 415, 421, 422} <= set(found)


@pytest.mark.slow
def test_10_000_mutations(api):
    found = hammered(api, 10_000)
    assert found.total() == 10_000
    assert found[200] > 2000
    assert {400, 401, 404, 405, 413, 415, 421, 422} <= set(found)
    assert api.ask(get("/v1/health")).status == 200


def of_events():
    """Valid requests to a model of events, whose ids are texts."""
    some = [{"item": "i3"}, {"item": "i4", "rating": 7.5}, {"item": "i3", "rating": 1e6}]
    timed = [{"item": "i1", "time": 5}, {"item": "i2", "rating": 1e-9, "time": 10**9}, {"item": "x", "time": 0}]
    return [
        post("/v1/recommend", {"user": "u3", "n": 4, "only": ["i1", "i2", "é"], "exclude": ["i2"]}),
        post("/v1/predict", {"pairs": [{"user": "u3", "item": "i4"}, {"user": "u0", "item": "i0"}]}),
        post("/v1/fold-in", {"ratings": some, "predict": ["i5"]}),
        post("/v1/fold-in", {"ratings": timed, "exclude_seen": False}),
        post("/v1/similar", {"item": "i4"}),
    ]


@pytest.mark.parametrize(("preset", "scale"), [("implicit", "log"), ("implicit", "linear:40"), ("ease", "none")])
def test_other_models_fail_on_no_mutation(tmp_path, preset, scale):
    api = Direct(holder_of(event_model(preset), tmp_path / "model.npz", scale=scale))
    honest = [one for one in of_events() if preset != "ease" or "similar" not in one.target]
    assert [api.ask(one).status for one in honest] == [200] * len(honest)
    found = Counter()
    for kind, request in mutants(SEED, 600, honest):
        got = api.ask(request)
        assert got.status == 200 or 400 <= got.status < 500, (kind, request, got.body)
        assert b"null" not in got.body or got.status != 200
        found[got.status] += 1
    assert found[200] > 50
    assert found[422] > 100
    api.close()


def wire(request):
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
    lines += [f"content-length: {len(request.body)}", "connection: close"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


def spoiled(rng, content):
    """Bytes of a request, damaged on the way."""
    change = rng.randrange(5)
    if change == 0:
        lines = content.split(b"\r\n")
        place = rng.randrange(len(lines))
        lines[place] = rng.choice([b"", b"\n", b"x: y", b": y", b" folded", b"content-length: 0", b"x" * 20_000, b"\0"])
        return b"\r\n".join(lines)
    if change == 1:
        place = rng.randrange(len(content))
        return content[:place] + rng.choice([b"\r\n", b"\0", b"\xff", b" ", b"\r\n\r\n"]) + content[place:]
    return rng.choice([mutations.flip, mutations.flip, mutations.truncate])(rng, content)


def statuses(port, content):
    """The statuses of all answers to these bytes, until the server hangs up; it must."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as peer:
        received = b""
        with suppress(ConnectionError):
            peer.sendall(content)
            while part := peer.recv(2**16):
                received += part
    found = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
    return [status for status in found if status != 100]


@pytest.fixture
def impatient(monkeypatch):
    """Requests that never end are cut soon, and so are connections without a further one."""
    monkeypatch.setattr(connection, "HEADER", 0.3)
    monkeypatch.setattr(server, "IDLE", 0.3)
    return Limits(arrive=0.3)


def test_damaged_bytes_over_real_sockets(holder, impatient):
    rng, honest, found = random.Random(SEED), [wire(request) for request in corpus()], Counter()
    contents = [spoiled(rng, rng.choice(honest)) for _ in range(300)]
    for _, request in mutants(SEED, 200):
        if all(" " not in part and part.isascii() for part in (request.method, request.target)):
            contents.append(wire(request))
    with running(holder, limits=impatient) as world, ThreadPoolExecutor(16) as pool:
        for content in honest:
            assert statuses(world.port, content) == [200]
        for content, answered in zip(contents, pool.map(partial(statuses, world.port), contents), strict=True):
            assert all(200 <= status < 300 or 400 <= status < 500 for status in answered), content
            found.update(status // 100 for status in answered)
        assert statuses(world.port, wire(Sent("GET", "/v1/health", (("host", HOST),)))) == [200]
    assert found[2] > 30
    assert found[4] > 100
    assert set(found) == {2, 4}
