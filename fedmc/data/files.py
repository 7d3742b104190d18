"""Atomic writes: files and folders appear complete or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmc.errors import InputError, require


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file under a temporary name, then rename it into place; `mode` less the umask says who may use it."""
    partial = free(path.with_name(path.name + ".part"))
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        folder = os.open(path.parent, os.O_RDONLY)  # make the rename durable too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; an existing file is an error."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def check_target(path: Path, overwrite: bool, is_ours: Callable[[Path], bool], kind: str) -> None:
    """Refuse a folder that exists, unless `overwrite` is set and it is empty or of this kind."""
    if not path.exists():
        return
    if not overwrite:
        raise InputError(f"{path} exists already: choose another path, or overwrite=True to replace it")
    ours = path.is_dir() and (is_ours(path) or not any(path.iterdir()))
    require(ours, f"{path} exists and is not a {kind}: it is not overwritten; choose another path")


@contextmanager
def staged(
    path: Path, overwrite: bool, is_ours: Callable[[Path], bool], kind: str, keep: Callable[[Path], bool]
) -> Iterator[Path]:
    """A folder NAME.part to write into, renamed to NAME at the end; an old NAME stays until then.

    On failure it is removed, unless `keep` returns true for it.
    """
    check_target(path, overwrite, is_ours, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = free(path.with_name(path.name + ".part"))
        staging.mkdir()
    except OSError as error:
        raise InputError(f"cannot create the {kind} {path}: {error.strerror}; choose another place") from None
    try:
        yield staging
        check_target(path, overwrite, is_ours, kind)  # it may have been created in the meantime
    except BaseException:
        if not keep(staging):
            shutil.rmtree(staging)
        raise
    if path.exists():
        old = free(path.with_name(path.name + ".old"))
        path.rename(old)
        staging.rename(path)
        shutil.rmtree(old)
    else:
        staging.rename(path)


def free(path: Path) -> Path:
    """The path, or with -2, -3, ... appended if it exists."""
    tries = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(p for p in tries if not p.exists())
