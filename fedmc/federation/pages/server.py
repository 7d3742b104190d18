"""The HTTP server of a page. It runs in a thread with a loop of its own, so that it holds up no gateway and no node.

GET /                        the page; it says nothing before its script shows the token
GET /healthz                 200 while the process is alive
GET /events                  the data, now and after each change (server-sent events); needs the token
GET /metrics                 the same for Prometheus; needs the token
GET /runs/NAME/report.html   a run's report, if there is one; needs the token, or a ticket of this report
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedmc.errors import InputError, reason
from fedmc.federation.pages import token as tokens
from fedmc.federation.pages.document import Document
from fedmc.federation.pages.feed import Feed, View
from fedmc.federation.pages.http import Exchange, Limits, Refusal, Request
from fedmc.web.headers import NOTHING
from fedmc.web.hosts import host_of, is_loopback
from fedmc.web.listening import listen

LOOPBACK = "127.0.0.1"
LIMITS = Limits()
RUN = re.compile(r"/runs/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/report\.html")
REPORT_BYTES = 64 * 2**20
# A report's own script may sort its tables, in an origin of its own: it reaches neither this page nor the token.
REPORT_POLICY = (
    f"{NOTHING}; sandbox allow-scripts; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

log = logging.getLogger("fedmc.page")


class Site(NamedTuple):
    """What is served."""

    document: Document
    look: Callable[[], View]
    token: str
    report: Callable[[str], Path | None] = lambda run: None  # the file of a run's report


@dataclass(eq=False)
class _Visit:
    task: asyncio.Task[None]
    watching: bool = False


class Pages:
    """Serves until `end`; `port` 0 takes a free one, which is in `port` after `start`."""

    def __init__(self, site: Site, port: int, host: str = LOOPBACK, limits: Limits = LIMITS) -> None:
        self.site, self.host, self.limits = site, host, limits
        self.port = port
        self.feed: Feed | None = None
        self.visits: dict[_Visit, None] = {}  # the oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop, self._ready = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="page")

    def start(self) -> str:
        """Listen; returns the address."""
        try:
            self._listener = listen(self.host, self.port, 256)
        except (OSError, OverflowError) as error:
            cure = "choose another with --page PORT or page_port in config.toml, or --no-page"
            raise InputError(f"the page cannot listen on {self.host}:{self.port}: {error}; {cure}") from None
        self.port = self._listener.getsockname()[1]
        self._thread.start()
        self._ready.wait()
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def end(self) -> None:
        """Hang up, and wait for the thread."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.feed = Feed(self.site.look, self.limits.pace)
        server = await asyncio.start_server(self._visit, sock=self._listener, limit=self.limits.header_bytes)
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stop.wait()
        server.close()
        for visit in list(self.visits):
            visit.task.cancel()
        await asyncio.gather(*(visit.task for visit in self.visits), return_exceptions=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        visit = _Visit(task)
        self.visits[visit] = None
        self._make_room()
        try:
            await self._answer(Exchange(reader, writer, self.limits), visit)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # it hung up, was too slow, or had to make room
        except Exception as error:
            log.warning("a request failed: %s", reason(error))
        finally:
            self.visits.pop(visit, None)
            writer.close()

    def _make_room(self) -> None:
        """The oldest visitor that has shown no token leaves, if there is one too many."""
        if len(self.visits) > self.limits.connections:
            oldest = next(one for one in self.visits if not one.watching)  # there are more places than viewers
            del self.visits[oldest]
            oldest.task.cancel()

    async def _answer(self, exchange: Exchange, visit: _Visit) -> None:
        try:
            request = await exchange.request()
            self._check_host(request)
            await self._route(request, exchange, visit)
        except Refusal as refusal:
            await exchange.refuse(refusal.status)
        except (OSError, TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.warning("cannot show the page: %s", reason(error))
            await exchange.refuse(500)

    async def _route(self, request: Request, exchange: Exchange, visit: _Visit) -> None:
        assert self.feed is not None
        if request.path == "/":
            document = self.site.document
            await exchange.answer(200, HTML, document.html, [("content-security-policy", document.policy)])
        elif request.path == "/healthz":
            await exchange.answer(200, TEXT, b"ok\n")
        elif found := RUN.fullmatch(request.path):
            await self._report(found[1], request, exchange)
        else:
            self._check_token(request)
            if request.path == "/metrics":
                view = await self.feed.latest()
                await exchange.answer(200, "text/plain; version=0.0.4; charset=utf-8", view.metrics())
            elif request.path == "/events":
                await self._events(exchange, visit, self.feed)
            else:
                raise Refusal(404)

    async def _report(self, run: str, request: Request, exchange: Exchange) -> None:
        shown = request.query.removeprefix("ticket=")
        if not tokens.admits(shown, self.site.token, run):
            self._check_token(request)
        path = self.site.report(run)
        content = None if path is None else await asyncio.to_thread(_content, path)
        if content is None:
            raise Refusal(404)
        await exchange.answer(200, HTML, content, [("content-security-policy", REPORT_POLICY)])

    async def _events(self, exchange: Exchange, visit: _Visit, feed: Feed) -> None:
        if exchange.bare:
            await exchange.answer(200, "text/event-stream", b"")
            return
        if feed.viewers >= self.limits.viewers:
            raise Refusal(503)
        visit.watching = True
        await exchange.start(200, "text/event-stream")
        sending = asyncio.ensure_future(self._send_views(exchange, feed))
        gone = asyncio.ensure_future(exchange.gone())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send_views(self, exchange: Exchange, feed: Feed) -> None:
        async with aclosing(feed.views(self.limits.silence)) as views:
            async for data in views:
                await exchange.send(b":\n\n" if data is None else b"data: " + data + b"\n\n")

    def _check_token(self, request: Request) -> None:
        if not tokens.same(request.bearer, self.site.token):
            raise Refusal(401)

    def _check_host(self, request: Request) -> None:
        """A name that leads here only by an attacker's DNS is refused; any port, since it may be forwarded."""
        name = host_of(request.headers.get("host", ""))
        if name not in ("localhost", self.host.lower()) and not is_loopback(name):
            raise Refusal(421)


def _content(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            found = file.read(REPORT_BYTES + 1)
    except OSError:
        return None
    return found if len(found) <= REPORT_BYTES else None
