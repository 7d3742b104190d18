"""The key with which a server signs its requests, and its public half, which every organisation's folder pins.

request.key   in the server's folder: secret (mode 0600)
server.pub    in the server's folder, to be handed out, and in every organisation's folder: the one key that its node
              obeys
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError, require
from fedmc.federation.setup import keys

KEY, PUBLIC, ISSUED = "request.key", "server.pub", "issued"


def make(server: Path) -> Ed25519PublicKey:
    """Write a new key pair to the server's folder, replacing an existing one."""
    public = keys.make_ed25519(server / KEY).public_key()
    pin(server, public)
    return public


def pin(folder: Path, public: Ed25519PublicKey) -> None:
    (folder / PUBLIC).write_bytes(_text(public) + b" fedmc-server\n")


def make_if_new(server: Path) -> bool:
    """Make the key of a folder of fedmc 0.2, which has none; whether that was so. A lost key is not replaced."""
    if (server / KEY).exists():
        return False
    require(
        not (server / PUBLIC).exists(),
        f"there is no {server / KEY}, although there was: restore it from a backup, or make a new one with `fedmc "
        f"federation sign-key {server} --renew` and hand {PUBLIC} to every organisation",
        DataError,
    )
    make(server)
    return True


def load(server: Path) -> Ed25519PrivateKey:
    return keys.load_ed25519(server / KEY, f"`fedmc federation sign-key {server}` makes one")


def load_public(folder: Path) -> Ed25519PublicKey:
    """The server's key that an organisation's folder pins."""
    path = folder / PUBLIC
    if not path.is_file():
        raise DataError(
            f"there is no {path}, so this node cannot tell the server's requests from others (fedmc 0.2 had no such "
            f"file): ask the server's operator for it (`fedmc federation sign-key` makes it), compare its fingerprint "
            f"over another channel, then `fedmc node trust {folder} {PUBLIC}`"
        )
    return read_public(path)


def read_public(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a public key in OpenSSH's format: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise DataError(f"{path} is not an Ed25519 key: it is not a server's {PUBLIC}")
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """As `ssh-keygen -lf server.pub` prints it."""
    return "SHA256:" + b64encode(sha256(b64decode(_text(key).split()[1])).digest()).decode().rstrip("=")


def trust(folder: Path, source: Path, replace: bool) -> Ed25519PublicKey:
    """Pin the key in `source` in an organisation's folder; another key is replaced only if `replace` says so."""
    new, path = read_public(source), folder / PUBLIC
    if path.exists() and not replace:
        old = fingerprint(read_public(path))
        require(
            old == fingerprint(new),
            f"{path} already pins another key, {old}: if the server's operator confirms that it was replaced, "
            "--replace",
            DataError,
        )
    pin(folder, new)
    return new


def _text(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
