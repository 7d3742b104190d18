"""What every request passes before it is looked at: its host, its token, its size and its pace. ASGI middleware."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmc.serving.connection import KNOWN
from fedmc.serving.problems import problem
from fedmc.serving.schema import Code
from fedmc.web.headers import NOTHING, SAFE
from fedmc.web.hosts import host_of, is_address
from fedmc.web.token import bearer, same

OPEN = ("/", "/v1/health", "/v1/openapi.json")  # need no token: they say nothing about users
ONCE = ("host", "authorization", "content-type")
HEADERS = [(name.encode(), value.encode()) for name, value in SAFE]
POLICY = b"content-security-policy"

log = logging.getLogger("fedmc.serve")


@dataclass(frozen=True)
class Limits:
    """What requests may take; bytes, counts and seconds."""

    body: int = 2**18
    requests: int = 256  # that are answered or wait at a time
    arrive: float = 10.0  # for a body
    answer: float = 30.0  # for an answer, with the wait for its turn


class Access(NamedTuple):
    """Who may ask."""

    token: str | None  # None: everybody who reaches the server
    hosts: frozenset[str] = frozenset({"localhost"})  # names in Host headers, besides addresses


class _Refusal(Exception):  # noqa: N818
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Guard:
    def __init__(self, app: ASGIApp, access: Access, limits: Limits = Limits()) -> None:
        self.app, self.access, self.limits = app, access, limits
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        outcome = _Outcome(send)
        try:
            self._check(scope)
            body = await self._body(scope, receive)
            await self._answer(scope, _replayed(body, receive), outcome)
        except _Refusal as refusal:
            await problem(refusal.code, str(refusal))(scope, receive, outcome.send)
        except Exception:
            log.exception("a request failed")
            if not outcome.begun:
                await problem("internal", "the request failed: see the server's log")(scope, receive, outcome.send)
            elif not outcome.ended:
                raise

    def _check(self, scope: Scope) -> None:
        names = Counter(name for name, _ in scope["headers"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if "transfer-encoding" in headers:
            raise _Refusal("no_length", "the body comes in chunks: send it whole, with a Content-Length")
        for name in ONCE:
            if names[name.encode()] > 1:
                raise _Refusal("bad_request", f"the header {name} comes {names[name.encode()]} times: send it once")
        host = host_of(headers.get("host", ""))
        if host not in self.access.hosts and not is_address(host):
            raise _Refusal("wrong_host", f"this server is not called {host[:100]!r}: start it with --allow-host NAME")
        token = self.access.token if scope["path"] not in OPEN else None
        if token is not None and not same(bearer(headers.get("authorization", "")), token):
            raise _Refusal("unauthorized", "the token is missing or wrong: send Authorization: Bearer TOKEN")
        scope.setdefault("state", {})[KNOWN] = scope["path"] not in OPEN
        if scope["query_string"]:
            raise _Refusal("bad_request", "there are no parameters in addresses here: send them as JSON in the body")
        if scope["method"] == "POST":
            _check_body(headers, self.limits.body)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, within a size and a time; nothing if the request has none."""
        if scope["method"] != "POST":
            return b""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.arrive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refusal("bad_request", "the body did not arrive")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limits.body:
                        raise _too_large(self.limits.body)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise _Refusal("too_slow", f"the body took more than {self.limits.arrive:g} s") from None

    async def _answer(self, scope: Scope, receive: Receive, outcome: _Outcome) -> None:
        if self.active >= self.limits.requests:
            raise _Refusal("too_busy", f"{self.active} requests are being answered: try again in a second")
        self.active += 1
        try:
            async with asyncio.timeout(self.limits.answer):
                await self.app(scope, receive, outcome.send)
        except TimeoutError:
            if outcome.begun:
                raise
            raise _Refusal("too_busy", f"there was no answer within {self.limits.answer:g} s: ask for less") from None
        finally:
            self.active -= 1


class _Outcome:
    """Sends an answer with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun, self.ended = send, False, False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = [*message["headers"], *HEADERS]
            if not any(name == POLICY for name, _ in own):
                own.append((POLICY, NOTHING.encode()))
            message = {**message, "headers": own}
        self.ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)


def _check_body(headers: dict[str, str], most: int) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _Refusal("not_json", f"the body is {kind[:100]!r}: send Content-Type: application/json")
    coding = headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise _Refusal("not_json", f"the body has the encoding {coding[:100]!r}: send it as it is")
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
        raise _too_large(most)


def _too_large(most: int) -> _Refusal:
    return _Refusal("too_large", f"the body has more than {most:,} bytes: ask for less at a time")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, and then what comes."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay
