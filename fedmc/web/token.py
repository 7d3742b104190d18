"""A token in a file that only its owner can read: whoever shows it may use a server."""

from __future__ import annotations

import hmac
import secrets
import time
from contextlib import suppress
from pathlib import Path

from fedmc.data.files import write_private
from fedmc.errors import DataError, require

SHORTEST = 20  # characters
BEING_WRITTEN = 0.5  # seconds to wait for another process that has just made the file


def make_or_load(path: Path) -> str:
    """The token in this file; a new one, if there is none."""
    with suppress(FileExistsError):
        write_private(path, f"{secrets.token_urlsafe(32)}\n".encode())
    require(path.is_file(), f"{path} is not a file: choose another place for the token", DataError)
    bits = path.stat().st_mode & 0o777
    require(not bits & 0o077, f"{path} can be read by others (mode {bits:o}): chmod 600 {path}", DataError)
    token = _read(path)
    plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    cure = "delete it, and the next start makes a new one"
    require(len(token) >= SHORTEST and plain, f"{path} holds no token of {SHORTEST} letters or more: {cure}", DataError)
    return token


def _read(path: Path) -> str:
    """The file's text; if it is empty, another server may be writing it just now."""
    end = time.monotonic() + BEING_WRITTEN
    while not (text := path.read_text(encoding="ascii", errors="replace").strip()) and time.monotonic() < end:
        time.sleep(0.02)
    return text


def same(shown: str, token: str) -> bool:
    """Whether they are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def bearer(authorization: str) -> str:
    """The token in an Authorization header; empty if there is none."""
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
