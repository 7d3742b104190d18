"""Names of hosts: what is loopback, and which names a request may give to a server."""

from __future__ import annotations

import ipaddress
import re

from fedmc.errors import quoted, require


def is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(_bare(name)).is_loopback
    except ValueError:
        return False


def is_address(name: str) -> bool:
    """Whether it is an address and no name, which an attacker's DNS could lead anywhere."""
    try:
        ipaddress.ip_address(_bare(name))
    except ValueError:
        return False
    return True


def named(name: str) -> str:
    """A name that requests may give, in small letters."""
    plain = re.fullmatch(r"[^\s/:@,]+", name) is not None
    require(plain, f"{quoted(name)} is no name of a host: give it without scheme and port, such as films.example.org")
    return name.lower()


def host_of(header: str) -> str:
    """The name in a Host header, in small letters and without the port."""
    return re.sub(r":[0-9]{1,5}$", "", header).lower()


def _bare(name: str) -> str:
    return name.removeprefix("[").removesuffix("]")
