"""`fedmc data get` against a server on loopback that breaks off, serves garbage and serves something else."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
import zipfile

import pytest
from click.testing import CliRunner

from fedmc.cli import app
from fedmc.data import downloads
from fedmc.data.downloads import Named
from fedmc.data.loading import read_source
from fedmc.errors import DataError, InputError


def archive():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr(
            "ml-toy/ratings.dat", "".join(f"{u}::{i}::3::978300760\n" for u in range(40) for i in range(60))
        )
        zipped.writestr("ml-toy/README", "A toy.\n" * 2000)
    return buffer.getvalue()


WHOLE = archive()


class Handler(http.server.BaseHTTPRequestHandler):
    """/whole; /breaks: half, then gone, with ranges; /breaks-no-range; /garbage; /error; /short."""

    protocol_version = "HTTP/1.1"
    asked: list[str | None] = []

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        start = self.headers.get("Range")
        Handler.asked.append(start)
        first = int(start.removeprefix("bytes=").rstrip("-")) if start else 0
        if self.path == "/error":
            self.send_error(503)
            return
        if self.path == "/garbage":
            self.answer(200, b"<html>not found</html>")
        elif self.path == "/breaks-no-range":
            self.answer(200, WHOLE, len(WHOLE) // 2 if len(Handler.asked) == 1 else None)
        elif first >= len(WHOLE):
            self.send_error(416)
        else:
            body = WHOLE[first:]
            half = len(body) // 2 if self.path == "/breaks" and len(Handler.asked) < 3 else None
            self.answer(206 if first else 200, body, half)

    def answer(self, code, body, cut=None):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def server():
    Handler.asked = []
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()
    thread.join()


MD5 = hashlib.md5(WHOLE).hexdigest()


def named(url, md5=MD5):
    return Named("ml-toy", url, md5, "2,400 ratings", "Do no harm.")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_download(server, tmp_path):
    seen = []
    place = downloads.get(named(f"{server}/whole"), tmp_path, lambda done, total: seen.append((done, total)))
    assert len(read_source(place)) == 2400
    assert names(tmp_path) == ["ml-toy"]
    assert seen[-1] == (len(WHOLE), len(WHOLE))
    downloads.get(named(f"{server}/error"), tmp_path)  # it is there: nothing is asked
    assert len(Handler.asked) == 1


@pytest.mark.parametrize("path", ["/breaks", "/breaks-no-range"])
def test_a_broken_download_goes_on(server, tmp_path, path):
    tries = 0
    while True:
        try:
            tries += 1
            place = downloads.get(named(server + path), tmp_path)
            break
        except DataError as error:
            assert "broke off" in str(error)
            assert "goes on from there" in str(error)
            assert names(tmp_path) == ["ml-toy.zip.part"]
            assert tries < 5
    assert len(read_source(place)) == 2400
    assert names(tmp_path) == ["ml-toy"]
    assert tries == (3 if path == "/breaks" else 2)
    assert Handler.asked[1] == f"bytes={len(WHOLE) // 2}-"


def test_a_whole_file_that_was_not_unpacked_yet(server, tmp_path):
    (tmp_path / "ml-toy.zip.part").write_bytes(WHOLE)
    assert len(read_source(downloads.get(named(f"{server}/whole"), tmp_path))) == 2400


@pytest.mark.parametrize("path", ["/garbage", "/whole"])
def test_the_wrong_file_is_removed(server, tmp_path, path):
    with pytest.raises(DataError, match=r"checksum [0-9a-f]{32}, expected 0{32}; it was removed"):
        downloads.get(named(server + path, "0" * 32), tmp_path)
    assert names(tmp_path) == []


def test_garbage_without_a_checksum(server, tmp_path):
    with pytest.raises(DataError, match="whole zip"):
        downloads.get(named(f"{server}/garbage", None), tmp_path)
    assert names(tmp_path) == []


def test_errors_of_the_server(server, tmp_path):
    with pytest.raises(DataError, match="answered 503"):
        downloads.get(named(f"{server}/error"), tmp_path)
    with pytest.raises(DataError, match="broke off"):
        downloads.get(named("http://127.0.0.1:1/x"), tmp_path)
    assert names(tmp_path) == []


def test_the_command(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMC_DATA", str(tmp_path))
    monkeypatch.setitem(downloads.SETS, "ml-toy", named(f"{server}/whole"))
    runner = CliRunner()
    refused = runner.invoke(app, ["data", "get", "ml-toy"], input="n\n")
    assert isinstance(refused.exception, InputError)
    assert "Do no harm." in refused.output
    assert Handler.asked == []
    assert runner.invoke(app, ["data", "get", "ml-toy", "--accept-licence"]).exit_code == 0
    assert "here" in runner.invoke(app, ["data", "list"]).output.split("ml-toy")[1].split("\n")[0]
    assert str(tmp_path) in runner.invoke(app, ["data", "info", "ml-toy"]).output
    assert isinstance(runner.invoke(app, ["data", "get", "ml-9m"]).exception, InputError)
    assert "no longer distributed" in str(runner.invoke(app, ["data", "get", "netflix"]).exception)


def test_a_named_set_that_is_not_here(tmp_path, monkeypatch):
    from fedmc.data.datasets import load_source

    monkeypatch.setenv("FEDMC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="`fedmc data get ml-1m` fetches it"):
        load_source("ml-1m")
