"""The process of a submission. It is run as a file, needs numpy alone, and ends with the answer on its output.

    python -I child.py SUBMISSION GIVEN WORK [HIDDEN ...]

It gives up what it can before it loads the submission: new privileges and capabilities (Linux), and access to files
other than the Python installation, GIVEN (to read) and WORK (Landlock: Linux 5.13 or newer). HIDDEN are folders that
stay closed even if they lie inside of the installation. Then nothing of it can be taken back, by no code.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/self", "/sys/devices/system", "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip
WRITABLE = ("/dev/null",)
NO_NEW_PRIVILEGES, DROP_FROM_BOUND = 38, 24  # of prctl
CAPABILITIES = 0x20080522, 64  # version of capset, numbers that may be in use
CREATE, ADD, RESTRICT = 444, 445, 446  # Landlock's system calls, the same on all machines
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1, 2, 4, 8, 1 << 14
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
KNOWN = {1: 13, 2: 14, 3: 15, 4: 15}  # how many kinds of access a version of Landlock knows; later ones 16
NETWORK, SCOPES = 3, 3  # TCP; abstract sockets and signals


def main(submission: str, given: str, work: str, *hidden: str) -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # what the submission prints is no part of its answer
    confine(Path(given), Path(work), list(map(Path, hidden)))
    spec = importlib.util.spec_from_file_location("submission", submission)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "predict", None)):
        raise SystemExit("the submission has no function predict(given)")
    content = np.ascontiguousarray(module.predict(Path(given)), dtype="<f8").tobytes()
    with os.fdopen(answer, "wb") as file:
        file.write(content)


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0 without it."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE, None, 0, 1)))


def confine(given: Path, work: Path, hidden: list[Path]) -> None:
    """Give up what a submission does not need, for good."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if landlock_version():
        roots = {Path(one).resolve() for one in (sys.prefix, sys.base_prefix, *sys.path) if os.path.exists(one)}
        system = [Path(one).resolve() for one in SYSTEM if os.path.exists(one)]
        rules = [*readable([*sorted(roots), *system, given], [one.resolve() for one in hidden])]
        rules += [(Path(one), OF_FILES & ~EXECUTE) for one in WRITABLE]
        _restrict(libc, [*rules, (work, -1)])
    if os.getuid() == 0:
        for number in range(CAPABILITIES[1]):
            libc.prctl(DROP_FROM_BOUND, number, 0, 0, 0)
        _checked(libc.capset(struct.pack("=Ii", CAPABILITIES[0], 0), bytes(24)))


def readable(roots: Iterable[Path], hidden: list[Path]) -> Iterator[tuple[Path, int]]:
    """(path, kinds of access) that open these files and folders, but for the hidden ones.

    Access counts for the place that a symbolic link leads to, so links inside need no rule.
    """
    for root in roots:
        if not any(one.is_relative_to(root) for one in hidden):
            yield root, EXECUTE | READ_FILE | READ_DIR
        elif root not in hidden:
            yield root, READ_DIR  # names alone, which imports look for
            yield from readable((one for one in sorted(root.iterdir()) if not one.is_symlink()), hidden)


def _restrict(libc: ctypes.CDLL, rules: list[tuple[Path, int]]) -> None:
    version = landlock_version()
    every = (1 << KNOWN.get(version, 16)) - 1
    content = struct.pack("=QQQ", every, NETWORK if version >= 4 else 0, SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(libc.syscall(CREATE, content, size, 0))
    for path, access in rules:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = (access if path.is_dir() else access & OF_FILES) & every
        if allowed:
            _checked(libc.syscall(ADD, ruleset, 1, struct.pack("=Qi", allowed, place), 0))
        os.close(place)
    _checked(libc.syscall(RESTRICT, ruleset, 0))
    os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise SystemExit(f"the process of the submission cannot be confined: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
