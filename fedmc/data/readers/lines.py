"""Count the lines of a text table, also while something else reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from fedmc.kernels.parsing import count_lines


class LineCount:
    """The number of lines that are not empty."""

    def __init__(self) -> None:
        self.count, self._inside = 0, False

    def add(self, piece: bytes) -> None:
        more, self._inside = count_lines(np.frombuffer(piece, np.uint8), self._inside)
        self.count += more

    @contextmanager
    def counted(self, file: BinaryIO, wanted: bool) -> Iterator[BinaryIO | pa.PythonFile]:
        """The file, which counts its lines while it is read if this is `wanted`."""
        if not wanted:
            yield file
            return
        with pa.PythonFile(_Counted(file, self), mode="r") as counted:
            yield counted


class _Counted:
    """What Arrow needs of a file to read it from beginning to end."""

    closed = False

    def __init__(self, file: BinaryIO, lines: LineCount) -> None:
        self._file, self._lines = file, lines

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._lines.add(piece)
        return piece

    def close(self) -> None:
        self.closed = True
