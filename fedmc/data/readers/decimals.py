"""Decimal commas, as German and French programs write them in tables with semicolons."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedmc.errors import DataError

_COMMA = re.compile(r"\s*[-+]?\d+,(\d\d?|\d{4,})\s*")  # not 1,234, which may be a thousand


def decimal_of(fields: Iterable[str], delimiter: str) -> str:
    """The decimal mark of some numbers: a comma if the table has semicolons and one of them has it, else a point."""
    return "," if delimiter == ";" and any(map(_COMMA.fullmatch, fields)) else "."


def pointed(field: str, delimiter: str) -> str:
    """A number with a decimal comma as Python writes it; anything else as it is."""
    return field.replace(",", ".") if decimal_of([field], delimiter) == "," else field


def value(what: str, field: str, decimal: str) -> float:
    """The number in a field; refused with the cure if it is none. `what` is where it stands, and what it is."""
    plain = field if decimal == "." else field.replace(".", "?").replace(decimal, ".")
    if is_number(plain):
        return float(plain)
    cure = ""
    if is_number(field.replace(",", ".")):
        cure = ": write a decimal point" if decimal == "." else ": write a decimal comma, as the first lines do"
    raise DataError(f"{what} should be a number, got {field!r}{cure}")


def check_texts(what: str, fields: Iterable[object]) -> None:
    """Refuse the first text that is no number."""
    for field in fields:
        if isinstance(field, str):
            value(what, field, ".")


def is_number(text: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
