"""The Netflix Prize files, `mv_*.txt` or `combined_data_*.txt`: an `ITEM:` line, then `USER,RATING,DATE` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from fedmc.data.builder import Batch
from fedmc.data.readers.columns import ColumnSelection, Header
from fedmc.data.readers.files import File
from fedmc.errors import DataError, require
from fedmc.kernels.parsing import parse_netflix

_START = re.compile(rb"\d{1,9}:\r?\n(\d{1,9},\d{1,3},\d{4}-\d\d-\d\d|$)")
_SHORTEST = len(b"1,1,2000-01-01\n")
CHUNK = 1 << 26
HEADER = Header(("user", "item", "rating", "time"))  # the names that messages and options use


def is_netflix(head: bytes) -> bool:
    """Whether a file starts with an `ITEM:` line and a rating."""
    return _START.match(head) is not None


def read(files: Sequence[File], selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of all files, each of which starts with an `ITEM:` line."""
    named = selection.columns is None and selection.group is None and not selection.typed
    named = named and selection.amount in (None, "rating")
    require(named, "the Netflix layout has no columns to name", DataError)
    for file in files:
        yield from _read_file(file, selection.times or selection.any_times)


def _read_file(file: File, times: bool) -> Iterator[Batch]:
    item, line, rest = -1, 1, b""
    with file.open() as opened:
        while chunk := opened.read(CHUNK):
            text, rest = _whole_lines(rest + chunk)
            batch, item, bad = _parse(text, item, times)
            if bad >= 0:
                got = text.split(b"\n")[bad][:60].decode("utf-8", "replace").rstrip("\r")
                raise DataError(
                    f"{file.name}, line {line + bad}: expected ITEM: or USER,RATING,YYYY-MM-DD, got {got!r}"
                )
            line += text.count(b"\n")
            yield batch
    if rest.strip():
        batch, _, bad = _parse(rest + b"\n", item, times)
        if bad >= 0:
            raise DataError(f"{file.name}, line {line}: expected ITEM: or USER,RATING,YYYY-MM-DD, got {rest[:60]!r}")
        yield batch


def _whole_lines(text: bytes) -> tuple[bytes, bytes]:
    end = text.rfind(b"\n") + 1
    return text[:end], text[end:]


def _parse(text: bytes, item: int, times: bool) -> tuple[Batch, int, int]:
    max_rows = len(text) // _SHORTEST + 1
    users, items, stamps = (np.empty(max_rows, np.int32) for _ in range(3))
    ratings = np.empty(max_rows, np.float32)
    rows, item, bad = parse_netflix(np.frombuffer(text, np.uint8), item, users, items, ratings, stamps)
    when = stamps[:rows].astype(np.int64) * 86_400 if times else None
    return Batch(users[:rows].copy(), items[:rows].copy(), ratings[:rows].copy(), when), item, bad
