"""The site's navigation from the lists of links in docs/README.md, which is the index on a forge."""

from __future__ import annotations

import re

LINK = re.compile(r"\[[^\]]*\]\(([\w/-]+)\.(?:md|ipynb)\)")


def added(index: str) -> str:
    """The index with a hidden toctree after each section: its pages in the order of the list."""
    head, *sections = re.split(r"^(?=## )", index, flags=re.MULTILINE)
    return head + "".join(section + _toctree(section) for section in sections)


def _toctree(section: str) -> str:
    caption = section.partition("\n")[0].removeprefix("## ").partition(":")[0]
    pages = dict.fromkeys(LINK.findall(section))
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", "", ""])
