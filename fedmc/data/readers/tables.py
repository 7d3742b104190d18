"""Tables of features: any columns, from a text file with a header, Parquet, Feather, or an Arrow stream."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from fedmc.data.feature_rows import What
from fedmc.data.ids import as_ids
from fedmc.data.readers import distributed
from fedmc.data.readers.columnar import ArrowStream, is_columnar, opened
from fedmc.data.readers.columns import strings
from fedmc.data.readers.databases import is_database
from fedmc.data.readers.decimals import is_number
from fedmc.data.readers.files import File, of_each
from fedmc.data.readers.places import place_of
from fedmc.data.readers.storage import reading
from fedmc.data.readers.usual import COLUMN_NAMES, candidates, is_usual
from fedmc.errors import DataError, quoted, require
from fedmc.types import Array

DELIMITERS = ("::", "\t", ",", ";", "|")
HEAD = 16  # bytes by which a columnar file is recognised
GZIP = b"\x1f\x8b"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
MISSING = frozenset(("", "na", "n/a", "nan", "null", "\\n"))  # in lower case
Cell = str | float | list[str] | None  # None: missing
Kind = Literal["text", "number", "category"]


class Column(NamedTuple):
    """The cells of a column. In a `text` column, of a text file, 17 may be a number or a name."""

    name: str
    cells: list[Cell]
    kind: Kind


class Table(NamedTuple):
    """A table with one row for each user or item."""

    where: str
    ids: Array
    columns: list[Column]  # without that of the ids
    lines: list[int] | None = None  # of the text file, for each row

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self.where}, row {row + 1}" if self.lines is None else f"{self.where}, line {self.lines[row]}"


def read(source: str | Path | ArrowStream, what: What) -> Table:
    """A table from a file or a DataFrame. The ids are in the first column, unless only another has a usual name."""
    if isinstance(source, str | Path) and is_database(source):
        raise DataError(f"the {what} table cannot be read from a database: write it to a CSV or Parquet file first")
    if not isinstance(source, str | Path):
        try:
            return _from_arrow(pa.table(source), f"the {what} table", what)
        except pa.ArrowException as error:
            cure = "make every column of one kind"
            raise DataError(f"the {what} table cannot be read: {quoted(str(error), 200)}: {cure}") from None
    place = place_of(source)
    with reading(source):
        seen = [file for file in place.files if not Path(file.name).name.startswith(("_", "."))]
        if all(is_columnar(head) for head in of_each(seen, lambda file: file.head(HEAD))):
            return _from_arrow(_joined(seen, place.name), place.name, what)
        require(not place.folder, f"{place.name} is a folder: name the file with the table", DataError)
        return _from_text(place.file, what)


def _joined(files: Sequence[File], where: str) -> pa.Table:
    """The table in columnar files, the parts of one."""
    require(bool(files), f"{where} is a folder without a table", DataError)
    tables = []
    for file in files:
        with opened(file) as found:
            tables.append(found.table())
            alike = set(found.schema.names) == set(tables[0].column_names)
        require(alike, f"the tables in {where} have different columns: name one file", DataError)
    return pa.concat_tables(tables, promote_options="permissive")


def _id_column(names: list[str], what: What, where: str) -> int:
    """The place of the column of ids; the names are checked."""
    for number, name in enumerate(names, 1):
        require(name.strip() != "", f"{where}: column {number} has no name: give it one", DataError)
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, lambda: f"{where} has more than one column {quoted(twice[0])}: rename one", DataError)
    usual = COLUMN_NAMES[what]
    found = [*candidates(names, usual), *(name for name in names if name.strip().lower() == "id")]
    return 0 if not found or is_usual(names[0], usual) or names[0] in found else names.index(found[0])


def _from_text(file: File, what: What) -> Table:
    text, path = _decoded(file), file.name
    rows = (distributed.rows(text, path) if what == "item" else None) or _rows(text, path)
    number, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    require(bool(names), f"{path} is empty: expected a header, then a row for each {what}", DataError)
    ids = _id_column(names, what, path)
    for name in names:
        if is_number(name):
            raise DataError(
                f"{path}, line {number}: expected a header with the names of the columns, got the number {name!r}: "
                "add a first line such as id,year,genres"
            )
    cells: list[list[str]] = [[] for _ in names]
    lines = []
    for line, fields in rows:
        same = len(fields) == len(names)
        expected = f"expected {len(names)} fields, as in the header, got {len(fields)}"
        require(same, lambda: f"{path}, line {line}: {expected}: {quoted(fields)}", DataError)  # noqa: B023
        require(
            fields[ids].strip() != "", f"{path}, line {line}: the {what} id is empty: give every row one", DataError
        )
        lines.append(line)
        for column, field in zip(cells, fields, strict=True):
            column.append(field.strip())
    require(bool(lines), f"{path} has a header but no rows: expected one for each {what}", DataError)
    columns = [
        Column(name, [None if cell.lower() in MISSING else cell for cell in column], "text")
        for place, (name, column) in enumerate(zip(names, cells, strict=True))
        if place != ids
    ]
    return Table(path, strings(pa.array(cells[ids], pa.string()), numbers=True), columns, lines)


def _rows(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line with its number; the delimiter is the one that gives the header the most fields."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=first.count)  # the first of equals
    if len(delimiter) > 1:
        numbered = enumerate(text.splitlines(), 1)
        yield from ((number, line.split(delimiter)) for number, line in numbered if line.strip())
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        yield from ((reader.line_num, row) for row in reader if any(field.strip() for field in row))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None


def _decoded(file: File) -> str:
    """The text of a file, which may be gzipped; UTF-16 with its mark, UTF-8, or else Windows-1252 or Latin-1."""
    with file.open() as opened:
        content = opened.read()
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise DataError(f"{file.name} is damaged: {error}") from None
    wide = content.startswith(UTF_16)
    for encoding in ("utf-16",) if wide else ("utf-8-sig", "cp1252"):
        with suppress(UnicodeDecodeError):
            return content.decode(encoding)
    return content.decode("latin-1")


def _from_arrow(table: pa.Table, where: str, what: What) -> Table:
    names = [name for name in table.column_names if not name.startswith("__index_level_")]  # an index of pandas
    require(bool(names), f"{where} has no columns: expected an id and features", DataError)
    require(table.num_rows > 0, f"{where} has no rows: expected one for each {what}", DataError)
    ids = names[_id_column(names, what, where)]
    columns = [_typed(name, table.column(name), where) for name in names if name != ids]
    return Table(where, _arrow_ids(table.column(ids), what, where), columns)


def _arrow_ids(column: pa.ChunkedArray, what: What, where: str) -> Array:
    require(column.null_count == 0, f"{where}: the {what} id of a row is missing: give every row one", DataError)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return as_ids(column.to_numpy(), what)
    texts = [str(text).strip() for text in _texts(column)]
    require("" not in texts, f"{where}: the {what} id of a row is empty: give every row one", DataError)
    return as_ids(texts, what)


def _typed(name: str, column: pa.ChunkedArray, where: str) -> Column:
    """A typed column: numbers and dates (in days since 1970) are numbers; strings and lists of them, categories."""
    kind = column.type
    try:
        if pa.types.is_temporal(kind):
            seconds = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_pylist()
            return Column(name, [None if value is None else value / 86400 for value in seconds], "number")
        if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
            return Column(
                name, [_present(value) for value in column.cast(pa.float64(), safe=False).to_pylist()], "number"
            )
        if any(test(kind) for test in (pa.types.is_decimal, pa.types.is_null)):
            return Column(name, column.cast(pa.float64(), safe=False).to_pylist(), "number")
        if any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list)):
            _texts(column.combine_chunks().flatten())  # refuses lists of anything else
            return Column(name, [None if cell is None else _clean(cell) for cell in column.to_pylist()], "category")
        texts = _texts(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        cure = "make it numbers, strings or lists of strings, or drop it"
        raise DataError(f"{where}: column {quoted(name)} cannot be a feature, it holds {kind}: {cure}") from error
    cells: list[Cell] = [None if cell is None or cell.strip().lower() in MISSING else cell.strip() for cell in texts]
    return Column(name, cells, "category")


def _texts(column: pa.ChunkedArray | pa.Array) -> list[str | None]:
    """The strings of a column, which may be coded by a dictionary."""
    if pa.types.is_dictionary(column.type):  # Arrow cannot cast all kinds of dictionaries
        return [None if value is None else str(value) for value in column.to_pylist()]
    found: list[str | None] = column.cast(pa.string()).to_pylist()
    return found


def _present(value: float | None) -> float | None:
    """A number, or None instead of NaN."""
    return None if value is None or math.isnan(value) else value


def _clean(cell: list[object]) -> list[str] | None:
    """The categories in a cell that is a list; None if there are none."""
    return [str(text).strip() for text in cell if text is not None and str(text).strip() != ""] or None
