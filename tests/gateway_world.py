"""A gateway in a process of its own, between a stub of the SuperLink and peers that behave as a test wants."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedmc.federation.flower.superlink import free_port
from fedmc.federation.setup import founding, keys

NODES = {"north": 1001, "south": 1002, "east": 1003}
RUN = 77


class StubSuperLink:
    """Answers every call of the Fleet API as a test says, and remembers what it was sent."""

    def __init__(self, folder: Path) -> None:
        self.port, self.answers, self.calls, self.received = free_port(), {}, [], 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        assert self._ready.wait(20)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                name, left, kept = head[0].split()[1].rpartition("/")[2], int(headers["content-length"]), b""
                while left:
                    piece = await reader.read(min(left, 65536))
                    if not piece:
                        return  # the call broke off
                    left, self.received = left - len(piece), self.received + len(piece)
                    kept += piece[: max(0, 4096 - len(kept))]
                self.calls.append((name, headers, kept))
                answer = self.answers.get(name, b"")
                answer = answer(kept) if callable(answer) else answer
                status, body = answer if isinstance(answer, tuple) else (200, answer)
                kind = "content-type: application/protobuf"
                writer.write(f"HTTP/1.1 {status} x\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)


class GatewayWorld:
    def __init__(self, folder: Path, **limits) -> None:
        address = founding.Address("127.0.0.1", free_port(), "127.0.0.1", 0)
        founding.init(folder / "made", list(NODES), address)
        self.server, self.port = folder / "made" / "server", address.port
        self.keys = {name: keys.load_node_keys(folder / "made" / name / "node.key") for name in NODES}
        (self.server / "nodes.json").write_text(json.dumps(NODES))
        self.link = StubSuperLink(self.server)
        self.log = folder / "gateway.log"
        self.start(limits)
        self.context = ssl.create_default_context(cafile=str(folder / "made" / "north" / "ca.crt"))

    def start(self, limits) -> None:
        command = [sys.executable, Path(__file__).parent / "gateway_process.py", self.server, self.link.port]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*map(str, command), json.dumps(limits)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        if self.process.stdout.readline().strip() != "ready":
            self.end()
            raise AssertionError(self.log.read_text())

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.link.end()

    @property
    def home(self) -> Path:
        return self.server.resolve() / "flower"

    def rss(self) -> float:
        """Megabytes of the gateway's process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    # --- peers

    def connect(self, receive: int = 0) -> ssl.SSLSocket:
        """A TLS connection; `receive` bytes are all that the kernel takes in for a peer that does not read."""
        plain = socket.socket()
        if receive:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        plain.settimeout(20)
        plain.connect(("127.0.0.1", self.port))
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1")

    def signed(self, name: str = "north", *, shift: float = 0.0, signer: str | None = None) -> dict[str, str]:
        """The headers by which a node shows its key; `shift` seconds off, or signed by another."""
        stamp = (datetime.now(UTC) + timedelta(seconds=shift)).isoformat()
        signature = sign_message(self.keys[signer or name][0], stamp.encode())
        shown = b64encode(public_key_to_bytes(self.keys[name][1])).decode()
        return {"flwr-public-key": shown, "flwr-timestamp": stamp, "flwr-signature": b64encode(signature).decode()}

    def call(self, name: str, body: bytes, headers: dict[str, str] | None = None, sock=None) -> tuple[int, bytes]:
        """One call on a connection of its own, or on `sock`: the status and the body of the answer."""
        mine = self.connect() if sock is None else sock
        try:
            mine.sendall(head(name, len(body), self.signed() if headers is None else headers) + body)
            return answer_of(mine)
        finally:
            if sock is None:
                mine.close()

    def poll(self, name: str = "north", wait: int | None = None, sock=None) -> tuple[int, bytes]:
        headers = self.signed(name) | ({} if wait is None else {"fedmc-wait": str(wait)})
        body = PullMessagesRequest(node=Node(node_id=NODES[name])).SerializeToString()
        return self.call("pull-messages", body, headers, sock)


def head(name: str, size: int, headers: dict[str, str], method: str = "POST") -> bytes:
    lines = [f"{method} /v1/fleet/{name} HTTP/1.1", "host: gateway", "content-type: application/protobuf"]
    lines += [f"content-length: {size}", *(f"{key}: {value}" for key, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def answer_of(sock) -> tuple[int, bytes]:
    """(status, body) of an HTTP answer; (0, b"") if the gateway hung up without one."""
    data = b""
    with suppress(ConnectionError, ssl.SSLError):
        while b"\r\n\r\n" not in data:
            piece = sock.recv(65536)
            if not piece:
                break
            data += piece
    start, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return 0, b""
    lines = start.decode("latin-1").lower().split("\r\n")
    size = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
    with suppress(ConnectionError, ssl.SSLError):
        while len(body) < size and (piece := sock.recv(65536)):
            body += piece
    return int(lines[0].split()[1]), body


def reply_of(node: int, **changes) -> PushMessagesRequest:
    """An honest reply of a node, but for these changes of its metadata."""
    data = {"run_id": RUN, "message_id": "a" * 64, "src_node_id": node, "dst_node_id": 1, "ttl": 100.0,
            "reply_to_message_id": "b" * 64, "message_type": "query", "created_at": time.time()}  # fmt: skip
    message = Message(metadata=Metadata(**data | changes))
    message.content.SetInParent()
    tree = ObjectTree(object_id="a" * 64, children=[ObjectTree(object_id="c" * 64)])
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[message], message_object_trees=[tree])


def push_of(node: int, name: str, content: bytes, session: str = "s") -> bytes:
    """The bytes of a pushed object."""
    made = PushObjectRequest(
        node=Node(node_id=node), run_id=RUN, object_id=name, object_content=content, session_id=session
    )
    return made.SerializeToString(deterministic=True)


def waited_for(condition, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False
