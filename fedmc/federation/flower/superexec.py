"""Flower's SuperExec, which starts the ServerApp, without the ServerApp's token among its arguments.

Every user of a machine can read the arguments of a process, and with this token one speaks for the server. Flower
passes it as `--token`. Here it is in an open file without a name, which only the new process inherits.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor import subprocess_executor

TOKEN, TOKEN_FILE = "--token", "--token-file"


def start(arguments: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process; if its arguments hold a token, it finds the token in a file instead."""
    words = list(arguments)
    if TOKEN not in words:
        return subprocess.Popen(words, **more)
    place = words.index(TOKEN)
    with tempfile.TemporaryFile() as file:
        file.write(words[place + 1].encode())
        file.seek(0)
        words[place : place + 2] = [TOKEN_FILE, f"/dev/fd/{file.fileno()}"]
        return subprocess.Popen(words, pass_fds=[file.fileno()], **more)


def main() -> None:
    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    flower_superexec()


if __name__ == "__main__":
    main()
