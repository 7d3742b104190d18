"""Parquet, Feather, and anything that speaks Arrow's C stream interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from fedmc.data.builder import Batch
from fedmc.data.readers.columns import Memo, Wanted, roles, to_batch
from fedmc.errors import DataError

PARQUET, FEATHER = b"PAR1", b"ARROW1"


def is_columnar(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(6).startswith((PARQUET, FEATHER))


def read(path: Path, wanted: Wanted) -> Iterator[Batch]:
    """The rows of a Parquet or Feather file."""
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == PARQUET
        reader = _parquet(path, wanted) if parquet else _feather(path, wanted)
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _parquet(path: Path, wanted: Wanted) -> Iterator[Batch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        role = roles(file.schema_arrow.names, wanted, str(path))
        memo = Memo()
        for batch in file.iter_batches(batch_size=1 << 20, columns=role.names):
            yield to_batch(_dict(batch), role, str(path), memo)


def _feather(path: Path, wanted: Wanted) -> Iterator[Batch]:
    table = pyarrow.feather.read_table(path, memory_map=True)
    yield from _table(table, wanted, str(path))


def from_stream(frame: Any, wanted: Wanted) -> Iterator[Batch]:
    """The rows of a pandas or polars DataFrame, or of any other Arrow stream."""
    reader = pa.RecordBatchReader.from_stream(frame)
    role = roles(reader.schema.names, wanted, "the table")
    memo = Memo()
    for batch in reader:
        yield to_batch(_dict(batch), role, "the table", memo)


def _table(table: pa.Table, wanted: Wanted, where: str) -> Iterator[Batch]:
    role = roles(table.column_names, wanted, where)
    memo = Memo()
    for batch in table.select(role.names).to_batches():
        yield to_batch(_dict(batch), role, where, memo)


def _dict(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
