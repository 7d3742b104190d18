"""Addresses of databases and object storage, and the passwords in them, which no message or stored setting shows.

A password that is not percent-encoded can hold any character: what hides it does not rely on a well-formed address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from fedmc.errors import DataError, require

HIDDEN = "***"
SECRET = re.compile("pass|pwd|secret|token|key|credential|sig$", re.IGNORECASE)  # in the name of a parameter
STORAGE = ("s3", "gs", "gcs", "abfs", "abfss")  # schemes of object storage
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/+", re.IGNORECASE)
_SIGNS = re.compile(r"([?&=\s])")  # between the names and values of parameters
_STRANGE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|[\s\x00-\x1f]")  # a driver's error would show what is around it


def without_password(source: str) -> str:
    """The address with its passwords replaced by stars; rather more than the password than a part of it is hidden."""
    shown, last = "", 0
    for start, end in sorted(_secrets(source)):
        if end > last:
            shown += source[last:start] + HIDDEN if start >= last else ""
            last = end
    return shown + source[last:]


def is_stored(source: str | Path) -> bool:
    """Whether this is the address of object storage."""
    scheme, sign, _ = str(source).partition("://")
    return sign != "" and scheme.lower() in STORAGE


def present(path: str | Path) -> bool:
    """Whether there is such a file or folder. An address is none; the system's error about it would show it."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def scrubbed(message: str, source: str) -> str:
    """A message of another library about an address, in one line and without the address's passwords."""
    found = {source[start:end] for start, end in _secrets(source)}
    found |= {unquote(secret) for secret in found}
    for secret in sorted(filter(None, found), key=len, reverse=True):
        message = message.replace(secret, HIDDEN)
    scheme = _SCHEME.search(message)
    if scheme:  # it repeats the address, perhaps cut off inside of the password
        message = message[: scheme.start()] + without_password(source)
    return " ".join(message.split())


def check_address(source: str) -> None:
    """Refuse an address that a driver would take apart in the wrong place, and then show pieces of the password."""
    require(
        well_formed(source),
        f"{without_password(source)}: the user, the password or a parameter holds a character that must be encoded: "
        "write / as %2F, @ as %40, % as %25, a space as %20",
        DataError,
    )


def well_formed(source: str) -> bool:
    """Whether every driver finds the password of an address in the same place."""
    rest = source[_start(source) :]
    user = rest.partition("@")[0] if "@" in rest else ""
    return rest.count("@") <= 1 and "/" not in user and not _STRANGE.search(rest)


def _secrets(source: str) -> Iterator[tuple[int, int]]:
    """Where the passwords are: from the first colon to the last @, and the values of secret parameters.

    Of an object storage the key is hidden with its secret.
    """
    start = _start(source)
    colon, at = source.find(":", start), source.rfind("@")
    if start and start <= colon < at:
        yield start if is_stored(source) else colon + 1, at
    place, name = start, ""
    for piece in _SIGNS.split(source[start:]):
        place += len(piece)
        if piece == "=" and SECRET.search(unquote(name)):
            end = source.find("&", place)
            yield place, len(source) if end < 0 else end
        name = piece


def _start(source: str) -> int:
    """Where the scheme of an address ends; 0 if there is none."""
    found = _SCHEME.search(source)
    return found.end() if found else 0
