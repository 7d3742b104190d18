"""What a reader guessed about the columns, in one line for its user."""

from __future__ import annotations

from collections.abc import Mapping

from fedmc.errors import printable

ORDER = ("user", "item", "rating", "time")
PLACES = ("first", "second", "third", "fourth")


def guessed(columns: Mapping[str, str | None]) -> str:
    """A line such as `columns: user = Kunde, item = Artikel (guessed; --columns USER,ITEM to change)`.

    `columns` are those that nobody named, by role; empty if there are none.
    """
    found = {role: name for role, name in columns.items() if name is not None}
    if not found:
        return ""
    options = [f"--columns {_option(found)}"] if set(found) & set(ORDER) else []
    options += ["--event COLUMN"] if "event" in found else []
    return f"columns: {_equal(found)} (guessed; {' and '.join(options)} to change)"


def by_place(columns: Mapping[str, int | None]) -> str:
    """The same of a text file without a header: the places of the columns, from 0, by role."""
    found = {role: PLACES[place] for role, place in columns.items() if place is not None and place < len(PLACES)}
    return f"columns: {_equal(found)} (guessed, as there is no header; a first line with names would tell)"


def _equal(found: Mapping[str, str]) -> str:
    return ", ".join(f"{role} = {printable(name)}" for role, name in found.items())


def _option(found: Mapping[str, str]) -> str:
    """How to name them: as many as are needed for the last one, where no rating leaves its place empty."""
    last = max(place for place, role in enumerate(ORDER) if role in found)
    names = [role.upper() if role in found or role != "rating" or "user" not in found else "" for role in ORDER]
    return ",".join(names[: max(last, 1) + 1])
