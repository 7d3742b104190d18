"""Public data sets as distributed: a folder, a zip or a tar. The ratings inside are found by content."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, cast

from fedmc.data.builder import Batch
from fedmc.data.readers import columnar, netflix, text
from fedmc.data.readers.columns import EVENTS_CURE, ColumnSelection, Header
from fedmc.data.readers.files import File, Place, of_each
from fedmc.data.readers.parts import parts_of, same_columns
from fedmc.errors import DataError

EITHER = ColumnSelection(rating="optional")
MAGICS = (b"PK", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # zip, gzip, bzip2, xz
TAR, PLACE = b"ustar", 257
HEAD = 4096  # bytes of each file that are looked at
Chosen = tuple[Literal["columnar", "netflix", "text"], Sequence[File]]


def is_archive(file: File) -> bool:
    """Whether a file is a zip or a tar."""
    if file.stored is not None:
        head = file.head(PLACE + len(TAR))
        if not head.startswith(MAGICS) and head[PLACE:] != TAR:
            return False
    try:
        with file.open() as opened:
            if zipfile.is_zipfile(opened):
                return True
            opened.seek(0)
            return tarfile.is_tarfile(opened)
    except EOFError:  # the beginning of a compressed file
        return False


def read(place: Place, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a folder or archive: all Netflix files in it, else the largest table with the selected columns.

    A table may have several parts.
    """
    with _members(place) as members:
        kind, files = _choose(place.name, members, selection)
        if kind == "columnar":
            yield from columnar.read(files, selection)
        elif kind == "netflix":
            yield from netflix.read(files, selection)
        else:
            for file in files:
                yield from text.read(file, selection)


def header(place: Place) -> Header:
    """The columns of the table in a folder or archive that would be read: of ratings if there are any, else events."""
    with _members(place) as members:
        try:
            kind, files = _choose(place.name, members, ColumnSelection())
        except DataError:
            kind, files = _choose(place.name, members, EITHER)
        if kind == "columnar":
            return columnar.header(files[0])
        return netflix.HEADER if kind == "netflix" else text.header(files[0])


@contextmanager
def _members(place: Place) -> Iterator[Sequence[File]]:
    """The files of a folder or archive."""
    if place.folder:
        yield place.files
        return
    try:
        with ExitStack() as stack:
            opened = stack.enter_context(place.file.open())
            if zipfile.is_zipfile(opened):
                yield _zip_members(stack.enter_context(zipfile.ZipFile(opened)), place.name)
            else:
                opened.seek(0)
                yield _tar_members(stack.enter_context(tarfile.open(fileobj=opened)), place.name, stack)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise DataError(f"{place.name} is damaged: {error}") from None


def _choose(where: str, members: Sequence[File], selection: ColumnSelection) -> Chosen:
    """The columnar table, else all Netflix files, else the largest text table with the selected columns."""
    heads = of_each(members, lambda file: file.head(HEAD))
    blocks, found, events, tables = [], list[File](), list[File](), list[File]()
    for member, head in zip(members, heads, strict=True):
        if not member.is_member and columnar.is_columnar(head):
            tables.append(member)
        elif netflix.is_netflix(head):
            blocks.append(member)
        elif not blocks and text.looks_like(head, member.name, selection):
            found.append(member)
        elif not blocks and text.looks_like(head, member.name, EITHER):
            events.append(member)
    if chosen := same_columns(where, tables, selection):
        return "columnar", chosen
    if blocks:
        return "netflix", blocks
    if not found:
        names = ", ".join(Path(member.name).name for member in members[:5]) or "nothing"
        what = "ratings" if selection.rating == "required" else "events"
        cure = f"; {Path(events[0].name).name} {EVENTS_CURE}" if events and what == "ratings" else ""
        raise DataError(f"no {what} found in {where}: it holds {names}{', ...' if len(members) > 5 else ''}{cure}")
    return "text", parts_of(max(found, key=lambda member: (member.size, member.name)), found)


def _zip_members(archive: zipfile.ZipFile, where: str) -> list[File]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    return [
        File(f"{where}:{info.filename}", cast("partial[BinaryIO]", partial(archive.open, info)), None, info.file_size)
        for info in infos
    ]


def _tar_members(archive: tarfile.TarFile, where: str, stack: ExitStack) -> list[File]:
    """The members in the archive's order, which is fast if it is compressed; inner tars (as in Netflix) are opened."""
    members = []
    for info in archive.getmembers():
        if info.isfile() and info.name.endswith(".tar"):
            inner = stack.enter_context(tarfile.open(fileobj=archive.extractfile(info)))  # noqa: SIM115
            members += _tar_members(inner, f"{where}:{info.name}", stack)
        elif info.isfile():
            opener = cast("partial[BinaryIO]", partial(archive.extractfile, info))
            members.append(File(f"{where}:{info.name}", opener, None, info.size))
    return members
