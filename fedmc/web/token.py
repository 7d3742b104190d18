"""A token in a file that only its owner can read: whoever shows it may use a server."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from pathlib import Path

from fedmc.data.files import write_private
from fedmc.errors import DataError, require

SHORTEST = 20  # characters


def make_or_load(path: Path) -> str:
    """The token in this file; a new one, if there is none."""
    with suppress(FileExistsError):
        write_private(path, f"{secrets.token_urlsafe(32)}\n".encode())
    bits = path.stat().st_mode & 0o777
    require(not bits & 0o077, f"{path} can be read by others (mode {bits:o}): chmod 600 {path}", DataError)
    token = path.read_text(encoding="ascii", errors="replace").strip()
    plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    cure = "delete it, and the next start makes a new one"
    require(len(token) >= SHORTEST and plain, f"{path} holds no token of {SHORTEST} letters or more: {cure}", DataError)
    return token


def same(shown: str, token: str) -> bool:
    """Whether they are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def bearer(authorization: str) -> str:
    """The token in an Authorization header; empty if there is none."""
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
