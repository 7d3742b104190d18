"""The parts of an HTML page. Everything is inline, so that it opens offline and fetches nothing."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib import metadata, resources

from fedmc import __version__

SUMS = "Every number is a sum or a mean over clients; none is about a single user."


def page(title: str, about: str, body: Sequence[str], note: str = SUMS) -> str:
    """A whole page, with a note about its numbers. Its content security policy forbids every network request."""
    style, script = (
        resources.files("fedmc.report").joinpath(name).read_text("utf-8") for name in ("style.css", "sort.js")
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
{chr(10).join(body)}
<footer>Made by fedmc {__version__}. {escape(note)}</footer>
<script>
{script}</script>
</body>
</html>
"""


def summary(sentences: Sequence[str]) -> str:
    return '<div class="summary">' + "".join(map(paragraph, sentences)) + "</div>"


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def drawing(panels: Sequence[str], caption: str) -> str:
    return f'<figure><div class="panels">{"".join(panels)}</div><figcaption>{escape(caption)}</figcaption></figure>'


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def folded_section(title: str, *parts: str) -> str:
    """A section that a click opens: for those who want to know more."""
    content = f"<details><summary><h2>{escape(title)}</h2></summary>{''.join(parts)}</details>"
    return f'<section class="folded">{content}</section>'


def ordered(texts: Sequence[str]) -> str:
    """A numbered list."""
    return f"<ol>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ol>"


def cards(parts: Sequence[str]) -> str:
    """Parts beside each other where there is room."""
    return f'<div class="cards">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    sorts: bool = True,
    marked: Mapping[int, str] | None = None,
    label: str | None = None,
) -> str:
    """A table; numbers are displayed rounded but sorted by their full values.

    The rows with the numbers in `marked` are highlighted, with this word beside their first cell. The `label` names the
    table for those who cannot see it.
    """
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = "".join(_row(row, (marked or {}).get(number)) for number, row in enumerate(rows))
    kind = ' class="sorts"' if sorts else ""
    whole = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return scrolling(whole, label or f"Table by {headings[0]}")


def pairs(values: Mapping[str, object], label: str = "Table of names and values") -> str:
    """A table of names and values."""
    rows = "".join(f'<tr><td>{escape(k)}</td><td class="words">{escape(str(v))}</td></tr>' for k, v in values.items())
    return scrolling(f'<table class="pairs"><tbody>{rows}</tbody></table>', label)


def scrolling(content: str, label: str) -> str:
    """What may be wider than the page: it scrolls by itself, also by the keyboard, and its edges show that it does."""
    return f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0">{content}</div>'


def versions() -> dict[str, str]:
    """The versions of the software; nothing that identifies the machine."""
    names = ("numpy", "scipy", "numba", "matplotlib")
    found = {"fedmc": __version__, "Python": platform.python_version()} | {
        name: metadata.version(name) for name in names
    }
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def short(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and value >= 1 and value == int(value):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return str(value)


def _row(cells: Sequence[object], mark: str | None) -> str:
    if mark is None:
        return f"<tr>{''.join(map(_cell, cells))}</tr>"
    tag = f' <span class="tag">{escape(mark)}</span>'
    return f'<tr class="marked">{_cell(cells[0], tag)}{"".join(map(_cell, cells[1:]))}</tr>'


def _cell(value: object, tag: str = "") -> str:
    sort = f' data-value="{value!r}"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"<td{sort}>{escape(short(value))}{tag}</td>"
