"""Values from files that another process writes, or a hostile one: bounded, finite and printable, or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedmc.errors import printable

MOST_BYTES = 2**20  # of a status or plan
MOST_WORDS = 400  # characters of a sentence
LARGEST = 2**53  # JavaScript's largest whole number


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is none, or if it is too large or damaged."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        return parsed(content) if len(content) <= MOST_BYTES else {}
    except OSError:
        return {}


def parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: object) -> float | None:
    """A finite number of moderate size, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST and math.isfinite(value) else None


def whole(value: object) -> int:
    """A whole number that is not negative; 0 for anything else."""
    found = number(value)
    return 0 if found is None or found < 0 else int(found)


def words(value: object) -> str:
    """A text of one line; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[: MOST_WORDS + 1]
    return printable(text if len(text) <= MOST_WORDS else text[:MOST_WORDS] + "…")


def names(value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the known names that a list holds."""
    listed = {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()
    return tuple(one for one in known if one in listed)
