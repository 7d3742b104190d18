"""The gateway's process: it listens, and serves each connection in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedmc.errors import InputError, reason
from fedmc.federation.flower.gateway.admission import Admission, Visitor
from fedmc.federation.flower.gateway.auth import load_members
from fedmc.federation.flower.gateway.forward import DownError, SuperLink
from fedmc.federation.flower.gateway.gate import Gate
from fedmc.federation.flower.gateway.http import GoneError, Http, Refusal
from fedmc.federation.flower.gateway.limits import Limits, allow_files
from fedmc.federation.flower.gateway.renewals import renewals
from fedmc.federation.flower.gateway.sparing import SparingLog
from fedmc.federation.flower.gateway.stream import Stream, server_context
from fedmc.federation.presence import Presence
from fedmc.federation.setup.layout import ServerConfig
from fedmc.web.listening import listen

LIMITS = Limits()
BACKLOG = 1024  # connections that the kernel keeps until we accept them
FULL = 0.1  # seconds to wait when there are no files left

log = logging.getLogger("fedmc.gateway")


class Gateway:
    def __init__(self, gate: Gate, context: ssl.SSLContext, limits: Limits) -> None:
        self.gate, self.context, self.limits = gate, context, limits
        self.admission, self.log = Admission(limits), SparingLog(log, limits.log_lines)
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending = False

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # no files left, or the peer hung up already
                self.log.warning("gateway", f"cannot accept a connection: {error}")
                await asyncio.sleep(FULL)
                continue
            task = asyncio.create_task(self._serve(sock, str(address[0])))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _serve(self, sock: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        stream, visitor = Stream(sock, self.context), self.admission.enter(address, task)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # fails on macOS if the peer hung up already
            async with asyncio.timeout(self.limits.handshake):
                await stream.handshake()
            await self._converse(Http(stream, self.limits), visitor)
        except (OSError, ssl.SSLError, TimeoutError, GoneError, asyncio.CancelledError):
            pass  # it hung up, was too slow, or was dismissed
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}"
            self.log.warning("gateway", f"a connection failed: {reason(error)} ({where})")
        finally:
            self.admission.leave(visitor)
            self._count(visitor)
            sock.close()

    async def _converse(self, http: Http, visitor: Visitor) -> None:
        """One request after the other, until the peer or a limit ends it."""
        while True:
            try:
                known = visitor.key is not None
                request = await http.request(self.limits.idle if known else self.limits.header)
                call = self.gate.accept(request)
                self.admission.prove(visitor, call.member.pem)
                self._count(visitor)
                visitor.busy = True
                await self.gate.answer(call, http)
                visitor.busy = False
            except Refusal as refusal:
                self.log.warning(self._subject(visitor), f"{refusal.why} ({visitor.address}, {refusal.status})")
                await http.refuse(refusal.status)
                return
            except DownError as error:
                self.log.warning("gateway", str(error))
                await http.refuse(503)
                return
            if self.ending or not http.reusable:
                await http.stream.close()
                return

    def _count(self, visitor: Visitor) -> None:
        """Note how many connections the visitor's organisation has."""
        name = self._names.get(visitor.key or b"")
        if name is not None and visitor.key is not None:
            self.gate.presence.connected(name, len(self.admission.members.get(visitor.key, ())))

    def _subject(self, visitor: Visitor) -> str:
        """Whom a line of the log is about."""
        return "a stranger" if visitor.key is None else self._names.get(visitor.key, "a former member")

    @property
    def _names(self) -> dict[bytes, str]:
        """Whose keys are known: members join and leave."""
        return {member.pem: member.name for member in self.gate.members.values()}

    async def end(self, seconds: float = 3.0) -> None:
        """End held polls, let calls finish for so long, then hang up."""
        self.ending = True
        self.gate.polls.end()
        for visitor in self.admission.everybody():
            if not visitor.busy:
                visitor.dismiss()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def serve(
    config: ServerConfig,
    nodes: dict[str, int],
    control_port: int,
    ended: Callable[[], object],
    on_ready: Callable[[], None],
    limits: Limits = LIMITS,
    presence: Presence | None = None,
    register: Callable[[ServerConfig], dict[str, int]] | None = None,
) -> None:
    """Serve until a signal arrives, or until `ended`, which waits for the SuperLink's end in a thread, returns.

    `presence` is told when organisations call, and of their connections. With `register`, which registers new keys with
    Flower, members that join or leave and a renewed certificate are taken in at once.
    """
    members = load_members(config, nodes)
    files = allow_files(limits.files(len(members)))
    missing = limits.files(len(members)) - files
    if missing > 0:
        few = max(32, limits.strangers - missing)
        log.warning("only %s open files are allowed: at most %s connections without a signature are kept", files, few)
        limits = replace(limits, strangers=few, strangers_by_address=min(few, limits.strangers_by_address))
    context = server_context(config.path("server.pem"), config.path("server.key"))
    backend = SuperLink(f"https://127.0.0.1:{control_port}", config.path("ca.crt"))
    gateway = Gateway(Gate(members, backend, limits, presence), context, limits)
    watched = None if register is None else renewals(config, gateway.gate, context, register)
    asyncio.run(_run(gateway, config, ended, on_ready, watched))


async def _run(
    gateway: Gateway,
    config: ServerConfig,
    ended: Callable[[], object],
    on_ready: Callable[[], None],
    watched: Coroutine[None, None, None] | None = None,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def watch() -> None:
        ended()
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, daemon=True, name="superlink").start()
    listeners = await _bind(config.bind, config.port)
    await gateway.gate.bell.open(_home(config))
    accepting = [asyncio.create_task(gateway.listen(listener)) for listener in listeners]
    accepting += [] if watched is None else [asyncio.create_task(watched)]
    on_ready()
    await stop.wait()
    for task in accepting:
        task.cancel()
    await asyncio.gather(*accepting, return_exceptions=True)
    for listener in listeners:
        listener.close()
    await gateway.gate.bell.close()
    await gateway.end()
    await gateway.gate.backend.close()


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of this host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made = []
    for *_, address in dict.fromkeys(found):
        try:
            listener = listen(str(address[0]), int(address[1]), BACKLOG)
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port} (bind and port in config.toml): {error}") from None
        listener.setblocking(False)
        made.append(listener)
    return made


def _home(config: ServerConfig) -> Path:
    home = config.folder.resolve() / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    return home
