"""A PostgreSQL of the tests' own: on loopback, on a free port, with a password; it ends with its block."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PASSWORD = "s3cret&word"


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server. Its data are not in pytest's folders, which each run of pytest closes to others."""
    with TemporaryDirectory(prefix="fedmc-postgres-") as folder, served(Path(folder)) as address:
        yield address


@contextmanager
def served(folder: Path) -> Iterator[str]:
    place = programs()
    if place is None:
        pytest.skip("no PostgreSQL server on this machine (initdb, pg_ctl)")
    user = demoted()
    folder.chmod(0o755)
    data, secret = folder / "data", folder / "password"
    secret.write_text(PASSWORD)
    data.mkdir(mode=0o700)
    if user:
        shutil.chown(data, user)
        shutil.chown(secret, user)
    port = free_port()

    def run(*command):
        done = subprocess.run(command, user=user, cwd=data, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr + done.stdout

    run(place / "initdb", "-D", data, "-U", "fedmc", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync=off"
    subprocess.run(
        [place / "pg_ctl", "-D", data, "-w", "-t", "60", "-l", data / "log", "-o", options, "start"],
        user=user, cwd=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True,
    )  # fmt: skip
    try:
        yield f"postgresql://fedmc:s3cret%26word@127.0.0.1:{port}/postgres"
    finally:
        run(place / "pg_ctl", "-D", data, "-m", "immediate", "stop")


def execute(address: str, *statements: str) -> None:
    import adbc_driver_postgresql.dbapi as dbapi

    with dbapi.connect(address) as connection:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()


def programs() -> Path | None:
    """Where initdb and pg_ctl are: Debian keeps them outside of PATH."""
    places = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        *map(Path, os.environ["PATH"].split(os.pathsep)),
    ]
    return next((place for place in places if (place / "initdb").is_file() and (place / "pg_ctl").is_file()), None)


def demoted() -> str | None:
    """PostgreSQL refuses to run as root: another user then."""
    if os.getuid() != 0:
        return None
    return next((name for name in ("postgres", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()}), None)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
