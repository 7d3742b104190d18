"""Parquet, Feather, and any object with Arrow's C stream interface."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from fedmc.data.builder import Batch
from fedmc.data.readers.columns import ColumnSelection, Dictionaries, Header, header_of, roles, to_batch
from fedmc.data.readers.shapes import WITH_HEADER, refusal, unnamed_roles
from fedmc.errors import DataError, quoted

PARQUET, FEATHER = b"PAR1", b"ARROW1"
FIRST_ROWS = 10_000  # that a header looks at


@runtime_checkable
class ArrowStream(Protocol):
    """Any object with Arrow's C stream interface: pandas and polars DataFrames, Arrow tables."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def is_columnar(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(6).startswith((PARQUET, FEATHER))


def read(path: Path, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a Parquet or Feather file."""
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == PARQUET
        reader = _parquet(path, selection) if parquet else _feather(path, selection)
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _parquet(path: Path, selection: ColumnSelection) -> Iterator[Batch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        check_long(file.schema_arrow, selection, str(path))
        role = roles(file.schema_arrow.names, selection, str(path))
        dictionaries = Dictionaries()
        for batch in file.iter_batches(batch_size=1 << 20, columns=role.names):
            yield to_batch(_dict(batch), role, str(path), dictionaries)


def _feather(path: Path, selection: ColumnSelection) -> Iterator[Batch]:
    table = pyarrow.feather.read_table(path, memory_map=True)
    yield from _table(table, selection, str(path))


def from_stream(frame: ArrowStream, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a pandas or polars DataFrame, or of any other Arrow stream."""
    reader = stream_of(frame)
    check_long(reader.schema, selection, "the table", frame=True)
    role = roles(reader.schema.names, selection, "the table")
    dictionaries = Dictionaries()
    for batch in reader:
        yield to_batch(_dict(batch), role, "the table", dictionaries)


def stream_of(frame: ArrowStream) -> pa.RecordBatchReader:
    """The batches of a DataFrame or Arrow table."""
    try:
        return pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(_unreadable(error)) from None


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold the cells of a wide matrix."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def check_long(schema: pa.Schema, selection: ColumnSelection, where: str, frame: bool = False) -> None:
    """Refuse a wide matrix: many columns of numbers, at most one other, and no usual name of items or ratings."""
    if selection.columns is not None or selection.long or len(schema.names) < WITH_HEADER:
        return
    others = sum(not is_number(kind) for kind in schema.types)
    if others <= 1 and unnamed_roles(schema.names):
        raise refusal(where, schema.names, None, frame)


def _unreadable(error: Exception) -> str:
    """What keeps Arrow from reading a DataFrame, and the cure."""
    found = re.search(r"column (.+?) with type", str(error))
    column = f"column {found[1]!r}" if found else "a column"
    if "uplicate column" in str(error):
        return f"the table has two columns of one name ({quoted(str(error), 200)}): rename one"
    if isinstance(error, OverflowError):
        return "a column of the table has whole numbers beyond 64 bits: make them text, such as X['user'].astype(str)"
    return (
        f"{column} of the table cannot be read, its cells are of several kinds: make them all numbers or all text, "
        f"such as X[{found[1] if found else 'NAME'!r}] = X[{found[1] if found else 'NAME'!r}].astype(str)"
    )


def header(path: Path) -> Header:
    """The columns of a Parquet or Feather file."""
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == PARQUET
        if parquet:
            with pyarrow.parquet.ParquetFile(path) as opened:
                first = next(opened.iter_batches(batch_size=FIRST_ROWS), None)
                return header_of(opened.schema_arrow.names, {} if first is None else _dict(first))
        table = pyarrow.feather.read_table(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return _header_of_table(table)


def header_of_stream(frame: ArrowStream) -> Header:
    """The columns of a DataFrame; of a stream that can be read only once, without event types."""
    if isinstance(frame, pa.RecordBatchReader):
        return header_of(frame.schema.names, {})
    return _header_of_table(stream_of(frame).read_all())


def _header_of_table(table: pa.Table) -> Header:
    batches = table.slice(0, FIRST_ROWS).combine_chunks().to_batches()
    return header_of(table.column_names, _dict(batches[0]) if batches else {})


def _table(table: pa.Table, selection: ColumnSelection, where: str) -> Iterator[Batch]:
    check_long(table.schema, selection, where)
    role = roles(table.column_names, selection, where)
    dictionaries = Dictionaries()
    for batch in table.select(role.names).to_batches():
        yield to_batch(_dict(batch), role, where, dictionaries)


def _dict(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
