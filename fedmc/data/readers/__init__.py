"""Readers of rating tables; formats are recognised by content, not by name.

Only this package imports pyarrow and ADBC. Every reader yields `Batch`es; `fedmc.data.loading` builds `Ratings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmc.data.addresses import present, without_password
from fedmc.data.builder import Batch
from fedmc.data.forms import Wide
from fedmc.data.readers import archives, columnar, databases, netflix, text, wide
from fedmc.data.readers.columnar import ArrowStream
from fedmc.data.readers.columns import ColumnSelection, Header
from fedmc.data.readers.wide import Matrix
from fedmc.errors import DataError, require


def batches(source: str | Path, selection: ColumnSelection, query: str | None = None) -> Iterable[Batch]:
    """The rows of a file, a folder, an archive or a database."""
    if databases.is_database(source):
        return databases.read(str(source), query, selection)
    require(query is None, f"a query goes with a database, not with {without_password(str(source))}", DataError)
    path = Path(source)
    require(present(path), f"there is no file {without_password(str(source))}", DataError)
    if path.is_dir() or archives.is_archive(path):
        return archives.read(path, selection)
    if columnar.is_columnar(path):
        return columnar.read(path, selection)
    if netflix.is_netflix(_head(path)):
        return netflix.read([text.on_disk(path)], selection)
    return text.read(text.on_disk(path), selection)


def wide_matrix(source: str | Path, form: Wide, columns: Sequence[str] | None, query: str | None) -> Matrix:
    """The ratings of a file with a row for each user and a column for each item."""
    shown = without_password(str(source))
    require(
        query is None and not databases.is_database(source),
        f"a wide matrix is read from a file, and {shown} is a database: leave out wide=True, and let the query return "
        "a row for each rating",
        DataError,
    )
    path = Path(source)
    require(present(path), f"there is no file {shown}", DataError)
    return wide.read(path, form, columns)


def from_arrow(frame: ArrowStream, selection: ColumnSelection | None = None) -> Iterable[Batch]:
    """The rows of any object with Arrow's C stream interface: pandas and polars DataFrames, Arrow tables."""
    return columnar.from_stream(frame, selection or ColumnSelection())


def header(source: str | Path | ArrowStream, query: str | None = None) -> Header:
    """The names of the columns of a source, and the event types in its first rows. Reads only its beginning."""
    if not isinstance(source, str | Path):
        return columnar.header_of_stream(source)
    if databases.is_database(source):
        return databases.header(str(source), query)
    path = Path(source)
    require(present(path), f"there is no file {without_password(str(source))}", DataError)
    if path.is_dir() or archives.is_archive(path):
        return archives.header(path)
    if columnar.is_columnar(path):
        return columnar.header(path)
    return netflix.HEADER if netflix.is_netflix(_head(path)) else text.header(text.on_disk(path))


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)
