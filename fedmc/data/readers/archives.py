"""Public data sets as distributed: a folder, a zip or a tar. The ratings inside are found by content."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from fedmc.data.builder import Batch
from fedmc.data.readers import columnar, netflix, text
from fedmc.data.readers.columns import EVENTS_CURE, ColumnSelection, Header
from fedmc.data.readers.text import TextFile
from fedmc.errors import DataError

EITHER = ColumnSelection(rating="optional")


def is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except EOFError:  # the beginning of a compressed file
        return False


def read(path: Path, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a folder or archive: all Netflix files in it, else the largest table with the selected columns."""
    with _members(path) as members:
        found = _choose(path, members, selection)
        if isinstance(found, Path):
            yield from columnar.read(found, selection)
        elif isinstance(found, list):
            yield from netflix.read(found, selection)
        else:
            yield from text.read(found, selection)


def header(path: Path) -> Header:
    """The columns of the table in a folder or archive that would be read: of ratings if there are any, else events."""
    with _members(path) as members:
        try:
            found = _choose(path, members, ColumnSelection())
        except DataError:
            found = _choose(path, members, EITHER)
        if isinstance(found, Path):
            return columnar.header(found)
        return netflix.HEADER if isinstance(found, list) else text.header(found)


@contextmanager
def _members(path: Path) -> Iterator[list[TextFile]]:
    """The files of a folder or archive."""
    try:
        with ExitStack() as stack:
            if path.is_dir():
                yield [text.on_disk(file) for file in sorted(path.rglob("*")) if file.is_file()]
            elif zipfile.is_zipfile(path):
                yield _zip_members(stack.enter_context(zipfile.ZipFile(path)), str(path))
            else:
                yield _tar_members(stack.enter_context(tarfile.open(path)), str(path), stack)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _choose(path: Path, members: list[TextFile], selection: ColumnSelection) -> Path | list[TextFile] | TextFile:
    """The only columnar file, else all Netflix files, else the largest text table with the selected columns."""
    tables = [member.path for member in members if member.path is not None and columnar.is_columnar(member.path)]
    if len(tables) == 1:
        return tables[0]
    blocks, found, events = [], [], []
    for member in members:
        with member.open() as file:
            head = file.read(4096)
        if netflix.is_netflix(head):
            blocks.append(member)
        elif not blocks and text.looks_like(head, member.name, selection):
            found.append(member)
        elif not blocks and text.looks_like(head, member.name, EITHER):
            events.append(member)
    if blocks:
        return blocks
    if not found:
        names = ", ".join(Path(member.name).name for member in members[:5]) or "nothing"
        what = "ratings" if selection.rating == "required" else "events"
        cure = f"; {Path(events[0].name).name} {EVENTS_CURE}" if events and what == "ratings" else ""
        raise DataError(f"no {what} found in {path}: it holds {names}{', ...' if len(members) > 5 else ''}{cure}")
    return max(found, key=lambda member: (member.size, member.name))


def _zip_members(archive: zipfile.ZipFile, where: str) -> list[TextFile]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    return [
        TextFile(
            f"{where}:{info.filename}", cast("partial[BinaryIO]", partial(archive.open, info)), None, info.file_size
        )
        for info in infos
    ]


def _tar_members(archive: tarfile.TarFile, where: str, stack: ExitStack) -> list[TextFile]:
    """The members in the archive's order, which is fast if it is compressed; inner tars (as in Netflix) are opened."""
    members = []
    for info in archive.getmembers():
        if info.isfile() and info.name.endswith(".tar"):
            inner = stack.enter_context(tarfile.open(fileobj=archive.extractfile(info)))  # noqa: SIM115
            members += _tar_members(inner, f"{where}:{info.name}", stack)
        elif info.isfile():
            opener = cast("partial[BinaryIO]", partial(archive.extractfile, info))
            members.append(TextFile(f"{where}:{info.name}", opener, None, info.size))
    return members
