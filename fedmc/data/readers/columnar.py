"""Parquet, Feather, and any object with Arrow's C stream interface."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from fedmc.data.builder import Batch
from fedmc.data.readers.columns import ColumnSelection, Dictionaries, Header, header_of, roles, to_batch
from fedmc.data.readers.files import File
from fedmc.data.readers.shapes import WITH_HEADER, refusal, unnamed_roles
from fedmc.errors import DataError, quoted

PARQUET, FEATHER = b"PAR1", b"ARROW1"
ROWS = 1 << 20  # of a batch
FIRST_ROWS = 10_000  # that a header looks at


@runtime_checkable
class ArrowStream(Protocol):
    """Any object with Arrow's C stream interface: pandas and polars DataFrames, Arrow tables."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class Lazy(Protocol):
    """A table that is yet to be computed: a polars LazyFrame."""

    def collect_schema(self) -> object: ...
    def collect(self) -> object: ...


def collected(table: object) -> object:
    """The table, computed if it is a lazy one."""
    return table.collect() if isinstance(table, Lazy) else table


def is_columnar(head: bytes) -> bool:
    """Whether a file that begins so is a Parquet or Feather file."""
    return head.startswith((PARQUET, FEATHER))


def read(files: Sequence[File], selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of Parquet and Feather files, the parts of one table."""
    dictionaries = Dictionaries()
    for file in files:
        with opened(file) as table:
            check_long(table.schema, selection, file.name)
            role = roles(table.schema.names, selection, file.name)
            for batch in table.batches(role.names):
                yield to_batch(_dict(batch), role, file.name, dictionaries)


class Opened(NamedTuple):
    """An open Parquet or Feather file."""

    schema: pa.Schema
    batches: Callable[[list[str] | None], Iterable[pa.RecordBatch]]  # with these columns; None: all

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(None), self.schema)


@contextmanager
def opened(file: File, rows: int = ROWS) -> Iterator[Opened]:
    """Open a file; Parquet is read in batches of so many rows."""
    try:
        if file.head(len(PARQUET)) == PARQUET:
            with pyarrow.parquet.ParquetFile(file.source(), pre_buffer=file.stored is not None) as parquet:
                yield Opened(parquet.schema_arrow, lambda names: parquet.iter_batches(rows, columns=names))
        else:
            with _feather(file) as feather:
                yield feather
    except (pa.ArrowException, OSError) as error:
        if file.stored is not None:  # told by the reader of storage
            raise
        raise DataError(f"{file.name} cannot be read: {error}") from None


@contextmanager
def _feather(file: File) -> Iterator[Opened]:
    """A Feather file: mapped into memory if it is on disk, else record batch by record batch."""
    source = pa.memory_map(str(file.path)) if file.stored is None else file.stored()
    with source, pa.ipc.open_file(source) as reader:

        def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                yield batch if names is None else batch.select(names)

        yield Opened(reader.schema, batches)


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


def header(file: File) -> Header:
    """The columns of a Parquet or Feather file."""
    with opened(file, FIRST_ROWS) as table:
        first = next(iter(table.batches(None)), None)
        return header_of(table.schema.names, {} if first is None else _dict(first.slice(0, FIRST_ROWS)))


def header_of_stream(frame: ArrowStream) -> Header:
    """The columns of a DataFrame; of a stream that can be read only once, without event types."""
    if isinstance(frame, pa.RecordBatchReader):
        return header_of(frame.schema.names, {})
    return _header_of_table(stream_of(frame).read_all())


def _header_of_table(table: pa.Table) -> Header:
    batches = table.slice(0, FIRST_ROWS).combine_chunks().to_batches()
    return header_of(table.column_names, _dict(batches[0]) if batches else {})


def _dict(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
