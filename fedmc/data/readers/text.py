"""Text tables: comma, tab, semicolon, bar or `::` between the fields, with or without a header."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from fedmc.data.builder import Batch
from fedmc.data.readers.columns import (
    EVENTS_CURE,
    ColumnSelection,
    Dictionaries,
    Header,
    Need,
    Roles,
    header_of,
    roles,
    to_batch,
)
from fedmc.data.readers.decimals import decimal_of, is_number, pointed, value
from fedmc.data.readers.files import File
from fedmc.data.readers.lines import LineCount
from fedmc.data.readers.told import by_place
from fedmc.data.readers.wide_text import check_long
from fedmc.errors import DataError, require
from fedmc.kernels.parsing import has_leading_zero

DELIMITERS = ("::", "\t", ",", ";", "|")
CSVOptions = tuple[pacsv.ReadOptions, pacsv.ParseOptions, pacsv.ConvertOptions]
NO_HEADER = ("user", "item", "rating", "time")
EVENTS_NO_HEADER = ("user", "item", "time")  # of events without a rating; with four fields, as above
FIRST_TIME = 1e8  # a larger number in the third of three fields is a time, in seconds since 1970


class Layout(NamedTuple):
    """How a text file is divided into fields."""

    delimiter: str
    names: list[str]
    header: bool
    decimal: str = "."


def read(file: File, selection: ColumnSelection) -> Iterator[Batch]:
    """The rows of a text table."""
    head = file.head(1 << 16)
    if selection.columns is None and not selection.long:
        check_long(head, file.name)
    layout = sniff(head, file.name, selection.rating)
    if layout.header:
        role = roles(layout.names, selection, file.name)
    else:
        named = selection.columns is None and selection.group is None
        require(named, f"{file.name} has no header, so its columns cannot be named", DataError)
        role = _times_left_out(roles(layout.names, selection, file.name), layout, head, selection)
        places = {name: layout.names.index(name) if name in role.names else None for name in NO_HEADER}
        role = role._replace(told=by_place(places))
    if _has_commas(head, layout, role):
        layout = layout._replace(decimal=",")
        role = role._replace(told="; ".join(filter(None, (role.told, f"{role.label}s have decimal commas"))))
    dictionaries = Dictionaries(numbers=True)
    lines = LineCount()
    numbers = file.path is not None and _scan(file, lines) and _starts_with_numbers(file, layout, role)
    rows = int(layout.header)
    try:
        for columns in _parse(file, layout, role, numbers, lines):
            rows += len(columns[role.user])
            yield to_batch(columns, role, file.name, dictionaries)
        lost = f"{file.name} has {lines.count:,} lines, but {rows:,} rows: a quote is not closed, or holds a line break"
        require(rows == lines.count, lost, DataError)
    except (pa.ArrowInvalid, pa.ArrowKeyError, DataError) as error:
        _explain(file, layout, role, error)


def _has_commas(head: bytes, layout: Layout, role: Roles) -> bool:
    """Whether the first ratings have decimal commas."""
    if role.rating is None:
        return False
    place = layout.names.index(role.rating)
    lines = head.decode("utf-8-sig", "replace").splitlines()[int(layout.header) :]
    rows = (_split(line, layout.delimiter) for line in lines)
    return decimal_of((row[place] for row in rows if len(row) > place), layout.delimiter) == ","


def _times_left_out(role: Roles, layout: Layout, head: bytes, selection: ColumnSelection) -> Roles:
    """The roles without a fourth field that is called a time, has no name of its own, and does not look like one."""
    if role.time is None or selection.times:
        return role
    field = _split(_first_line(head), layout.delimiter)[layout.names.index(role.time)]
    return role if _is_time(field) else role._replace(time=None)


def header(file: File) -> Header:
    """The columns of a text table; without a header, a column of ratings or amounts has a number instead of a name."""
    head = file.head(1 << 16)
    layout = sniff(head, file.name, "optional")
    if not layout.header:
        return Header(tuple("column 3" if name == "rating" else name for name in layout.names))
    lines = head.decode("utf-8-sig", "replace").splitlines()[1:]
    rows = [row for row in (_split(line, layout.delimiter) for line in lines) if len(row) == len(layout.names)]
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return header_of(layout.names, dict(zip(layout.names, columns, strict=False)))


def sniff(head: bytes, name: str, rating: Need = "required") -> Layout:
    """The delimiter, the column names and whether there is a header, from the first line."""
    rated = rating == "required"
    first = _first_line(head)
    expected = ("user, item, rating", "three", 3) if rated else ("user, item", "two", 2)
    require(
        first.strip() != "",
        f"{name} is empty or starts with a blank line: expected lines of {expected[0]}",
        DataError,
    )
    delimiter = _delimiter(first, expected[2])
    if delimiter is None:
        two = rated and any(len(_split(first, mark)) == 2 for mark in DELIMITERS)
        raise DataError(
            f"{name}, line 1: expected at least {expected[1]} fields ({expected[0]}) separated by one of "
            f"comma, tab, ';', '|' or '::', got {first[:80]!r}"
            + (f"; a table of user and item {EVENTS_CURE}" if two else "")
        )
    fields = [pointed(field.strip(), delimiter) for field in _split(first, delimiter)]
    third = rated and len(fields) <= 4
    header = not is_number(fields[2]) if third else not any(is_number(field) for field in fields)
    if header:
        return Layout(delimiter, fields, True)
    numbered = rating in ("required", "number") or (rating == "optional" and not _is_time(fields[-1]))
    third_is_rating = numbered or len(fields) > 3
    usual = NO_HEADER if third_is_rating else EVENTS_NO_HEADER
    return Layout(delimiter, [*usual, *(f"column {i + 1}" for i in range(4, len(fields)))][: len(fields)], False)


def _delimiter(line: str, least: int) -> str | None:
    """The first delimiter that gives enough fields; a semicolon if that leaves a decimal comma, as in 17;4;3,5."""
    marks = [mark for mark in DELIMITERS if len(_split(line, mark)) >= least]
    if ";" in marks and decimal_of(_split(line, ";"), ";") == ",":
        return ";"
    return marks[0] if marks else None


def looks_like(head: bytes, name: str, selection: ColumnSelection) -> bool:
    """Whether the first line is a header with the selected columns, or starts with two ids (and a rating)."""
    try:
        layout = sniff(head, name, selection.rating)
        role = roles(layout.names, selection._replace(times=False, any_times=False, group=None), name)
        if layout.header:
            return True
    except DataError:
        return False
    fields = _split(_first_line(head), layout.delimiter)
    numbers = [fields[layout.names.index(one)] for one in (role.rating,) if one is not None]
    return len(fields) <= 4 and all(map(str.isdigit, (*fields[:2], *fields[3:]))) and all(map(is_number, numbers))


def _first_line(head: bytes) -> str:
    return head.decode("utf-8-sig", "replace").split("\n", 1)[0].rstrip("\r")


def _parse(file: File, layout: Layout, role: Roles, numbers: bool, lines: LineCount) -> Iterator[dict[str, pa.Array]]:
    """The columns in chunks; ids as integers if `numbers` and that is exact, else as strings.

    Lines of a file that is not on disk are counted on the way, so that it is fetched or unpacked only once.
    """
    for kind in (pa.int32(), pa.int64()) if numbers else ():
        try:
            table = pacsv.read_csv(str(file.path), *_options(layout, role, kind)).to_batches()
        except pa.ArrowInvalid:
            continue
        table.reverse()
        yield from _released((table.pop() for _ in range(len(table))), role)
        return
    with (
        file.open() as plain,
        lines.counted(plain, file.path is None) as opened,
        pacsv.open_csv(opened, *_options(layout, role, pa.string(), 1 << 19)) as reader,
    ):
        yield from _released(_gathered(reader), role)


def _gathered(reader: Iterable[pa.RecordBatch], rows: int = 1 << 19) -> Iterator[pa.RecordBatch]:
    """Join small batches: the reader buffers many blocks, so its blocks must be small."""
    waiting: list[pa.RecordBatch] = []
    for batch in itertools.chain(reader, [None]):
        if batch is not None:
            waiting.append(batch)
        if waiting and (batch is None or sum(part.num_rows for part in waiting) >= rows):
            yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
            waiting = []


def _released(batches: Iterable[pa.RecordBatch], role: Roles) -> Iterator[dict[str, pa.Array]]:
    """The batches' columns; releases Arrow's memory after use, to keep the peak low."""
    for number, batch in enumerate(batches):
        yield dict(zip(role.names, batch.columns, strict=True))
        if number % 8 == 0:
            pa.default_memory_pool().release_unused()
    pa.default_memory_pool().release_unused()


def _options(layout: Layout, role: Roles, ids: pa.DataType, block: int = 1 << 22) -> CSVOptions:
    double = layout.delimiter == "::"  # read as ':' with an empty field between
    names = [part for name in layout.names for part in (name, f"between {name}")][:-1] if double else layout.names
    types = {role.user: ids, role.item: ids}
    if role.rating is not None:
        types[role.rating] = pa.float64()
    for name in (role.group, role.event):
        if name is not None:
            types.setdefault(name, pa.string())
    return (
        pacsv.ReadOptions(column_names=names, skip_rows=int(layout.header), block_size=block),
        pacsv.ParseOptions(delimiter=layout.delimiter[0]),
        pacsv.ConvertOptions(
            column_types=types, include_columns=role.names, null_values=[], decimal_point=layout.decimal
        ),
    )


def _starts_with_numbers(file: File, layout: Layout, role: Roles) -> bool:
    """Whether the first row's ids are whole numbers; if not, parsing them as such would fail."""
    places = [layout.names.index(name) for name in (role.user, role.item)]
    for number, fields in _lines(file, layout):
        if not (layout.header and number == 1):
            return len(fields) > max(places) and all(fields[place].strip().lstrip("-").isdigit() for place in places)
    return False


def _scan(file: File, lines: LineCount) -> bool:
    """Count the lines; whether no field starts with 0 and another digit."""
    zeros, before = False, b"\n"
    with file.open() as opened:
        while piece := opened.read(1 << 22):
            zeros = zeros or has_leading_zero(np.frombuffer(before + piece, np.uint8))
            lines.add(piece)
            before = piece[-2:]  # two bytes of overlap, for fields at the boundary
    return not zeros


def _lines(file: File, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """The numbered lines, split into fields by Python's csv module (or at `::`)."""
    with file.open() as opened, io.TextIOWrapper(opened, "utf-8-sig", "replace", newline="") as text:
        if len(layout.delimiter) == 1:
            reader = csv.reader(text, delimiter=layout.delimiter)
            try:
                yield from ((reader.line_num, row) for row in reader if row)
            except csv.Error as error:
                raise DataError(f"{file.name}, line {reader.line_num}: {error}") from None
        else:
            numbered = enumerate(text, 1)
            yield from ((number, line.rstrip("\r\n").split("::")) for number, line in numbered if line.strip())


def _explain(file: File, layout: Layout, role: Roles, error: Exception) -> NoReturn:
    """Find the first bad line and raise an error that says what was expected there."""
    place = None if role.rating is None else layout.names.index(role.rating)
    for number, fields in _lines(file, layout):
        if layout.header and number == 1:
            continue
        where = f"{file.name}, line {number}"
        if len(fields) != len(layout.names):
            raise DataError(f"{where}: expected {len(layout.names)} fields, got {len(fields)}: {fields}")
        amount = 1.0 if place is None else value(f"{where}: the {role.label}", fields[place], layout.decimal)
        for who in (role.user, role.item):
            if not fields[layout.names.index(who)].strip():
                raise DataError(f"{where}: the {who} is empty: expected an id")
        if place is not None and not np.isfinite(amount):
            raise DataError(f"{where}: the {role.label} must be finite, got {fields[place]!r}: drop the line")
    raise error if isinstance(error, DataError) else DataError(f"{file.name} cannot be read: {error}")


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return line.split(delimiter) if len(delimiter) > 1 else next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        return []


def _is_time(field: str) -> bool:
    """Whether the third of three fields is a time rather than a rating or an amount: a date, or many seconds."""
    return not is_number(field) or float(field) >= FIRST_TIME
