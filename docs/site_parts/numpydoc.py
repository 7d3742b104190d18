"""Docstrings in the form that napoleon reads.

In fedmc's docstrings a parameter and what it is stand on one line, `rank : number of factors`. Numpydoc has a type
there, and the text on the next line.
"""

from __future__ import annotations

import re

SECTIONS = ("Parameters", "Attributes")
ENTRY = re.compile(r"^([*\w]+) : (.*)$")


def rewrite(lines: list[str]) -> None:
    """Change the lines in place: `name : text` in a section becomes `name` and the text below it."""
    found: list[str] = []
    inside = False
    for number, line in enumerate(lines):
        if set(line) == {"-"} and lines[number - 1].strip() in SECTIONS:
            inside = True
        entry = ENTRY.match(line) if inside else None
        found += [entry[1], f"    {entry[2]}"] if entry else [line]
    lines[:] = found
