"""How ratings and models look in a notebook: small tables, complete in themselves, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from fedmc.errors import printable

FIRST = 5  # rows of an example
LONGEST = 80  # characters of a cell of an example
LEFT = ' style="text-align: left"'


class Example(NamedTuple):
    """A few rows of something longer."""

    caption: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


def as_html(caption: str, facts: Mapping[str, object], *examples: Example) -> str:
    """A table of facts, and a table for each example; where two would fit, they stand side by side."""
    rows = "".join(
        f'<tr><th scope="row"{LEFT}>{_text(name)}</th><td{LEFT}>{_text(value)}</td></tr>'
        for name, value in facts.items()
    )
    tables = [_table(caption, "", rows), *map(_example, examples)]
    return f'<div style="display: flex; flex-wrap: wrap; gap: 2em; align-items: start">{"".join(tables)}</div>'


def _example(found: Example) -> str:
    head = "".join(f'<th scope="col"{LEFT}>{_text(name)}</th>' for name in found.columns)
    cells = ("".join(f"<td{LEFT}>{_text(_cut(cell))}</td>" for cell in row) for row in found.rows)
    return _table(found.caption, f"<thead><tr>{head}</tr></thead>", "".join(f"<tr>{row}</tr>" for row in cells))


def _table(caption: str, head: str, rows: str) -> str:
    return f"<table><caption{LEFT}>{_text(caption)}</caption>{head}<tbody>{rows}</tbody></table>"


def _cut(cell: object) -> str:
    text = f"{cell:g}" if isinstance(cell, float) else str(cell)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _text(value: object) -> str:
    return escape(printable(f"{value:,}" if isinstance(value, int) else str(value)))
