"""Ratings from files: CSV and its kin, with or without a header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from fedmc.errors import DataError, require
from fedmc.ratings import Duplicates, Ratings, find_columns

Array = NDArray[Any]

DELIMITERS = ("::", "\t", ",", ";", "|")


class Layout(NamedTuple):
    """How a file is cut into fields."""

    delimiter: str
    names: list[str]
    header: bool


def read_ratings(
    path: str | Path, columns: Sequence[str] | None = None, *, duplicates: Duplicates = "refuse"
) -> Ratings:
    """Ratings from a text table: user, item, rating, and more columns that are ignored."""
    path = Path(path)
    require(path.is_file(), f"there is no file {path}", DataError)
    layout = sniff(path)
    if layout.header:
        wanted = find_columns(layout.names, columns)
    else:
        require(
            columns is None,
            f"{path} has no header, so columns cannot be named: leave --columns away",
            DataError,
        )
        wanted = layout.names[0], layout.names[1], layout.names[2]
    try:
        table = _read(path, layout, wanted)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        _explain(path, layout, wanted, str(error))
    ratings = table[wanted[2]].to_numpy()
    if not np.isfinite(ratings).all():
        _explain(path, layout, wanted, "a rating is not finite")
    return Ratings.from_arrays(_ids(table[wanted[0]]), _ids(table[wanted[1]]), ratings, duplicates=duplicates)


def sniff(path: Path) -> Layout:
    """The delimiter, the column names and whether they stand in the first line, from that line."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(100_000).rstrip("\r\n")
    require(first != "", f"{path} is empty: expected lines of user, item, rating", DataError)
    delimiter = next((mark for mark in DELIMITERS if len(_split(first, mark)) >= 3), None)
    if delimiter is None:
        raise DataError(
            f"{path}, line 1: expected at least three fields (user, item, rating) separated by one of "
            f"comma, tab, ';', '|' or '::', got {first[:80]!r}"
        )
    fields = _split(first, delimiter)
    header = not _is_number(fields[2]) if len(fields) <= 4 else not any(_is_number(field) for field in fields)
    return Layout(delimiter, fields if header else [f"column {i + 1}" for i in range(len(fields))], header)


def _read(path: Path, layout: Layout, wanted: tuple[str, str, str]) -> pa.Table:
    """Ids as strings and ratings as numbers. '::' is read as ':' with an empty field between."""
    double = layout.delimiter == "::"
    names = [part for name in layout.names for part in (name, f"between {name}")][:-1] if double else layout.names
    types = {wanted[0]: pa.string(), wanted[1]: pa.string(), wanted[2]: pa.float64()}
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(column_names=names, skip_rows=int(layout.header)),
        parse_options=pacsv.ParseOptions(delimiter=layout.delimiter[0]),
        convert_options=pacsv.ConvertOptions(column_types=types, include_columns=list(wanted), null_values=[]),
    )


def _ids(column: pa.ChunkedArray) -> Array:
    """Whole numbers where every id is one as written (no leading zeros, no signs), else strings."""
    if pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,17})$")).as_py():
        return np.asarray(column.cast(pa.int64()).to_numpy())
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.str_)


def _lines(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file with their numbers, cut into fields, as Python reads them."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        if len(layout.delimiter) == 1:
            reader = csv.reader(file, delimiter=layout.delimiter)
            try:
                yield from ((reader.line_num, row) for row in reader if row)
            except csv.Error as error:
                raise DataError(f"{path}, line {reader.line_num}: {error}") from None
        else:
            numbered = enumerate(file, 1)
            yield from ((number, line.rstrip("\r\n").split("::")) for number, line in numbered if line.strip())


def _explain(path: Path, layout: Layout, wanted: tuple[str, str, str], error: str) -> NoReturn:
    """Find the line that is wrong and say what was expected there."""
    place = layout.names.index(wanted[2])
    for number, fields in _lines(path, layout):
        if layout.header and number == 1:
            continue
        where = f"{path}, line {number}"
        if len(fields) != len(layout.names):
            raise DataError(f"{where}: expected {len(layout.names)} fields, got {len(fields)}: {fields}")
        if not _is_number(fields[place]):
            raise DataError(f"{where}: the rating should be a number, got {fields[place]!r}")
        if not np.isfinite(float(fields[place])):
            raise DataError(f"{where}: the rating must be finite, got {fields[place]!r}: drop the line")
    raise DataError(f"{path} cannot be read: {error}")


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return line.split(delimiter) if len(delimiter) > 1 else next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        return []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
