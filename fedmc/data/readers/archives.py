"""Public data sets as distributed: a folder, a zip or a tar. The ratings inside are found by content."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from fedmc.data.builder import Batch
from fedmc.data.readers import columnar, netflix, text
from fedmc.data.readers.columns import ColumnSelection
from fedmc.data.readers.text import TextFile
from fedmc.errors import DataError


def is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except EOFError:  # the beginning of a compressed file
        return False


def read(path: Path, selection: ColumnSelection) -> Iterator[Batch]:
    """The ratings of a folder or archive: all Netflix files in it, else the largest table that looks like ratings."""
    try:
        with ExitStack() as stack:
            if path.is_dir():
                yield from _from_folder(path, selection)
            elif zipfile.is_zipfile(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
                yield from _choose(path, _zip_members(archive, str(path)), selection)
            else:
                tar = stack.enter_context(tarfile.open(path))
                yield from _choose(path, _tar_members(tar, str(path), stack), selection)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _from_folder(path: Path, selection: ColumnSelection) -> Iterable[Batch]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    tables = [file for file in files if columnar.is_columnar(file)]
    if len(tables) == 1:
        return columnar.read(tables[0], selection)
    return _choose(path, [text.on_disk(file) for file in files], selection)


def _choose(path: Path, members: list[TextFile], selection: ColumnSelection) -> Iterable[Batch]:
    blocks, found = [], []
    for member in members:
        with member.open() as file:
            head = file.read(4096)
        if netflix.is_netflix(head):
            blocks.append(member)
        elif not blocks and text.looks_like_ratings(head, member.name):
            found.append(member)
    if blocks:
        return netflix.read(blocks, selection)
    if not found:
        names = ", ".join(Path(member.name).name for member in members[:5]) or "nothing"
        raise DataError(f"no ratings found in {path}: it holds {names}{', ...' if len(members) > 5 else ''}")
    return text.read(max(found, key=lambda member: (member.size, member.name)), selection)


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
