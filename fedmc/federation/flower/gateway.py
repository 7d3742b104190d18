"""The gateway, the only port open to other machines: it forwards nodes' calls to the SuperLink on loopback.

A SuperLink serves nodes, operators and its own processes on one port, and lets anybody who reaches it start a run.
The gateway forwards only the nodes' part (`/v1/fleet/`, where a node's key signs every call), unchanged, and only if
the key is an organisation's. It refuses everything else.
"""

from __future__ import annotations

import logging
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

from fedmc.federation.setup.layout import ServerConfig

Message = MutableMapping[str, Any]

OPEN = "/v1/fleet/"
MOST = 64 * 2**20  # bytes of one call; Flower sends arrays in pieces of 20 MB
KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
OWN = {b"host", b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"te", b"upgrade"}

log = logging.getLogger("fedmc.gateway")


class Gate:
    """The gateway: an ASGI application in front of a SuperLink."""

    def __init__(self, superlink: str, ca: str, keys: set[bytes]) -> None:
        self.keys = keys
        context = ssl.create_default_context(cafile=ca)
        self.client = httpx.AsyncClient(base_url=superlink, verify=context, timeout=120, trust_env=False)

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        path = scope["raw_path"].decode("ascii", "replace")
        if scope["method"] != "POST" or not path.startswith(OPEN) or not path[len(OPEN) :].replace("-", "").isalpha():
            await _answer(send, 404, b"")
            return
        keys = [value for name, value in scope["headers"] if name.lower() == KEY_HEADER]
        if len(keys) != 1 or keys[0] not in self.keys:
            await _answer(send, 421, b"")  # Flower gives 401 and 403 meanings of its own
            return
        body = bytearray()
        while True:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            if len(body) > MOST:
                log.warning("refused a call of more than %s bytes", MOST)
                await _answer(send, 413, b"")
                return
            if not part.get("more_body"):
                break
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in OWN]
        try:
            reply = await self.client.post(path, content=bytes(body), headers=headers)
        except httpx.HTTPError as error:
            log.warning("the SuperLink does not answer: %s", error)
            await _answer(send, 503, b"")
            return
        kept = [(name, value) for name, value in reply.headers.raw if name.lower() not in OWN | {b"content-encoding"}]
        status = 420 if reply.status_code == 401 else reply.status_code  # at 401 Flower's client ends its process
        await _answer(send, status, reply.content, kept)


async def _answer(
    send: Callable[[Message], Awaitable[None]],
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    sized = [*(headers or []), (b"content-length", str(len(body)).encode())]
    with suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": sized})
        await send({"type": "http.response.body", "body": body})


def registered_keys(config: ServerConfig) -> set[bytes]:
    """The organisations' public keys, encoded as in the header of nodes' calls."""
    found = set()
    for name in config.organisations:
        key = load_ssh_public_key(config.path(f"nodes/{name}.pub").read_bytes())
        found.add(b64encode(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)))
    return found


def serve(config: ServerConfig, control_port: int, going_on: Callable[[], bool], on_ready: Callable[[], None]) -> None:
    """Serve until a signal arrives, or until `going_on` returns False."""
    gate = Gate(f"https://127.0.0.1:{control_port}", str(config.path("ca.crt")), registered_keys(config))

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or (counter % 10 == 0 and not going_on())

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            on_ready()

    options = uvicorn.Config(
        gate, host=config.bind, port=config.port, ssl_certfile=str(config.path("server.pem")),
        ssl_keyfile=str(config.path("server.key")), log_level="warning", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=3, limit_concurrency=200,
    )  # fmt: skip
    Server(options).run()
