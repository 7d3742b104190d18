"""`fedmc serve` as it runs: real connections, new models under load, slow peers, signals, TLS, and the page."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from fedmc.errors import DataError, InputError
from fedmc.federation.setup import keys
from fedmc.model import load
from fedmc.serving import connection, server
from fedmc.serving.api import Parts
from fedmc.serving.guard import Access, Limits
from fedmc.serving.holder import hash_of
from fedmc.serving.problems import STATUS
from fedmc.serving.server import Binding
from fedmc.web import token as tokens
from fedmc.web.listening import listen
from tests.command import fedmc
from tests.conftest import planted
from tests.serving_world import TOKEN, holder_of, replaced, running, titled_model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two models that differ, as files."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        titled_model(seed).save(folder / f"{seed}.npz")
    return folder / "0.npz", folder / "1.npz"


@pytest.fixture
def place(files, tmp_path):
    """A run folder with the first model."""
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "model.npz"
    replaced(path, files[0])
    return path


@pytest.fixture
def holder(files, place):
    return holder_of(load(files[0]), place)


def health(client):
    return client.get("/v1/health").raise_for_status().json()


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# A new model.


def test_new_models_under_load(files, place, holder):
    """Six clients ask while the model is replaced eight times: no error, and each answer is of one whole model."""
    expected = {hash_of(path): load(path).recommend(7, 5)[0].tolist() for path in files}
    answers, stop = [], threading.Event()

    def ask(world):
        with world.client() as client:
            while not stop.is_set():
                answers.append(client.post("/v1/recommend", json={"user": 7, "n": 5}))

    with running(holder) as world, world.client() as client:
        threads = [threading.Thread(target=ask, args=(world,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for k in range(8):
            wanted = files[(k + 1) % 2]
            replaced(place, wanted)
            until(lambda: health(client)["model"]["hash"] == hash_of(wanted))  # noqa: B023
        stop.set()
        for thread in threads:
            thread.join()
    assert {one.status_code for one in answers} == {200}
    assert {one.json()["model"] for one in answers} == set(expected)
    for one in answers:
        assert [row["item"] for row in one.json()["items"]] == expected[one.json()["model"]]


@pytest.mark.parametrize("broken", ["truncated", "text", "empty"])
def test_a_broken_model_is_refused_and_the_old_one_goes_on(files, place, holder, caplog, broken):
    content = {"truncated": files[1].read_bytes()[:-500], "text": b"model\x1b[31m", "empty": b""}[broken]
    with running(holder) as world, world.client() as client:
        first = health(client)
        replaced(place, content)
        until(lambda: health(client)["status"] == "old")
        found = health(client)
        assert found["model"] == first["model"]
        assert str(place.parent) not in found["refused"]["why"]
        assert "model.npz" in found["refused"]["why"]
        assert client.post("/v1/recommend", json={"user": 7}).status_code == 200
        assert caplog.text.count("the new model is refused") == 1  # not once in every look
        replaced(place, files[1])
        until(lambda: health(client)["status"] == "ok")
        assert health(client)["model"]["hash"] == hash_of(files[1])


def test_a_refused_file_is_tried_again(files, place, holder, monkeypatch):
    """What was wrong may have been the machine, such as too little memory."""
    monkeypatch.setattr("fedmc.serving.holder.AGAIN", 0.2)
    load_it = holder.load

    def fail():
        raise MemoryError("too little memory")

    holder.load = fail
    with running(holder) as world, world.client() as client:
        replaced(place, files[1])
        until(lambda: health(client)["status"] == "old")
        assert "too little memory" in health(client)["refused"]["why"]
        holder.load = load_it
        until(lambda: health(client)["status"] == "ok")
        assert health(client)["model"]["hash"] == hash_of(files[1])


def test_a_folder_in_the_place_of_the_run(files, place, holder):
    """As `fedmc train --overwrite` leaves it."""
    run, new = place.parent, place.parent.with_name("next")
    new.mkdir()
    replaced(new / "model.npz", files[1])
    with running(holder) as world, world.client() as client:
        run.rename(run.with_name("old"))
        time.sleep(0.2)
        assert client.post("/v1/recommend", json={"user": 7}).status_code == 200
        new.rename(run)
        until(lambda: health(client)["model"]["hash"] == hash_of(files[1]))
        assert health(client)["status"] == "ok"


def test_a_model_that_is_gone_goes_on(place, holder):
    with running(holder) as world, world.client() as client:
        place.unlink()
        time.sleep(0.2)
        assert health(client)["status"] == "ok"
        assert client.post("/v1/recommend", json={"user": 7}).status_code == 200


def test_a_file_that_changes_while_it_is_read(files, place, holder):
    sizes = iter(range(1, 100))

    def changing():
        with open(place, "ab") as file:
            file.write(b"x" * next(sizes))
        return holder_load()

    holder_load, holder.load = holder.load, changing
    with pytest.raises(DataError, match="changes while it is read"):
        holder._read()


def test_a_copy_that_keeps_time_and_size_is_noticed(place, holder):
    """As `rsync --inplace --times` or `cp --preserve` write it."""
    with np.load(place) as archive:
        content = dict(archive)
    content["titles"] = np.frombuffer(content["titles"].tobytes().replace(b"Film A", b"Film Z"), np.uint8)
    before, hash_before = place.stat(), holder.current.hash
    np.savez(place, **content)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = place.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    holder.check()
    assert holder.current.hash != hash_before
    assert holder.current.model.titles[0] == "Film Z of 1990"


# Connections.


def test_connections_send_at_once():
    with listen("127.0.0.1", 0, 5) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_peer_that_sends_its_header_slowly_is_cut(holder, monkeypatch):
    monkeypatch.setattr(connection, "HEADER", 0.5)
    with running(holder) as world, world.client() as client, world.connect() as slow:
        began = time.monotonic()
        with suppress(ConnectionError):
            for _ in range(100):
                slow.sendall(b"X")
                time.sleep(0.05)
        assert time.monotonic() - began < 4
        assert slow.recv(100) == b"" if not _is_reset(slow) else True
        assert health(client)["status"] == "ok"


def _is_reset(peer):
    try:
        return peer.recv(1, socket.MSG_PEEK) is None
    except ConnectionError:
        return True


def test_a_body_that_comes_slowly_is_refused(holder):
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    head += 'content-type: application/json\r\ncontent-length: 11\r\n\r\n{"user"'
    with running(holder, limits=Limits(arrive=0.3)) as world, world.connect() as slow:
        slow.sendall(head.encode())
        answer = answer_of(slow)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"too_slow" in answer


def answer_of(peer):
    """One answer with its body."""
    received = b""
    while not (header := re.search(rb"content-length: (\d+).*?\r\n\r\n", received, re.DOTALL)) or (
        len(received) < header.end() + int(header[1])
    ):
        received += (part := peer.recv(2**16))
        assert part, received
    return received


def head_of(*more):
    lines = ["POST /v1/recommend HTTP/1.1", "host: localhost", f"authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, "content-type: application/json", *more, "", ""]).encode()


def test_a_body_without_an_end_is_refused_and_cut(holder, monkeypatch):
    monkeypatch.setattr(connection, "HEADER", 0.5)
    with running(holder) as world, world.connect() as endless:
        endless.sendall(head_of(f"content-length: {2**17}").replace(b"authorization", b"x"))  # refused before it came
        sent = 0
        with suppress(ConnectionError):
            while sent < 2**17 - 1:
                endless.sendall(b"[")
                sent += 1
                time.sleep(0.01)
        assert sent < 500
        with world.client() as client:
            assert health(client)["status"] == "ok"


def test_chunks_of_a_body_are_not_read(holder):
    """Each takes as long as a kilobyte in one piece: 50,000 in one packet would hold up everybody for a second."""
    with running(holder) as world, world.connect() as peer:
        before = time.process_time()
        peer.sendall(head_of("transfer-encoding: chunked") + b"1\r\n[\r\n" * 40_000)
        answer = b""
        with suppress(ConnectionError):
            while part := peer.recv(2**16):
                answer += part
        assert time.process_time() - before < 0.3
        if answer:  # else it was cut while it was sending
            assert answer.startswith(b"HTTP/1.1 411 ")
        with world.connect() as small:
            small.sendall(head_of("transfer-encoding: chunked") + b'b\r\n{"user": 7}\r\n0\r\n\r\n')
            assert b"send it whole" in answer_of(small)


def test_a_peer_that_does_not_read_is_cut(holder, monkeypatch):
    monkeypatch.setattr(connection, "EXCHANGE", 0.5)
    monkeypatch.setattr(connection, "HEADER", 0.5)
    request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with running(holder) as world, world.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.settimeout(0.5)
        with suppress(OSError):
            for _ in range(3000):
                deaf.sendall(request)
        until(lambda: not world.uvicorn.server_state.connections, 10)
        with world.client() as client:
            assert health(client)["status"] == "ok"


def deaf_peer(world, requests):
    """A connection that sends and never reads."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    peer.settimeout(5)
    peer.connect(("127.0.0.1", world.port))
    peer.sendall(requests)
    return peer


PAGE = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_peer_that_does_not_read_its_last_answer_is_cut(holder, monkeypatch):
    """Closing a connection waits until the peer has read all."""
    monkeypatch.setattr(connection, "EXCHANGE", 0.5)
    monkeypatch.setattr(connection, "HEADER", 0.5)
    with running(holder) as world:
        there = world.uvicorn.server_state.connections
        last = PAGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        world.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)  # its connections have the same
        with deaf_peer(world, last):
            until(lambda: any(one.transport.is_closing() for one in there))
            until(lambda: not there, 10)
        world.uvicorn.config.timeout_keep_alive = 0.2
        with deaf_peer(world, PAGE):
            until(lambda: any(one.transport.is_closing() for one in there))
            until(lambda: not there, 10)


def test_strangers_that_do_not_read_keep_nobody_out(holder, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 5)
    with running(holder) as world:
        strangers = [deaf_peer(world, PAGE * 400) for _ in range(5)]
        until(lambda: sum(one.answering for one in world.uvicorn.server_state.connections) == 5)
        with world.client() as client:
            for _ in range(3):
                assert client.post("/v1/recommend", json={"user": 7}).status_code == 200
            strangers += [deaf_peer(world, PAGE) for _ in range(5)]
            (left,) = [one for one in world.uvicorn.server_state.connections if one.known]
            assert not left.ended
        for one in strangers:
            one.close()


def test_a_long_header_is_refused_even_in_one_piece(holder):
    with running(holder) as world, world.connect() as peer:
        peer.sendall(PAGE[:-2] + b"x: " + b"x" * (connection.HEADER_BYTES + 1) + b"\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 400 ")


def test_too_many_connections_end_the_one_that_is_idle_longest(holder, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 5)
    with running(holder) as world:
        idle = [world.connect() for _ in range(9)]
        with world.client() as client:
            assert health(client)["status"] == "ok"
        ended = sum(_is_closed(one) for one in idle)
        assert ended >= 4
        assert not _is_closed(idle[-1])
        for one in idle:
            one.close()


def test_connections_that_have_shown_the_token_stay(holder, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 5)
    with running(holder) as world, world.connect() as known:
        request = head_of("content-length: 11") + b'{"user": 7}'
        known.sendall(request)
        assert answer_of(known).startswith(b"HTTP/1.1 200 ")
        strangers = [world.connect() for _ in range(20)]
        time.sleep(0.2)
        known.sendall(request)
        assert answer_of(known).startswith(b"HTTP/1.1 200 ")
        for one in strangers:
            one.close()


def _is_closed(peer):
    peer.settimeout(0.1)
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_many_requests_on_one_connection(holder):
    one = f"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    one += 'content-type: application/json\r\ncontent-length: 11\r\n\r\n{"user": 7}'
    with running(holder) as world, world.connect() as peer:
        peer.sendall(one.encode() * 50)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 50:
            received += peer.recv(2**16)
        assert received.count(b"HTTP/1.1") == 50


def test_ipv6_and_tls(holder, tmp_path):
    authority = keys.make_authority(2)
    key, certificate = keys.make_server_certificate(authority, ["films.example.org"], 2)
    for name, content in (
        ("cert", keys.pem(certificate)),
        ("key", keys.private_pem(key)),
        ("ca", keys.pem(authority[1])),
    ):
        (tmp_path / f"{name}.pem").write_bytes(content)
    binding = Binding("::1" if socket.has_ipv6 else "127.0.0.1", 0, tmp_path / "cert.pem", tmp_path / "key.pem")
    with running(holder, binding=binding) as world:
        assert world.address.startswith("https://")
        trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        url = f"{world.address}/v1/health"
        named = {"sni_hostname": "localhost"}
        with httpx.Client(verify=trusted, trust_env=False) as client:
            request = client.build_request("GET", url, extensions=named)
            assert client.send(request).json()["status"] == "ok"


def test_without_a_certificate_there_is_no_tls(holder, tmp_path):
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(InputError, match="not a certificate and its key"):
        server.configuration(holder, Parts(Access(TOKEN)), Binding("127.0.0.1", 0, *[tmp_path / "x.pem"] * 2))


# The page.


def test_the_page_in_a_browser(holder, browser):
    asked, said = [], []
    with running(holder) as world:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{world.address}/")
        section = page.locator('section[data-path="/v1/recommend"]')
        section.locator("textarea").fill('{"user": 7, "n": 2}')
        section.locator("button").click()
        assert "401" in section.locator("pre").inner_text()
        page.fill("#token", TOKEN)
        section.locator("button").click()
        page.wait_for_function('document.querySelector("section[data-path=\'/v1/recommend\'] pre").className == ""')
        answer = section.locator("pre").inner_text()
        assert answer.startswith("200")
        assert len(json.loads(answer[4:])["items"]) == 2
        section.locator("textarea").fill('{"user": 7, "exclude": [9007199254740993]}')
        section.locator("button").click()
        section.locator("pre", has_text=re.compile(r"\[\s+9007199254740993\s+\]")).wait_for(timeout=5000)
        assert all(url.startswith(f"{world.address}/") or url.startswith("data:") for url in asked), asked
        assert [text for text in said if "401" not in text] == []
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.close()


# The command.


def refused(done, *said):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def test_what_the_command_refuses(place, tmp_path):
    run = place.parent
    refused(fedmc("serve", tmp_path / "none"), "no model file")
    refused(fedmc("serve", tmp_path), "holds no model.npz")
    refused(fedmc("serve", run, "--host", "0.0.0.0"), "not loopback", "--remote", "TLS")
    refused(fedmc("serve", run, "--host", "0.0.0.0", "--remote", "--no-token"), "--no-token is for loopback only")
    for name in ("https://films.example.org", "films.example.org:443", ""):
        refused(fedmc("serve", run, "--allow-host", name), "without scheme and port")
    refused(fedmc("serve", run, "--tls-cert", "x"), "both a certificate and its key")
    refused(fedmc("serve", run, "--host", "no.such.host.invalid", "--remote"), "cannot listen on no.such.host.invalid")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(fedmc("serve", run, "--port", port), f"cannot listen on 127.0.0.1:{port}", "--port")
    (run / "serve.token").write_text("a" * 30)
    os.chmod(run / "serve.token", 0o644)
    refused(fedmc("serve", run, "--port", 0), "can be read by others", "chmod 600")
    os.chmod(run / "serve.token", 0o600)
    (run / "model.npz").write_bytes(b"no model")
    refused(fedmc("serve", run, "--port", 0), "not a whole fedmc model file")


def test_a_reload_while_it_starts_does_not_end_it(place):
    """systemd takes the end by SIGHUP for a clean one, and would not start it again."""
    code = (
        "import os, signal, sys; from fedmc.cli import main; from fedmc.serving import server\n"
        "server.listen = lambda binding: (os.kill(os.getpid(), signal.SIGHUP), sys.exit(7))\n"
        "main(['serve', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", code, place.parent], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr


def test_without_the_extra_it_says_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; from fedmc.cli import main; main(['serve', 'run'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    refused(done, "pip install 'fedmc[serve]'")


def test_tokens(tmp_path):
    token = tokens.make_or_load(tmp_path / "token")
    assert tokens.make_or_load(tmp_path / "token") == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert tokens.same(token, token)
    assert not tokens.same(token[:-1], token)
    assert not tokens.same("\udcff", token)
    assert tokens.bearer("Bearer x") == "x"
    assert tokens.bearer("Basic x") == ""


def test_servers_that_start_together_share_a_token(tmp_path):
    """The second one may look while the first has made the file, and not written it yet."""
    path = tmp_path / "token"
    path.touch(0o600)
    writing = threading.Timer(0.1, path.write_text, ["a" * 30])
    writing.start()
    assert tokens.make_or_load(path) == "a" * 30
    writing.join()


def test_places_that_cannot_hold_a_token(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none" / "token")
    for name in ("pipe", "nowhere"):
        with pytest.raises(DataError, match=f"{name} is not a file"):
            tokens.make_or_load(tmp_path / name)


@contextmanager
def command(*words):
    """A process, its address, and its token."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmc", *map(str, words), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stderr.readline()
        address = re.search(r"ready: (http://127\.0\.0\.1:\d+)/", line)
        assert address, line + process.stderr.read()
        yield process, address[1], process.stderr.readline()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_the_process_reloads_and_stops_on_signals(files, place):
    with command("serve", place.parent) as (process, address, line):
        token = (place.parent / "serve.token").read_text().strip()
        assert stat.S_IMODE((place.parent / "serve.token").stat().st_mode) == 0o600
        assert token not in line  # this is no terminal
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:
            first = health(client)["model"]
            process.send_signal(signal.SIGHUP)
            until(lambda: health(client)["model"]["loaded"] != first["loaded"])
            assert health(client)["model"]["hash"] == first["hash"]
            replaced(place, files[1])
            until(lambda: health(client)["model"]["hash"] == hash_of(files[1]))
            statuses = []

            def ask():
                with suppress(httpx.ConnectError):
                    while True:
                        statuses.append(httpx.post(
                            f"{address}/v1/recommend", json={"user": 7}, trust_env=False,
                            headers={"authorization": f"Bearer {token}"},
                        ).status_code)  # fmt: skip

            asking = threading.Thread(target=ask)
            asking.start()
            until(lambda: len(statuses) > 20)
            process.terminate()
            assert process.wait(20) == 0
            asking.join(20)
        assert set(statuses) == {200}
        left = process.stderr.read()
        assert "Traceback" not in left
        assert "in use" in left


@pytest.mark.slow
def test_a_node_serves_its_model(tmp_path, files):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.cli.federation_demo import NAMES, set_up
    from fedmc.federation.node import models
    from fedmc.federation.setup.layout import load_node

    set_up(tmp_path / "made", planted())
    config = load_node(tmp_path / "made" / NAMES[0])
    refused(fedmc("node", "serve", config.folder), "there is no model in", "at the end of a training run")
    for run, path in (("one", files[0]), ("two", files[1])):
        assert models.keep(config, run, load(path))
    second, expected = load(files[1]), load(files[0])
    with command("node", "serve", config.folder) as (process, address, _):
        token = (config.folder / "serve.token").read_text().strip()
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:

            def best():
                found = client.post("/v1/recommend", json={"user": 7, "n": 3}).raise_for_status().json()
                return [row["score"] for row in found["items"]]

            assert best() == second.recommend(7, 3)[1].tolist()
            models.rollback(config)
            until(lambda: best() == expected.recommend(7, 3)[1].tolist())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert np.isfinite(expected.V).all()


def test_access_may_be_open_on_loopback(holder):
    with running(holder, Access(None)) as world:
        done = httpx.post(f"{world.address}/v1/recommend", json={"user": 7}, trust_env=False)
        assert done.status_code == 200


def test_where_it_may_listen():
    server.check_binding(Binding("127.0.0.1", 0), False, False)
    server.check_binding(Binding("::1", 0), False, False)
    server.check_binding(Binding("localhost", 0), False, True)
    server.check_binding(Binding("0.0.0.0", 0), True, True)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        with pytest.raises(InputError, match="--remote"):
            server.check_binding(Binding(host, 0), False, True)


def test_the_documented_service_can_write_what_it_must():
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    cache = re.search(r"^    CacheDirectory=(\w+)$", page, re.M)[1]
    assert f"    Environment=NUMBA_CACHE_DIR=/var/cache/{cache}\n" in page  # systemd makes it below /var/cache
    assert "    ReadWritePaths=/srv/fedmc/run\n" in page  # for the token beside the model


@pytest.mark.slow
def test_the_documentation(tmp_path):
    """The block of docs/how-to/serve.md as it stands, on a free port."""
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-e", "-c", block.replace("8000", str(port))], cwd=tmp_path, capture_output=True, text=True,
        timeout=240, env=os.environ | {"PATH": path, "no_proxy": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"model"')]
    assert [len(one.get("items", ())) for one in answers] == [3, 0, 3, 3]
    assert answers[1]["predictions"][0]["low"] < answers[1]["predictions"][0]["high"]
    assert len(answers[2]["predictions"]) == 1
    for name in ("/v1/recommend", "/v1/predict", "/v1/fold-in", "/v1/similar", "/v1/find", "/v1/health"):
        assert name in page
    for code, status in STATUS.items():
        assert code == "internal" or re.search(rf"^\| [\d, ]*{status}[\d, ]* \|.*`{code}`", page, re.M), code
