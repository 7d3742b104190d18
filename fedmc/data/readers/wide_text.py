"""Text files with a wide matrix: their layout, from the first rows, and their columns as numbers."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from fedmc.data.readers.files import File
from fedmc.data.readers.shapes import EMPTY, ROWS, Sample, is_empty, listed, looks_wide, refusal, sample_of, stand_in
from fedmc.errors import DataError, quoted, require

DELIMITERS = ("\t", ",", ";", "|")
USERS = "users"  # how the batches call the column of users
WIDEST = 200  # fields of a line that no table of ratings has
HEAD = 1 << 16  # bytes that are looked at; more if a line is longer
NULLS = sorted({variant for word in EMPTY for variant in (word, word.upper(), word.capitalize())} | {"NaN", "<NA>"})


class WideText:
    """A text file whose rows are users; `label` is the column of the users' names, `items` the other columns."""

    def __init__(self, file: File, user: str | None = None) -> None:
        self.file = file
        path = file.name
        rows, self.delimiter, self.line = first_rows(file)
        require(len(rows) > 0, f"{path} is empty: expected a row for each user", DataError)
        self.width = len(rows[0])
        require(self.width > 1, f"{path}: the first line holds one field: expected one for each item", DataError)
        self._check_widths(rows)
        self.sample = sample_of(rows)
        none = f"{path} has a header but no rows: expected one for each user"
        require(len(self.sample.values) > 0, none, DataError)
        self.names, place = self.sample.names, self._place_of_users(user)
        self.label = None if place is None else self.names[place] or "1"
        self.place = place
        self.items = tuple(name for k, name in enumerate(self.names) if k != place)
        if not self.sample.header:  # items are numbered from 1, without the column of users
            self.items = tuple(map(str, range(1, len(self.items) + 1)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with numbers in all columns but that of the users."""
        fields = [str(k) for k in range(self.width)]
        if self.place is not None:
            fields[self.place] = USERS
        types = {name: pa.string() if k == self.place else pa.float64() for k, name in enumerate(fields)}
        reading = pacsv.ReadOptions(
            column_names=fields, skip_rows=int(self.sample.header), block_size=max(1 << 22, 16 * self.line)
        )
        parsing = pacsv.ParseOptions(delimiter=self.delimiter)
        converting = pacsv.ConvertOptions(column_types=types, null_values=NULLS, strings_can_be_null=False)
        try:
            with self.file.open() as opened, pacsv.open_csv(opened, reading, parsing, converting) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            self._explain(error)

    def _check_widths(self, rows: list[list[str]]) -> None:
        for number, row in enumerate(rows, 1):
            same = len(row) == self.width
            require(
                same,
                f"{self.file.name}, line {number}: expected {self.width} fields, got {len(row)}: fill it up",
                DataError,
            )

    def _place_of_users(self, user: str | None) -> int | None:
        """The column of the users: as named, by its usual name, the only one with text, or the first if it has ids."""
        names = self.sample.names
        if user is not None:
            require(self.sample.header, f"{self.file.name} has no header, so its columns cannot be named", DataError)
            require(user in names, f"{self.file.name} has no column {user!r}: it has {listed(names)}", DataError)
            return names.index(user)
        found = self.sample.label
        texts = [name for name, text in zip(names, self.sample.texts, strict=True) if text]
        cure = "drop all but that of the users, or name it (columns='USER')"
        few = len(texts) == 1  # a mistake in a column of numbers, which reading explains
        require(
            found is not None or few or not texts,
            f"{self.file.name}: several columns hold text, {listed(texts)}: {cure}",
            DataError,
        )
        return 0 if found is None and _are_ids(self.sample) else found

    def _explain(self, error: Exception) -> NoReturn:
        """Find the first bad line and say what was expected there."""
        with self.file.open() as file, io.TextIOWrapper(file, "utf-8-sig", "replace", newline="") as text:
            reader = csv.reader(text, delimiter=self.delimiter)
            for number, row in enumerate((row for row in reader if row), 1):
                if number == 1 and self.sample.header:
                    continue
                where = f"{self.file.name}, line {reader.line_num}"
                require(len(row) == self.width, f"{where}: expected {self.width} fields, got {len(row)}", DataError)
                for place, cell in enumerate(row):
                    if place == self.place or is_empty(cell) or _is_number(cell):
                        continue
                    raise DataError(
                        f"{where}, column {quoted(self.names[place])}: expected a number, or nothing where there is no "
                        f"rating, got {quoted(cell)}"
                    )
        raise DataError(f"{self.file.name} cannot be read: {error}") from None


def first_rows(file: File) -> tuple[list[list[str]], str, int]:
    """The first rows of a text file, its delimiter, and the bytes of its first line."""
    with file.open() as opened:
        line = opened.readline()
        head = line + opened.read(HEAD) + opened.readline()
    try:
        return *_rows(head), len(line)
    except csv.Error as error:
        raise DataError(f"{file.name} cannot be read: {error}") from None


def check_long(head: bytes, where: str) -> None:
    """Refuse a text table that looks like a wide matrix; `head` is its beginning, which may end within a line."""
    first, newline, others = head.partition(b"\n")
    whole = others[: others.rfind(b"\n") + 1] if len(head) >= HEAD else others
    try:
        rows, _ = _rows(first + newline + whole)
    except csv.Error:  # reading it as a long table says what is wrong
        return
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        if len(rows) == 1 and not newline and len(rows[0]) > WIDEST:
            raise refusal(where, rows[0], None)
        return
    sample = sample_of(rows)
    if looks_wide(sample):
        columns = np.arange(len(sample.names)) != (sample.label or 0)
        raise refusal(where, sample.names, stand_in(sample.values[:, columns]))


def _rows(head: bytes) -> tuple[list[list[str]], str]:
    """The first rows, and the delimiter that gives the first of them the most fields."""
    text = head.decode("utf-8-sig", "replace")
    delimiter = max(DELIMITERS, key=text.split("\n", 1)[0].count)
    rows = (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row)
    return list(itertools.islice(rows, ROWS + 1)), delimiter


def _are_ids(sample: Sample) -> bool:
    """Whether the first column holds ids: whole numbers, all different, that rise or are larger than all ratings."""
    first, rest = sample.values[:, 0], sample.values[:, 1:]
    if len(first) < 3 or np.isnan(first).any() or (first != np.floor(first)).any():
        return False
    if len(np.unique(first)) < len(first):
        return False
    known = rest[~np.isnan(rest)]
    return bool((np.diff(first) > 0).all() or (len(known) > 0 and first.min() > known.max()))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
