"""Tables of items as MovieLens distributes them, without a header: `movies.dat` and `u.item`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedmc.errors import DataError, quoted

MOVIES_DAT = re.compile(r"\d+::[^:].*::[^:]*")  # MovieLens 1M and 10M
U_ITEM = re.compile(r"\d+\|[^|]*\|[^|]*\|[^|]*\|[^|]*(\|[01]){19}")  # MovieLens 100K
HEADER = ["item", "title", "year", "genres"]
YEAR = re.compile(r"\((\d{4})(?:[-–]\d{0,4})?\)\s*$")  # at the end of a title
GENRES = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)  # of the flags in `u.item`
NO_GENRE = "(no genres listed)"


def rows(text: str, path: object) -> Iterator[tuple[int, list[str]]] | None:
    """The header and the rows of such a table with the numbers of the lines; None if it is another one."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    form = next((one for one in (MOVIES_DAT, U_ITEM) if one.fullmatch(first.strip())), None)
    return None if form is None else _rows(text, path, form)


def _rows(text: str, path: object, form: re.Pattern[str]) -> Iterator[tuple[int, list[str]]]:
    yield 1, HEADER
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if form.fullmatch(line.strip()) is None:
            raise DataError(f"{path}, line {number}: expected a film of MovieLens, as in line 1, got {quoted(line)}")
        yield number, _of_movies_dat(line.strip()) if form is MOVIES_DAT else _of_u_item(line.strip())


def _of_movies_dat(line: str) -> list[str]:
    """Id, title and year, and the genres: `1::Toy Story (1995)::Animation|Comedy`."""
    item, rest = line.split("::", 1)
    title, genres = rest.rsplit("::", 1)
    return [item, title, _year(title), "" if genres == NO_GENRE else genres]


def _of_u_item(line: str) -> list[str]:
    """The same from id, title, release date (01-Jan-1995), date on video, address and 19 flags of genres."""
    item, title, released, _, _, *flags = line.split("|")
    year = released[-4:] if released[-4:].isdigit() else _year(title)
    genres = [genre for genre, flag in zip(GENRES, flags, strict=True) if flag == "1" and genre != GENRES[0]]
    return [item, title, year, "|".join(genres)]


def _year(title: str) -> str:
    found = YEAR.search(title)
    return "" if found is None else found.group(1)
