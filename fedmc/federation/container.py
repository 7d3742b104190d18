"""A message as bytes: one uncompressed .npz file with named arrays and a JSON object, read within bounds.

The bytes may come from anybody. Whatever they are, `read` raises nothing but DataError. It compares every size that
they state with the bytes that are there before it allocates anything, and it never unpickles or runs the content.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from fedmc.errors import DataError, quoted, reason, require
from fedmc.types import MAX_TEXT, Array, text

Arrays = dict[str, Array]
Header = dict[str, Any]  # what JSON can hold

MAX_ENTRIES = 256
MAX_DIRECTORY = MAX_ENTRIES * (46 + MAX_TEXT)  # bytes of the list of entries
MAX_HEADER = 2**20  # bytes of the JSON object
MAX_LISTS = 1_000  # lists and objects in it; brackets inside of texts count too
MAX_DEPTH = 6  # of their nesting
MAX_INTEGER = 2**63  # of its numbers
MAX_ARRAY_HEADER = 512  # bytes before an array's numbers
MAX_DIMENSIONS = 8
NPY = ".npy"
KINDS = ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
TYPES = {np.dtype(kind).str: np.dtype(kind) for kind in KINDS}
ARRAY_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z][0-9]{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:[0-9]{1,15}, )*(?:[0-9]{1,15},?)?)\), \} *\n"
)
END, LOCATOR, LOCAL = b"PK\x05\x06", b"PK\x06\x07", b"PK\x03\x04"
UTF8 = 0x800


def write(arrays: Mapping[str, Array], header: Header, place: str) -> bytes:
    """Arrays and header (under the name `place`) as bytes; the same content gives the same bytes."""
    said = json.dumps(header, sort_keys=True).encode()
    require(len(said) <= MAX_HEADER, f"a message's header has at most {MAX_HEADER} bytes, got {len(said)}")
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name in (place, *sorted(arrays)):
            array = np.frombuffer(said, np.uint8) if name == place else np.asarray(arrays[name], order="C")
            require(
                array.dtype.str in TYPES, f"{name} is of type {array.dtype}: messages and states hold plain numbers"
            )
            with archive.open(name + NPY, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def read(content: bytes, places: Sequence[str]) -> tuple[Arrays, Header]:
    """Inverse of `write`; the header has one of the names in `places`."""
    try:
        entries = _entries(content)
        place = next((one for one in places if one in entries), "")
        require(place != "", "it has no header", DataError)
        header = _header(entries.pop(place))
        return {name: _array(entry) for name, entry in entries.items()}, header
    except Exception as error:  # strange bytes can raise anything
        raise DataError(f"not a message of this protocol: {reason(error)}") from None


def read_header(content: bytes, places: Sequence[str]) -> Header:
    """Only the header; the arrays are not looked at."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            known = archive.namelist()
            place = next((one for one in places if one + NPY in known), "")
            require(place != "", "it has no header", DataError)
            return _header(_stored(memoryview(content), archive.getinfo(place + NPY)))
    except Exception as error:  # strange bytes can raise anything
        raise DataError(f"not a message of this protocol: {reason(error)}") from None


def read_array(content: bytes | memoryview) -> Array:
    """An array from the bytes of an .npy file; DataError if they are none."""
    try:
        return _array(memoryview(content))
    except Exception as error:
        raise DataError(f"not an array: {reason(error)}") from None


def _entries(content: bytes) -> dict[str, memoryview]:
    """The bytes of each entry by name, not copied."""
    end = content[-22:]
    plain = end[:4] == END and end[20:] == b"\0\0" and content[-42:-38] != LOCATOR
    require(plain and len(end) == 22, "it does not end as a list of entries does", DataError)
    size = struct.unpack("<I", end[12:16])[0]
    require(size <= MAX_DIRECTORY, f"its list of entries has {size} bytes, at most {MAX_DIRECTORY} are read", DataError)
    with ZipFile(io.BytesIO(content)) as archive:
        listed = archive.infolist()
    require(len(listed) <= MAX_ENTRIES, f"it has {len(listed)} entries, at most {MAX_ENTRIES} are read", DataError)
    together = sum(entry.file_size for entry in listed)
    require(together <= len(content), f"it would grow to {together} bytes when opened", DataError)
    found: dict[str, memoryview] = {}
    for entry in listed:
        name = text("the name of an entry", entry.orig_filename)
        known = name.endswith(NPY) and name not in found
        require(known, f"the entry {quoted(name)} is no array, or comes twice", DataError)
        found[name] = _stored(memoryview(content), entry)
    return {name.removesuffix(NPY): entry for name, entry in found.items()}


def _stored(content: memoryview, entry: ZipInfo) -> memoryview:
    """The bytes of an entry, which must be stored as they are."""
    start = entry.header_offset
    plain = entry.compress_type == ZIP_STORED and entry.flag_bits in (0, UTF8) and start >= 0
    signature, name_size, extra_size = struct.unpack_from("<4s22xHH", content, max(start, 0))
    first = start + 30 + name_size + extra_size
    named = bytes(content[start + 30 : start + 30 + name_size]) == entry.orig_filename.encode()
    data = content[first : first + entry.file_size]
    whole = len(data) == entry.file_size == entry.compress_size and zlib.crc32(data) == entry.CRC
    if not (plain and signature == LOCAL and named and whole):
        raise DataError(f"the entry {quoted(entry.orig_filename)} is damaged, or stored in another way")
    return data


def _array(entry: memoryview) -> Array:
    """An array, after its stated type and shape were compared with the bytes that follow."""
    require(bytes(entry[:8]) == b"\x93NUMPY\x01\x00", "an entry is no array of version 1", DataError)
    size = struct.unpack_from("<H", entry, 8)[0]
    require(size <= MAX_ARRAY_HEADER, f"the description of an array has {size} bytes", DataError)
    said, data = bytes(entry[10 : 10 + size]), entry[10 + size :]
    found = ARRAY_HEADER.fullmatch(said)
    kind = TYPES.get(found[1].decode()) if found else None
    if found is None or kind is None:
        raise DataError(f"there is no array of plain numbers {quoted(said)}")
    shape = tuple(int(number) for number in found[3].split(b",") if number.strip())
    require(len(shape) <= MAX_DIMENSIONS, f"an array has at most {MAX_DIMENSIONS} dimensions", DataError)
    expected = math.prod(shape) * kind.itemsize
    require(expected == len(data), f"an array of {expected} bytes was announced, {len(data)} are there", DataError)
    flat = np.frombuffer(data, kind)
    shaped = flat.reshape(shape) if found[2] == b"False" else flat.reshape(shape[::-1]).T
    return np.array(shaped, order="C")


def _header(entry: memoryview) -> Header:
    require(len(entry) <= MAX_HEADER, f"its header has {len(entry)} bytes, at most {MAX_HEADER} are read", DataError)
    said = _array(entry).tobytes().decode()
    lists = said.count("[") + said.count("{")
    require(lists <= MAX_LISTS, f"its header has {lists} lists and objects, at most {MAX_LISTS} are read", DataError)
    header = json.loads(said, object_pairs_hook=_distinct)
    require(isinstance(header, dict), "its header is no JSON object", DataError)
    _check_values(header)
    return dict(header)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    require(len(found) == len(pairs), "its header has a name twice", DataError)
    return found


def _check_values(header: object) -> None:
    """Refuse deep nesting, long or unprintable texts, and numbers that no field holds."""
    level: list[object] = [header]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                text("a text in the header", value)
            elif isinstance(value, int):
                require(abs(value) < MAX_INTEGER, "a number in its header is too large", DataError)
        level = inner
        if not level:
            return
    raise DataError(f"its header is nested more than {MAX_DEPTH} deep")
