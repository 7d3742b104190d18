"""Tables in several files, as programs for large data write them: ratings-000.parquet, ratings-001.parquet, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from fedmc.data.readers import columnar
from fedmc.data.readers.columns import ColumnSelection, roles
from fedmc.data.readers.files import File, of_each
from fedmc.errors import DataError

SHOWN = 3  # tables that an error names
_NUMBER = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d+")  # a UUID, or digits


def parts_of(largest: File, found: Sequence[File]) -> list[File]:
    """The text tables that are called like the largest one but for numbers, and begin with the same line.

    Without a header, each file begins with a line of its own: then it is alone.
    """
    form, line = _form(largest), _first_line(largest)
    alike = [file for file in found if _form(file) == form]
    return [file for file in alike if file is largest or _first_line(file) == line]


def same_columns(where: str, tables: Sequence[File], selection: ColumnSelection) -> list[File]:
    """The columnar tables with the selected columns, which are parts of one table; refused if their columns differ.

    The only table is taken whatever it holds; none if there are several without the selected columns.
    """
    seen = [file for file in tables if not PurePosixPath(file.name).name.startswith(("_", "."))]
    if len(seen) < 2:
        return seen
    names = list(of_each(seen, _names))
    fitting = [(file, columns) for file, columns in zip(seen, names, strict=True) if _fits(columns, selection)]
    different = {tuple(sorted(columns)): file for file, columns in reversed(fitting)}
    if len(different) > 1:
        listed = "; ".join(f"{file.name} ({', '.join(names)})" for names, file in list(different.items())[:SHOWN])
        raise DataError(f"{where} holds several tables, whose columns differ: {listed}: name one of them")
    return [file for file, _ in fitting]


def _names(file: File) -> list[str]:
    with columnar.opened(file) as table:
        return list(table.schema.names)


def _fits(names: Sequence[str], selection: ColumnSelection) -> bool:
    try:
        roles(names, selection, "")
    except DataError:
        return False
    return True


def _form(file: File) -> str:
    return _NUMBER.sub("#", file.name)


def _first_line(file: File) -> bytes:
    return file.head(4096).partition(b"\n")[0].strip()
