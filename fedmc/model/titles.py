"""Titles of items: aligned with the items of a model, in its file, and searched without regard to case and accents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.data.feature_rows import Features
from fedmc.data.ids import places
from fedmc.errors import DataError, InputError, require
from fedmc.types import Array

LONGEST = 200  # characters of a title
NAME = "titles"  # of the array in a model file
YEAR = re.compile(r"\(\d{4}\)\s*$")  # at the end of a title
APOSTROPHES = re.compile("['\N{RIGHT SINGLE QUOTATION MARK}`]")
LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})


class Index(NamedTuple):
    """The titles as they are searched: words in lower case without accents, separated and enclosed by spaces."""

    texts: Array
    sizes: Array  # the number of words, without a year at the end

    @classmethod
    def of(cls, titles: Array) -> Index:
        words = [words_of(title) for title in titles.tolist()]
        dated = np.array([YEAR.search(title) is not None for title in titles.tolist()], np.int64)
        texts = np.array([f" {' '.join(one)} " for one in words], np.str_)
        return cls(texts, np.array([len(one) for one in words], np.int64) - dated)

    def search(self, text: str) -> Array:
        """The places of the titles that hold all words of the text, the best match first.

        Whole words come before beginnings of words, and those before parts of words; then the titles with the fewest
        other words; then those that have the words in this order. Numbers are found as whole words only.
        """
        words = words_of(text)
        require(bool(words), f"a title is searched by its words, got {text!r}: give one at least")
        found = np.arange(len(self.texts))
        for word in dict.fromkeys(words):
            part = f" {word} " if word.isdigit() else word  # 2 is no part of 1992
            found = found[np.char.find(self.texts[found], part) >= 0]
        ranks = [(*self._rank(place, words), place) for place in found.tolist()]
        return np.array([place for *_, place in sorted(ranks)], np.int64)

    def _rank(self, place: int, words: Sequence[str]) -> tuple[int, int, bool]:
        text = str(self.texts[place])
        parts = (0 if f" {word} " in text else 1 if f" {word}" in text else 2 for word in dict.fromkeys(words))
        return max(parts), max(int(self.sizes[place]) - len(words), 0), " ".join(words) not in text


def words_of(text: str) -> list[str]:
    """The words of a text in lower case and without accents."""
    plain = unicodedata.normalize("NFKD", APOSTROPHES.sub("", text).casefold().translate(LETTERS))
    return re.findall(r"\w+", "".join(one for one in plain if not unicodedata.combining(one)))


def of_items(items: Array, table: Features | None, before: tuple[Array, Array | None] | None = None) -> Array | None:
    """The titles of these items by a table or, where it has none, by the items and titles of a model `before`."""
    found = np.full(len(items), "", np.str_)
    sources = [] if table is None or table.titles is None else [(table.ids, [cleaned(one) for one in table.titles])]
    if before is not None and before[1] is not None:
        sources.append((before[0], before[1].tolist()))
    for ids, titles in sources:
        given = np.array([*titles, ""], np.str_)[places(ids, items)]  # -1 is the last: none
        found = np.where(found == "", given, found)
    return found if bool((found != "").any()) else None


def at(titles: Array | None, columns: Array) -> Array:
    """The titles of items in these columns; an empty string for -1, and where it is not known."""
    if titles is None:
        return np.full(len(columns), "", np.str_)
    return np.where(columns < 0, "", titles[columns])


def cleaned(title: str) -> str:
    """A title in one line, of at most 200 characters."""
    line = " ".join(title.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def stored(titles: Array | None) -> dict[str, Array]:
    """The array of a model file: lines of UTF-8, in the order of the items."""
    if titles is None:
        return {}
    return {NAME: np.frombuffer("\n".join(titles.tolist()).encode("utf-8", "surrogatepass"), np.uint8)}


def restored(content: dict[str, Array]) -> Array | None:
    """The titles in a model file, checked; None if it has none."""
    if NAME not in content:
        return None
    raw, count = content[NAME], len(content["items"])
    require(raw.dtype == np.uint8 and raw.ndim == 1, "its titles are not lines of text", DataError)
    try:
        lines = raw.tobytes().decode("utf-8", "surrogatepass").split("\n")
    except UnicodeDecodeError:
        raise DataError("its titles are not lines of text") from None
    require(len(lines) == count, f"it has {len(lines):,} titles for {count:,} items", DataError)
    long = max(map(len, lines), default=0)
    require(long <= LONGEST, f"one of its titles has {long:,} characters, at most {LONGEST} are allowed", DataError)
    return np.array(lines, np.str_)


def needed(titles: Array | None) -> Array:
    """The titles, which a search needs."""
    if titles is None:
        raise InputError("this model has no titles: train with a table of items that has a column title (items=FILE)")
    return titles
