"""Check that a server can be reached and is the federation's; the error names the cause and the cure."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from fedmc.errors import FedmcError


class UnreachableError(FedmcError):
    """No server answers; retry later."""


class UntrustedError(FedmcError):
    """The machine that answers is not the federation's server."""


def split(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT or [HOST]:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check(address: str, ca: Path, seconds: float = 10) -> None:
    """Do a TLS handshake with the server, trusting only the federation's authority, and close the connection."""
    host, port = split(address)
    context = ssl.create_default_context(cafile=str(ca))
    try:
        with socket.create_connection((host, port), seconds) as plain, context.wrap_socket(plain, server_hostname=host):
            return
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(f"{address} is not trusted: {_why(error, host, ca)}") from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # a forwarder whose server is down accepts and closes
        raise UnreachableError(f"{address} hangs up") from None
    except ssl.SSLError as error:
        raise UntrustedError(f"{address} does not speak TLS as a fedmc server does: {error.reason or error}") from None
    except OSError as error:
        raise UnreachableError(f"no server answers at {address}: {error.strerror or error}") from None


def _why(error: ssl.SSLCertVerificationError, host: str, ca: Path) -> str:
    if error.verify_code == 10:
        return "its certificate has expired (or this machine's clock is wrong): the server needs a new one"
    if error.verify_code == 9:
        return "its certificate is not valid yet: is this machine's clock right?"
    if error.verify_code in (62, 64):
        return f"its certificate is for another machine than {host}: check the address, or make one for this name"
    return f"its certificate was not made by the authority in {ca} ({error.verify_message})"
