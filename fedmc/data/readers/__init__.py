"""Ratings from wherever an organisation has them; recognised by content, not by name.

The only folder that imports pyarrow and ADBC. Every reader gives `Batch`es; `read_source` makes `Ratings` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedmc.data.builder import Batch, Duplicates
from fedmc.data.ratings import Ratings
from fedmc.data.readers import archives, columnar, databases, netflix, text
from fedmc.data.readers.columns import Wanted
from fedmc.errors import DataError, require


def read_source(
    source: str | Path,
    columns: Sequence[str] | None = None,
    *,
    query: str | None = None,
    times: bool = False,
    group: str | None = None,
    duplicates: Duplicates = "refuse",
) -> Ratings:
    """Ratings from a file, a folder, an archive or a database.

    `columns` names user, item, rating (and time); `times` asks for the times, `group` for a column that says which
    client a user belongs to.
    """
    wanted = Wanted(tuple(columns) if columns else None, times, group)
    return Ratings.from_batches(batches(source, wanted, query), duplicates=duplicates)


def batches(source: str | Path, wanted: Wanted, query: str | None = None) -> Iterable[Batch]:
    """The rows of a source, whatever it is."""
    if databases.is_database(source):
        return databases.read(str(source), query, wanted)
    require(query is None, f"a query goes with a database, not with {source}", DataError)
    path = Path(source)
    require(path.exists(), f"there is no file {path}", DataError)
    if path.is_dir() or archives.is_archive(path):
        return archives.read(path, wanted)
    if columnar.is_columnar(path):
        return columnar.read(path, wanted)
    if netflix.is_netflix(_head(path)):
        return netflix.read([text.on_disk(path)], wanted)
    return text.read(text.on_disk(path), wanted)


def from_arrow(frame: Any, group: str | None = None) -> Iterable[Batch]:
    """The rows of anything that speaks Arrow's C stream interface: pandas and polars DataFrames, Arrow tables."""
    return columnar.from_stream(frame, Wanted(group=group))


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)
