"""Guesses columns by their usual names, in several languages. Case, accents and separators make no difference."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from fedmc.data.readers import names as words
from fedmc.errors import DataError, printable

_SEPARATORS = re.compile(r"[\W_]+")
_LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe"})  # that Unicode does not take apart


class AmbiguousError(DataError):
    """Several columns could have the same role."""


class Usual(NamedTuple):
    """The usual names of a role, as `plain` writes them. A column with one of the role's `own` names comes first."""

    own: frozenset[str]
    other: frozenset[str]


def plain(name: str) -> str:
    """A name without case, accents and separators: `Kunden-Nr.` becomes `kundennr`, `Película` becomes `pelicula`."""
    folded = unicodedata.normalize("NFKD", name.casefold().translate(_LETTERS))
    bare = "".join(sign for sign in folded if unicodedata.category(sign) != "Mn")
    return _SEPARATORS.sub("", bare)


def _usual(own: str, other: str = "", things: str = "", affixed: bool = False) -> Usual:
    """Usual names from words separated by spaces; `things` also with the marks of an id."""
    firsts, nouns = [plain(word) for word in own.split()], [plain(word) for word in things.split()]
    before, after = ([plain(word) for word in marks.split()] for marks in (words.ID_BEFORE, words.ID_AFTER))
    made = {mark + noun for noun in nouns for mark in before} | {noun + mark for noun in nouns for mark in after}
    mine = {*firsts, *(f"{first}id" for first in firsts if affixed)}
    return Usual(frozenset(mine), frozenset({plain(word) for word in other.split()} | made | {*nouns}) - mine)


COLUMN_NAMES = {
    "user": _usual("user", words.USER_KEYS, words.USERS, affixed=True),
    "item": _usual("item", words.ITEM_KEYS, words.ITEMS, affixed=True),
    "rating": _usual("rating", f"{words.RATINGS} {words.VALUES}"),
}
RATING_NAMES = _usual("rating", words.RATINGS)  # without `value`, which may be a count as well
EVENT_NAMES = _usual("event event_type", words.EVENTS)
TIME_NAMES = _usual("timestamp", words.TIMES)


def is_usual(name: str, usual: Usual) -> bool:
    """Whether this is a usual name of a role."""
    return plain(name) in usual.own or plain(name) in usual.other


def candidates(names: Sequence[str], usual: Usual) -> list[str]:
    """The columns that could have a role: those with its own names or, without any, those with another usual name."""
    own = [name for name in names if plain(name) in usual.own]
    return own or [name for name in names if plain(name) in usual.other]


def find_usual(names: Sequence[str], usual: Usual) -> str | None:
    """The first column that could have a role; None if there is none."""
    return next(iter(candidates(names, usual)), None)


def guess(names: Sequence[str], usual: Usual, role: str, cure: str) -> str | None:
    """The only column that could have a role; None if there is none, and an error if there are several."""
    found = candidates(names, usual)
    if len(found) > 1:
        listed = ", ".join(map(printable, found))
        raise AmbiguousError(f"more than one column could be the {role}: {listed}; {cure}")
    return found[0] if found else None
