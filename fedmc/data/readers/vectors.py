"""Write Parquet tables whose columns may hold a list in each row: vectors, and lists of any length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fedmc.types import Array

NUMBERS = 1 << 24  # in a row group, at most, of the longest column


class Lists(NamedTuple):
    """A list in each row: that of row k is values[starts[k]:starts[k + 1]]."""

    starts: Array
    values: Array


Column = Array | Lists


def write_vectors(path: Path, columns: Mapping[str, Column]) -> None:
    """Write a table; a column of two dimensions becomes one of lists, a row each."""
    lists = {name: one if isinstance(one, Lists) or one.ndim == 1 else _rows(one) for name, one in columns.items()}
    longest = max(_length(one) for one in lists.values())
    most = max(_numbers(one) for one in lists.values())
    step = max(1, int(NUMBERS * longest / max(most, 1)))
    first = _table(lists, 0, 0)
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        for start in range(0, longest, step):
            writer.write_table(_table(lists, start, min(start + step, longest)))


def _rows(matrix: Array) -> Lists:
    return Lists(np.arange(len(matrix) + 1, dtype=np.int64) * matrix.shape[1], matrix.reshape(-1))


def _length(column: Column) -> int:
    return len(column.starts) - 1 if isinstance(column, Lists) else len(column)


def _numbers(column: Column) -> int:
    return len(column.values) if isinstance(column, Lists) else len(column)


def _table(columns: Mapping[str, Column], start: int, end: int) -> pa.Table:
    """The rows from start to end."""
    return pa.table({name: _part(column, start, end) for name, column in columns.items()})


def _part(column: Column, start: int, end: int) -> pa.Array:
    if not isinstance(column, Lists):
        return pa.array(column[start:end])
    starts = column.starts[start : end + 1]
    values = column.values[starts[0] : starts[-1]]
    return pa.ListArray.from_arrays(pa.array((starts - starts[0]).astype(np.int32)), pa.array(values))
