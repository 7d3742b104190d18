"""A served model for tests: the application called directly, or by uvicorn on loopback in a thread."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import unquote

import httpx
import numpy as np
import uvicorn

from fedmc import FedMC, Ratings, load
from fedmc.serving import server
from fedmc.serving.api import Parts, make
from fedmc.serving.guard import Access, Limits
from fedmc.serving.holder import Holder, Loaded
from fedmc.serving.server import Binding
from tests.conftest import planted

TOKEN = "a-token-of-more-than-20-characters"
HOST = "127.0.0.1:8000"
ACCESS, LIMITS, ANYWHERE = Access(TOKEN), Limits(), Binding("127.0.0.1", 0)


def titled_model(seed=0):
    """A Bayesian model of 40 users and 15 items with whole numbers as ids and titles; the last one has no title."""
    model = FedMC(rank=3, clients=3, rounds=5, seed=seed).fit(planted()).model_
    titles = [f"Film {chr(65 + k)} of {1990 + k}" for k in range(len(model.items) - 1)]
    return replace(model, titles=np.array([*titles, ""]))


def event_model(preset="implicit"):
    """A model of events whose ids are texts."""
    rng = np.random.default_rng(1)
    pairs = np.unique(rng.integers(0, [30, 12], (200, 2)), axis=0)
    users, items = ([f"{name}{number}" for number in pairs[:, k]] for k, name in enumerate(("u", "i")))
    events = Ratings.from_arrays(users, items, np.ones(len(pairs)))
    return FedMC(rank=3, preset=preset, feedback="implicit", clients=3, rounds=3).fit(events).model_


def holder_of(model, path, **more):
    model.save(path)
    return Holder(path, lambda: Loaded(load(path), **more), "a-run")


class Sent(NamedTuple):
    """A request, as it is written on the wire."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def post(path, body, token=TOKEN, **headers):
    """A request as it should be."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"host": HOST, "authorization": f"Bearer {token}", "content-type": "application/json"}
    return Sent("POST", path, tuple({**usual, **headers}.items()), content)


def get(path, **headers):
    return Sent("GET", path, tuple({"host": HOST, **headers}.items()))


class Direct:
    """The application without a network between."""

    def __init__(self, holder, access=ACCESS, limits=LIMITS):
        self.app = make(holder, Parts(access, limits))
        self.loop = asyncio.new_event_loop()

    def close(self):
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def ask(self, request):
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(request), 20))

    def post(self, path, body, **headers):
        return self.ask(post(path, body, **headers))

    async def _ask(self, request):
        raw, _, query = request.target.encode("latin-1").partition(b"?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "path": unquote(raw.decode("latin-1")), "raw_path": raw,
            "query_string": query, "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
        }  # fmt: skip
        parts = [request.body[: len(request.body) // 2], request.body[len(request.body) // 2 :]]
        messages, status, headers, body = [], 0, {}, b""

        async def receive():
            if not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message):
            messages.append(message)

        await self.app(scope, receive, send)
        for message in messages:
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
            body += message.get("body", b"")
        return Got(status, headers, body)


class Running:
    """A real server in a thread of this process."""

    def __init__(self, holder, parts, binding):
        self.holder, self.listener = holder, server.listen(binding)
        self.port = self.listener.getsockname()[1]
        self.address = server.address(binding, self.listener).rstrip("/")
        self.uvicorn = uvicorn.Server(server.configuration(holder, parts, binding))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.uvicorn.serve([self.listener])), daemon=True)

    def client(self, **more):
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=self.address, headers=headers, trust_env=False, timeout=20, **more)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


@contextmanager
def running(holder, access=ACCESS, limits=LIMITS, look=0.05, binding=ANYWHERE):
    ready = threading.Event()
    found = Running(holder, Parts(access, limits, look, on_ready=ready.set), binding)
    found.thread.start()
    try:
        assert ready.wait(20)
        yield found
    finally:
        found.uvicorn.should_exit = True
        found.thread.join(20)
        found.listener.close()
        assert not found.thread.is_alive()


def replaced(path, content):
    """Put another file in the place of a model, as `Model.save` does."""
    partial = path.with_suffix(".new")
    shutil.copy(content, partial) if not isinstance(content, bytes) else partial.write_bytes(content)
    partial.replace(path)
