"""Shards for other processes: pickled, with arrays that each process maps from files instead of copying them.

    NAME            the shards without their arrays, and where each array lies
    NAME.arrays     the arrays that were in memory, one after the other

An array that is mapped from a file already, as those of prepared shards are, is not written again: its place in that
file is noted. The files are read by the processes of one run and of one version; they are no format for exchange.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from fedmc.data.partition import Shard
from fedmc.errors import DataError, require
from fedmc.types import Array

ALIGN = 64


class Place(NamedTuple):
    """Where the bytes of an array lie."""

    file: str
    offset: int
    nbytes: int


class MappedFile(mmap.mmap):
    """A file in memory, private to this process; it knows its path."""

    path: Path


def map_file(path: Path) -> MappedFile:
    with open(path, "rb") as file:
        found = MappedFile(file.fileno(), 0, access=mmap.ACCESS_COPY)
    found.path = path.resolve()
    return found


def write(path: Path, shards: Mapping[int, Shard]) -> None:
    """Write the shards of some clients."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(dict(shards), protocol=5, buffer_callback=buffers.append)
    arrays = path.with_name(path.name + ".arrays")
    with open(arrays, "wb") as file:
        places = [_place(buffer, file, arrays) for buffer in buffers]
    path.write_bytes(pickle.dumps((content, places)))


class Mapped(NamedTuple):
    """Shards whose arrays are memory-mapped."""

    shards: dict[int, Shard]
    files: list[MappedFile]

    def release(self) -> None:
        """Drop the pages that were read from this process's memory; what is read again is mapped again.

        Nothing writes to shards: what was written would be lost.
        """
        for file in self.files:
            file.madvise(mmap.MADV_DONTNEED)


def nbytes(shard: Shard) -> int:
    """Bytes that an update reads of a shard, about."""
    return 2 * int(shard.by_user.nnz) * int(shard.by_user.data.itemsize + shard.by_user.indices.itemsize)


def read(path: Path) -> Mapped:
    """The shards that `write` wrote."""
    try:
        content, places = pickle.loads(path.read_bytes())
        files = {name: map_file(Path(name)) for name in {place.file for place in places if place.nbytes}}
    except OSError as error:
        cure = "all machines must see it under the same path"
        raise DataError(f"a worker cannot read {error.filename}, {error.strerror}: {cure}") from None
    views = {name: memoryview(file) for name, file in files.items()}
    shards = pickle.loads(content, buffers=[_bytes(place, views) for place in places])
    return Mapped(cast("dict[int, Shard]", shards), list(files.values()))


def _bytes(place: Place, files: Mapping[str, memoryview]) -> memoryview | bytearray:
    if not place.nbytes:
        return bytearray()
    found = files[place.file][place.offset : place.offset + place.nbytes]
    require(found.nbytes == place.nbytes, f"{place.file} is shorter than when the run began", DataError)
    return found


def _place(buffer: pickle.PickleBuffer, file: BinaryIO, arrays: Path) -> Place:
    """Where the bytes of a buffer lie already, or where they are written to."""
    raw = buffer.raw()
    array = np.frombuffer(raw, np.uint8)
    mapped = _mapped(memoryview(buffer).obj)
    if mapped is not None and len(array):
        start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        return Place(str(mapped.path), start, len(array))
    file.write(bytes(-file.tell() % ALIGN))
    start = file.tell()
    file.write(raw)
    return Place(str(arrays.resolve()), start, len(array))


def _mapped(owner: object) -> MappedFile | None:
    """The mapped file that an array is a view of."""
    while owner is not None and not isinstance(owner, MappedFile):
        owner = owner.obj if isinstance(owner, memoryview) else cast(Array, owner).base if _is_array(owner) else None
    return owner


def _is_array(owner: object) -> bool:
    return isinstance(owner, np.ndarray)
