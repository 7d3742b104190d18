"""Files as the readers see them: on disk, inside of an archive, or an object in a storage; and folders of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import pyarrow as pa

AT_ONCE = 16  # objects of a storage that are asked for their beginnings together
Found = TypeVar("Found")


class File(NamedTuple):
    """A file; only one on disk has a path."""

    name: str  # as messages show it
    open: Callable[[], BinaryIO]
    path: Path | None = None
    size: int = 0
    stored: Callable[[], pa.NativeFile] | None = None  # of an object in a storage: random access for Arrow

    @property
    def is_member(self) -> bool:
        """Whether it is inside of an archive, so that Arrow cannot read it at any place."""
        return self.path is None and self.stored is None

    def head(self, size: int) -> bytes:
        """Its first bytes."""
        with self.open() if self.stored is None else self.stored() as opened:
            return bytes(opened.read(size))

    def source(self) -> str | pa.NativeFile:
        """What Arrow reads it from."""
        return str(self.path) if self.stored is None else self.stored()


class Place(NamedTuple):
    """A file, or the files of a folder in the order of their names."""

    name: str
    files: Sequence[File]
    folder: bool

    @property
    def file(self) -> File:
        return self.files[0]


def on_disk(path: Path) -> File:
    return File(str(path), lambda: open(path, "rb"), path, path.stat().st_size)


def place_on_disk(path: Path) -> Place:
    """A file or folder that is there."""
    if not path.is_dir():
        return Place(str(path), [on_disk(path)], False)
    return Place(str(path), [on_disk(file) for file in sorted(path.rglob("*")) if file.is_file()], True)


def of_each(files: Sequence[File], ask: Callable[[File], Found]) -> Iterable[Found]:
    """`ask(file)` of each file; objects of a storage are asked together, as each answer travels."""
    if not files or files[0].stored is None:
        return map(ask, files)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, files))
