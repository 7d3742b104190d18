"""Run a submission in a process that has the training part and no answers.

The answers stay in the memory of this process: they are in no file, no argument and no variable of the environment.
On Linux this process is made unreadable for processes of the same user, the submission drops to an unprivileged user
if this one is root, and Landlock closes all other files to it (`child`).
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, TypedDict

from fedmc.errors import FedmcError, InputError, printable, require
from fedmc.evaluation.benchmark import child

SET_DUMPABLE = 4  # of prctl
NOBODY = "nobody"
LIBRARIES = ("LD_LIBRARY_PATH",)  # what a Python may need to start
LAST = 2000  # characters of what a submission printed that are looked at for the reason of a failure


class SubmissionError(FedmcError):
    """A submission failed, or its answer cannot be scored."""


class Boundary(NamedTuple):
    """What holds a submission, in words: they are part of its result."""

    user: str | None  # the unprivileged one that it runs as
    landlock: bool

    @property
    def words(self) -> list[str]:
        parts = {
            "a process of its own": True,
            "unreadable parent": sys.platform.startswith("linux"),
            f"user {self.user}": self.user is not None,
            "no capabilities": os.geteuid() == 0 and self.user is None,
            "Landlock": self.landlock,
        }
        return [words for words, there in parts.items() if there]


class Limits(NamedTuple):
    """What a submission may take, and how large its answer may be."""

    seconds: float
    bytes: int


def seal() -> None:
    """Make the memory of this process unreadable for others of the same user (Linux), until it ends.

    It stays so: a process that the submission left behind would still be there after its end.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def boundary() -> Boundary:
    """What this machine and user permit. Root without both an unprivileged user and Landlock is refused."""
    landlock = child.landlock_version() > 0
    if os.geteuid() != 0:
        return Boundary(None, landlock)
    user = NOBODY if _runs_as(NOBODY) else None
    cure = "run the benchmark as an ordinary user, or install Python where all users can read it"
    able = user is not None or landlock
    require(able, f"as root, a submission runs as the user {NOBODY}, who cannot run {sys.executable}: {cure}")
    return Boundary(user, landlock)


def _runs_as(user: str) -> bool:
    """Whether another user can run this Python with numpy."""
    command = [sys.executable, "-I", "-c", "import numpy"]
    try:
        owner = pwd.getpwnam(user)
        done = subprocess.run(
            command, user=owner.pw_uid, group=owner.pw_gid, extra_groups=[], cwd="/", capture_output=True
        )
    except (OSError, KeyError, ValueError):
        return False
    return done.returncode == 0


@contextmanager
def folders(held: Boundary) -> Iterator[tuple[Path, Path]]:
    """Two new folders: what is given, for the submission to read, and one that it may write to."""
    root = Path(tempfile.mkdtemp(prefix="fedmc-benchmark-"))
    try:
        given, work = root / "given", root / "work"
        given.mkdir()
        work.mkdir()
        if held.user is not None:
            owner = pwd.getpwnam(held.user)
            os.chown(work, owner.pw_uid, owner.pw_gid)
            root.chmod(0o755)
        yield given, work
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run(held: Boundary, given: Path, work: Path, hidden: Sequence[Path], limits: Limits) -> tuple[bytes, str]:
    """The answer of the submission, `given / "submission.py"`, as bytes, and the end of what it printed."""
    environment = {
        "PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(work), "TMPDIR": str(work),
        "NUMBA_CACHE_DIR": str(work / "numba"), "MPLCONFIGDIR": str(work), "PYTHONHASHSEED": "0",
    }  # fmt: skip
    environment |= {name: os.environ[name] for name in LIBRARIES if name in os.environ}
    command = [sys.executable, "-I", child.__file__, str(given / "submission.py"), str(given), str(work)]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [*command, *map(str, hidden)], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=answer,
            stderr=printed, start_new_session=True, **_user(held),
        )  # fmt: skip
        code = _wait(process, limits.seconds)
        said = _text(printed)
        require(code == 0, lambda: f"the submission failed (exit code {code}): {_reason(said)}", SubmissionError)
        size = answer.seek(0, os.SEEK_END)
        most = f"the answer has {size:,} bytes, at most {limits.bytes:,} can be right"
        require(size <= limits.bytes, most, SubmissionError)
        answer.seek(0)
        return answer.read(), said


class _As(TypedDict, total=False):
    """Whose rights a process has."""

    user: int
    group: int
    extra_groups: list[int]
    umask: int


def _user(held: Boundary) -> _As:
    if held.user is None:
        return {}
    owner = pwd.getpwnam(held.user)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": [], "umask": 0o077}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code; the submission's whole process group ends with it."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"the submission took more than {seconds:g} seconds: --time-limit gives it more"
        ) from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _text(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LAST))
    return file.read().decode(errors="replace")


def _reason(said: str) -> str:
    """The last line that was printed: of a Python error, the error itself."""
    lines = [line for line in said.splitlines() if line.strip()]
    return printable(lines[-1].strip()) if lines else "it said nothing"


def copy_of(submission: Path, given: Path) -> bytes:
    """Put the submission where its process finds it; returns its content."""
    try:
        content = submission.read_bytes()
    except OSError as error:
        raise InputError(f"the submission {submission} cannot be read: {error.strerror}") from None
    (given / "submission.py").write_bytes(content)
    return content
