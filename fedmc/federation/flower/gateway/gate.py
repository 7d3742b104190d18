"""What becomes of one call: who sent it, may it, and what the SuperLink says. The order of the checks matters:
nothing is parsed, kept or forwarded for a peer that has not shown a signature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import NamedTuple, TypeVar

import h11
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectResponse
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from fedmc.federation.flower.gateway import calls
from fedmc.federation.flower.gateway.auth import Member, Members, authenticate
from fedmc.federation.flower.gateway.bodies import Bodies
from fedmc.federation.flower.gateway.calls import PULL_MESSAGES, PUSH_OBJECT
from fedmc.federation.flower.gateway.doorbell import Doorbell
from fedmc.federation.flower.gateway.forward import PROTOBUF, Backend, Reply
from fedmc.federation.flower.gateway.http import GoneError, Headers, Http, Refusal
from fedmc.federation.flower.gateway.limits import Limits
from fedmc.federation.flower.gateway.objects import Objects
from fedmc.federation.flower.gateway.pace import Pace
from fedmc.federation.flower.gateway.polls import Polls
from fedmc.federation.presence import Presence

WAIT = b"fedmc-wait"  # seconds that a node lets its poll be held; only fedmc's nodes send it
T = TypeVar("T", bound=Proto)
STREAMED = ("pull-object", "get-fab")  # calls whose replies may be large


class Call(NamedTuple):
    """A call whose header was accepted."""

    name: str
    member: Member
    headers: Headers
    size: int  # of its body


class Gate:
    def __init__(self, members: Members, backend: Backend, limits: Limits, presence: Presence | None = None) -> None:
        self.members, self.backend, self.limits = members, backend, limits
        self.presence = Presence() if presence is None else presence
        self.objects, self.polls, self.bodies = Objects(), Polls(limits), Bodies(limits)
        self.pace = Pace(limits)
        self.nodes = {member.node for member in members.values()}
        self.bell = Doorbell(
            lambda node, count: self.polls.announce(node, count) if node in self.nodes else None, self.presence.as_json
        )

    def admit(self, members: Members) -> None:
        """From now on, admit these members and no others."""
        self.members, self.nodes = members, {member.node for member in members.values()}

    def accept(self, request: h11.Request) -> Call:
        """Decide by the header alone."""
        if request.http_version not in (b"1.0", b"1.1"):
            raise Refusal(400, "another version of HTTP")
        name = calls.call_of(request.method, request.target)
        headers = list(request.headers)
        size = declared_size(headers)
        member = authenticate(headers, self.members)
        self.presence.hear(member.name)
        most = calls.max_bytes(name, self.limits)
        if size > most:
            raise Refusal(413, f"{member.name} declares {size} bytes for {name}, at most {most} are carried")
        self.pace.take(member, name)
        return Call(name, member, headers, size)

    async def answer(self, call: Call, http: Http) -> None:
        """Read the body, check it, forward it, and send the reply back; of large bodies a key sends a few at a time."""
        if call.size <= self.limits.small_bytes:
            await self._answer(call, http)
        else:
            async with self.bodies.turn(call.member.pem, call.size):
                await self._answer(call, http)

    async def _answer(self, call: Call, http: Http) -> None:
        if call.name == PUSH_OBJECT:
            await self._push_object(call, http)
            return
        body = await http.whole_body(call.size)
        message = calls.checked(call.name, body, call.member, self.objects)
        if call.name == PULL_MESSAGES:
            await self._poll(call, http, body)
            return
        async with self._forward(call, body) as reply:
            if call.name in STREAMED:
                await _pass_on(reply, http)
                return
            said = await self._whole(reply)
        if reply.status == 200 and isinstance(message, PushMessagesRequest):
            self._pushed(call.member.node, message, said)
        elif reply.status == 200 and call.name == "activate-node":
            self.bell.activated(call.member.node)
        await http.answer(reply.status, reply.headers, said)

    def _forward(self, call: Call, body: bytes | AsyncIterator[bytes]) -> AbstractAsyncContextManager[Reply]:
        self.bell.counts[call.name] += 1
        return self.backend.call(call.name, call.headers, body, call.size)

    async def _whole(self, reply: Reply) -> bytes:
        said = await reply.whole(self.limits.delivered_bytes)
        if said is None:
            raise Refusal(502, f"the SuperLink's reply has more than {self.limits.delivered_bytes} bytes")
        return said

    def _pushed(self, node: int, message: PushMessagesRequest, said: bytes) -> None:
        pushed = message.messages_list[0]
        missing = _parsed(PushMessagesResponse, said).objects_to_push
        complete = self.objects.announce(node, pushed.metadata.message_id, missing)
        if complete or calls.is_inline(pushed):  # its objects, if any follow, say nothing more
            self.bell.replied(node)

    async def _push_object(self, call: Call, http: Http) -> None:
        pieces, start = http.body(call.size), b""
        async for piece in pieces:
            start += piece
            if len(start) >= calls.HEAD:
                break
        head = calls.object_head(start, call.size)
        calls.check_object(head, call.member, self.objects, self.limits)
        async with self._forward(call, _checked_pieces(start, pieces, head.end)) as reply:
            said = await self._whole(reply)
        node = call.member.node
        stored = reply.status == 200 and _parsed(PushObjectResponse, said).stored
        if stored and self.objects.pushed(node, head.object_id, head.size):
            self.bell.replied(node)
        await http.answer(reply.status, reply.headers, said)

    async def _poll(self, call: Call, http: Http, body: bytes) -> None:
        """Hold the poll until there is a message, as long as the node waits for it."""
        seconds = wait_of(call.headers)
        self.bell.speaks_short(call.member.node, seconds is not None)
        self.presence.stays(call.member.name, seconds is not None)
        pull = asyncio.ensure_future(self._pull(call, body, min(seconds or 0.0, self.limits.hold)))
        gone = asyncio.ensure_future(http.gone())
        try:
            await asyncio.wait({pull, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not pull.done():  # a message must not be pulled for a node that is not there any more
                raise GoneError
        finally:
            for task in (pull, gone):
                task.cancel()
            await asyncio.gather(pull, gone, return_exceptions=True)
        status, headers, said = pull.result()
        await http.answer(status, headers, said)

    async def _pull(self, call: Call, body: bytes, seconds: float) -> tuple[int, Headers, bytes]:
        node, loop = call.member.node, asyncio.get_running_loop()
        until = loop.time() + seconds
        while await self.polls.ready(node, until):
            moment = self.polls.asking(node)
            async with self._forward(call, body) as reply:
                said = await self._whole(reply)
            found = calls.delivered(said) if reply.status == 200 else []
            self.objects.deliver(node, found)
            self.polls.answered(node, moment, bool(found))
            if found or reply.status != 200:
                return reply.status, reply.headers, said
        return 200, PROTOBUF, b""


def declared_size(headers: Headers) -> int:
    """The length of the body; a Refusal for framing that the gateway does not speak."""
    named = dict(headers)
    if b"transfer-encoding" in named:
        raise Refusal(411, "a body without a declared length")
    if b"upgrade" in named:
        raise Refusal(400, "an upgrade to another protocol")
    length = named.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 12:
        raise Refusal(400, "a length that is not one")
    return int(length)


def wait_of(headers: Headers) -> float | None:
    """How long a node lets its poll be held; None for a stock SuperNode, which does not say."""
    said = dict(headers).get(WAIT)
    if said is None:
        return None
    return float(said) if said.isdigit() and len(said) <= 4 else 0.0


async def _pass_on(reply: Reply, http: Http) -> None:
    sized = [] if reply.size is None else [(b"content-length", b"%d" % reply.size)]
    await http.start(reply.status, [*reply.headers, *sized])
    async for piece in reply.pieces:
        await http.send(piece)
    await http.end()


async def _checked_pieces(start: bytes, rest: AsyncIterator[bytes], end: int) -> AsyncIterator[bytes]:
    """A pushed object as it came; what follows its content is checked before it passes."""
    tail, place = b"", 0

    def content(piece: bytes) -> bytes:
        nonlocal tail, place
        inside = max(0, min(len(piece), end - place))
        tail, place = tail + piece[inside:], place + len(piece)
        return piece[:inside]

    yield content(start)
    async for piece in rest:
        if passed := content(piece):
            yield passed
    calls.check_tail(tail)
    if tail:
        yield tail


def _parsed(kind: type[T], said: bytes) -> T:
    """The SuperLink's reply; an empty one, if it is of another format."""
    parsed: T = kind()
    with suppress(DecodeError):
        parsed.ParseFromString(said)
    return parsed
