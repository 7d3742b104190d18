"""Readers of rating tables; formats are recognised by content, not by name.

Only this package imports pyarrow and ADBC. Every reader yields `Batch`es; `fedmc.data.loading` builds `Ratings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedmc.data.addresses import without_password
from fedmc.data.builder import Batch
from fedmc.data.forms import Wide
from fedmc.data.readers import archives, columnar, databases, netflix, storage, text, wide
from fedmc.data.readers.columnar import ArrowStream
from fedmc.data.readers.columns import ColumnSelection, Header
from fedmc.data.readers.files import Place
from fedmc.data.readers.places import place_of
from fedmc.data.readers.wide import Matrix
from fedmc.errors import DataError, require

HEAD = 4096  # bytes by which a format is recognised


def batches(source: str | Path, selection: ColumnSelection, query: str | None = None) -> Iterable[Batch]:
    """The rows of a file, a folder, an archive or a database, on disk or in object storage."""
    if databases.is_database(source):
        return databases.read(str(source), query, selection)
    require(query is None, f"a query goes with a database, not with {without_password(str(source))}", DataError)
    return storage.guarded(source, _rows(place_of(source), selection))


def _rows(place: Place, selection: ColumnSelection) -> Iterator[Batch]:
    if place.folder or archives.is_archive(place.file):
        return archives.read(place, selection)
    head = place.file.head(HEAD)
    if columnar.is_columnar(head):
        return columnar.read(place.files, selection)
    return netflix.read(place.files, selection) if netflix.is_netflix(head) else text.read(place.file, selection)


def wide_matrix(source: str | Path, form: Wide, columns: Sequence[str] | None, query: str | None) -> Matrix:
    """The ratings of a file with a row for each user and a column for each item."""
    shown = without_password(str(source))
    require(
        query is None and not databases.is_database(source),
        f"a wide matrix is read from a file, and {shown} is a database: leave out wide=True, and let the query return "
        "a row for each rating",
        DataError,
    )
    place = place_of(source)
    require(not place.folder, f"{place.name} is a folder: a wide matrix is one file, name it", DataError)
    with storage.reading(source):
        matrix = wide.read(place.file, form, columns)
    matrix.blocks = storage.guarded(source, matrix.blocks)
    return matrix


def from_arrow(frame: ArrowStream, selection: ColumnSelection | None = None) -> Iterable[Batch]:
    """The rows of any object with Arrow's C stream interface: pandas and polars DataFrames, Arrow tables."""
    return columnar.from_stream(frame, selection or ColumnSelection())


def header(source: str | Path | ArrowStream, query: str | None = None) -> Header:
    """The names of the columns of a source, and the event types in its first rows. Reads only its beginning."""
    if not isinstance(source, str | Path):
        return columnar.header_of_stream(source)
    if databases.is_database(source):
        return databases.header(str(source), query)
    place = place_of(source)
    with storage.reading(source):
        if place.folder or archives.is_archive(place.file):
            return archives.header(place)
        head = place.file.head(HEAD)
        if columnar.is_columnar(head):
            return columnar.header(place.file)
        return netflix.HEADER if netflix.is_netflix(head) else text.header(place.file)
