"""Write ratings to a CSV, TSV, Parquet or Feather file, and tables of any columns in blocks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
from scipy import sparse

from fedmc.data.files import free
from fedmc.errors import unknown
from fedmc.types import Array

ENDINGS = (".csv", ".tsv", ".parquet", ".feather")
IN_BLOCKS = (".parquet", ".feather", ".csv", ".tsv", ".jsonl")
EXACT = (".parquet", ".feather")
DIGITS = 4  # of numbers in text
Block = Mapping[str, Array]  # columns of equal length, by name


class Table(Protocol):
    """What `write_table` writes: a `Ratings`."""

    @property
    def users(self) -> Array: ...
    @property
    def items(self) -> Array: ...
    @property
    def matrix(self) -> sparse.csr_array: ...
    @property
    def times(self) -> Array | None: ...
    def rows(self) -> Array: ...


class Writer(Protocol):
    """Writes tables one after the other."""

    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """One JSON object in each line; a number that is not finite becomes null."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            self._file.write(json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


def write_table(ratings: Table, path: str | Path) -> None:
    """Write one row per rating, in the order of the ids, atomically; the file's ending determines the format."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise unknown("ending", path.suffix, ENDINGS)
    columns = {
        "user": ratings.users[ratings.rows()],
        "item": ratings.items[ratings.matrix.indices],
        "rating": ratings.matrix.data,
    }
    if ratings.times is not None:
        columns["timestamp"] = ratings.times
    table = pa.table(columns)
    partial = free(path.with_name(path.name + ".part"))
    try:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, partial)
        elif path.suffix == ".feather":
            pyarrow.feather.write_feather(table, partial)
        else:
            options = pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            pyarrow.csv.write_csv(table, partial, options)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_ending(path: Path) -> None:
    """Refuse a file that `writing_rows` cannot write."""
    if path.suffix not in IN_BLOCKS:
        raise unknown("ending", path.suffix, IN_BLOCKS)


@contextmanager
def writing_rows(path: Path) -> Iterator[Callable[[Block], None]]:
    """A function that appends blocks of rows; the file appears when all are written, in the format of its ending.

    In text, numbers that are not whole have four digits after the point.
    """
    check_ending(path)
    partial = free(path.with_name(path.name + ".part"))
    writers: list[Writer] = []

    def write(block: Block) -> None:
        table = pa.table({name: _column(column, path.suffix) for name, column in block.items()})
        if not writers:
            writers.append(_writer(partial, path.suffix, table.schema))
        writers[0].write_table(table)

    try:
        try:
            yield write
        finally:
            for writer in writers:
                writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _column(column: Array, ending: str) -> Array:
    return np.round(column, DIGITS) if ending not in EXACT and column.dtype.kind == "f" else column


def _writer(path: Path, ending: str, schema: pa.Schema) -> Writer:
    if ending == ".parquet":
        return pyarrow.parquet.ParquetWriter(path, schema)  # type: ignore[no-any-return]
    if ending == ".feather":
        return pa.ipc.new_file(str(path), schema)  # type: ignore[no-any-return]
    if ending == ".jsonl":
        return _Lines(path)
    options = pyarrow.csv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",", quoting_style="needed")
    return pyarrow.csv.CSVWriter(path, schema, write_options=options)  # type: ignore[no-any-return]
