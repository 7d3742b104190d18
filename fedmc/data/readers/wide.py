"""Wide matrices: a row for each user, a column for each item, and a number or nothing in each cell.

Blocks of rows become arrays, so that only one block at a time is held as a matrix. Cells that are empty, NaN or NA, or
that hold one of the numbers given as `missing`, are no ratings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedmc.data.builder import Batch, Coded, Ids
from fedmc.data.forms import Wide
from fedmc.data.readers.columnar import ArrowStream, collected, is_columnar, is_number, opened, stream_of
from fedmc.data.readers.columns import Dictionaries, ids, strings
from fedmc.data.readers.files import File
from fedmc.data.readers.shapes import INDEX, ROWS, Sample, listed, stand_in
from fedmc.data.readers.wide_text import USERS, WideText
from fedmc.errors import DataError, quoted, require
from fedmc.types import Array

HEAD = 16  # bytes by which a columnar file is recognised
BLOCK = 1 << 22  # cells of a 2-D array or of a columnar file that are looked at together


class Block(NamedTuple):
    """Some rows: the names of the rows, if a column holds them, and the cells (NaN: empty)."""

    labels: Ids | None
    cells: Array
    first: int  # number of the first row, from `Matrix.origin`


class Matrix:
    """The rows of a wide matrix as batches of ratings; `notes` says what was read, when all batches are."""

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        blocks: Iterable[Block],
        wide: Wide,
        *,
        label: str | None = None,
        numbered: bool = False,
    ) -> None:
        self.where, self.names, self.blocks, self.wide = where, tuple(names), blocks, wide
        self.label, self.numbered = label, numbered  # name of the column of users; whether `names` only number columns
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, lambda: f"{where} has more than one column {quoted(twice[0])}: rename one", DataError)
        require("" not in names, f"{where}: a column has no name: give each item one", DataError)
        self.rows = self.empty_rows = self.ratings = 0
        self.counted = False

    def __iter__(self) -> Iterator[Batch]:
        """The ratings, block by block."""
        missing = self.wide.numbers()
        items: Array | None = None
        for block in self.blocks:
            cells = block.cells
            if items is None:  # the first block decides
                self._check_missing(cells if block.labels is not None else cells[:, 1:])
                self.counted = block.labels is None and is_count(cells, missing)
                if self.counted:
                    self.names = self.names[:-1] if self.numbered else self.names[1:]
                items = strings(pa.array(self.names, pa.string()), numbers=True)
            counts, cells = (cells[:, 0], cells[:, 1:]) if self.counted else (None, cells)
            known = ~np.isnan(cells) & ~np.isin(cells, missing)
            self._check(block, cells, known, counts)
            rows, columns = np.nonzero(known)
            self.rows += len(cells)
            self.ratings += len(rows)
            self.empty_rows += len(cells) - int(known.any(axis=1).sum())
            yield Batch(_users(block, rows), Coded(columns.astype(np.int32), items), cells[rows, columns])

    def _check_missing(self, cells: Array) -> None:
        number = stand_in(cells) if self.wide.missing is None else None
        if number is None:
            return
        share = f"{np.mean(cells == number):.0%}".replace("%", " %")
        known = cells[~np.isnan(cells) & (cells != number)]
        raise DataError(
            f"{self.where}: {share} of the cells hold {number:g}, and all others lie between {known.min():g} and "
            f"{known.max():g}: if it means that there is no rating, say so with missing={number:g}; if it is a "
            "rating, with missing='none'"
        )

    def _check(self, block: Block, cells: Array, known: Array, counts: Array | None) -> None:
        bad = np.argwhere(np.isinf(cells) & known)
        if len(bad):
            row, column = bad[0]
            place = f"{self.where}, row {block.first + row}, column {quoted(self.names[column])}"
            raise DataError(f"{place}: ratings must be finite, got {cells[row, column]:g}: leave the cell empty")
        if counts is not None:
            other = np.flatnonzero(counts != known.sum(axis=1))
            if len(other):
                row = int(other[0])
                raise DataError(
                    f"{self.where}, row {block.first + row}: the first column counts the ratings of each row before, "
                    f"but here it is {counts[row]:g} of {known[row].sum()} ratings: correct it, or remove that column"
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was read, in words."""
        users = f"column {quoted(self.label)}" if self.label is not None else "the numbers of the rows"
        counts = "; the first column counts the ratings, it is left out" if self.counted else ""
        empty = f"; {self.empty_rows:,} rows without a rating are left out" if self.empty_rows else ""
        size = f"{self.rows:,} rows x {len(self.names):,} columns, {self.ratings:,} ratings"
        return (f"wide matrix: {size}; users: {users}{counts}{empty}",)


def read(file: File, wide: Wide, columns: Sequence[str] | None = None) -> Matrix:
    """The wide matrix in a text, Parquet or Feather file; `columns` may name the column of users."""
    require(columns is None or len(columns) == 1, _one_name(columns), DataError)
    user = None if columns is None else columns[0]
    if not is_columnar(file.head(HEAD)):
        text = WideText(file, user)
        blocks = _blocks(text.batches(), None if text.label is None else USERS, 1, file.name)
        return Matrix(file.name, text.items, blocks, wide, label=text.label, numbered=not text.sample.header)
    with opened(file) as table:
        schema = table.schema
    return _of_batches(schema, _batches(file, max(1, BLOCK // max(1, len(schema.names)))), wide, file.name, (user, 1))


def _batches(file: File, rows: int) -> Iterator[pa.RecordBatch]:
    with opened(file, rows) as table:
        yield from table.batches(None)


def of_object(X: object, wide: Wide) -> Matrix:
    """The wide matrix in a DataFrame or a 2-D array; rows without names, and columns of an array, count from 0."""
    X = collected(X)
    if isinstance(X, ArrowStream):
        reader = stream_of(X)
        return _of_batches(reader.schema, reader, wide, "the table", (None, 0))
    try:
        array = np.asarray(X, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"a wide matrix holds numbers, or NaN where there is no rating: {error}") from None
    require(array.ndim == 2, f"a wide matrix has rows and columns, got shape {array.shape}", DataError)
    blocks = (Block(None, part, first) for first, part in _parts(array))
    return Matrix("the array", tuple(map(str, range(array.shape[1]))), blocks, wide, numbered=True)


def is_count(cells: Array, missing: Sequence[float] = ()) -> bool:
    """Whether the first column holds the number of ratings in each row, as in Jester."""
    if len(cells) < 3 or cells.shape[1] < 3:
        return False
    rated = (~np.isnan(cells[:, 1:]) & ~np.isin(cells[:, 1:], missing)).sum(axis=1)
    return bool((cells[:, 0] == rated).all()) and not np.array_equal(cells[:, 0], np.arange(1, len(cells) + 1))


def _one_name(columns: Sequence[str] | None) -> str:
    return f"a wide matrix has one column to name, that of the users (columns='USER'), got {','.join(columns or ())}"


def _parts(array: Array) -> Iterator[tuple[int, Array]]:
    step = max(1, BLOCK // max(1, array.shape[1]))
    yield from ((first, array[first : first + step]) for first in range(0, len(array), step))


def _of_batches(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], wide: Wide, where: str, given: tuple[str | None, int]
) -> Matrix:
    """The matrix of typed columns; `given` is the name of the users' column, if any, and the first row's number."""
    batches = iter(batches)
    first = next(batches, None)
    require(first is not None and first.num_rows > 0, f"{where} has no rows: expected one for each user", DataError)
    label, origin = given
    names = schema.names
    if label is None:
        place = _sample(first).label
        label = None if place is None else names[place]
    require(label is None or label in names, f"{where} has no column {label!r}: it has {listed(names)}", DataError)
    items = [name for name in names if name != label]
    shown = None if label is None else "index" if label.startswith(INDEX) else label
    rest = itertools.chain([first], batches)
    return Matrix(where, items, _blocks(rest, label, origin, where), wide, label=shown)


def _sample(batch: pa.RecordBatch) -> Sample:
    texts = np.array([not is_number(kind) for kind in batch.schema.types], float)
    return Sample(tuple(batch.schema.names), True, np.empty((min(ROWS, batch.num_rows), 0)), texts)


def _blocks(batches: Iterable[pa.RecordBatch], label: str | None, origin: int, where: str) -> Iterator[Block]:
    dictionaries, first = Dictionaries(numbers=True), origin
    for batch in batches:
        labels = None if label is None else ids(batch.column(label), "user", where, dictionaries)
        columns = [_numbers(batch.column(k), name, where) for k, name in enumerate(batch.schema.names) if name != label]
        require(bool(columns), f"{where} has no columns of items", DataError)
        yield Block(labels, np.column_stack(columns), first)
        first += batch.num_rows


def _numbers(column: pa.Array, name: str, where: str) -> Array:
    require(
        is_number(column.type),
        lambda: (
            f"{where}: column {quoted(name)} holds {column.type}, but the cells of a wide matrix are numbers: drop "
            "it, or name it if it holds the users (columns='USER')"
        ),
        DataError,
    )
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _users(block: Block, rows: Array) -> Ids:
    """The user of each rating."""
    labels = block.labels
    if labels is None:
        return np.asarray(rows + block.first, np.int64)
    return Coded(labels.codes[rows], labels.values) if isinstance(labels, Coded) else labels[rows]
