"""Every relative link in the documentation leads somewhere, and its prose keeps to the line length."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "fedmc", "tests", "benchmarks", "scripts", ".github")
FILES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TABLES_AND_LISTINGS = ("|", "    ")


@cache
def prose(path: Path) -> str:
    """The text without fenced blocks and code spans, which may hold anything."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path):
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link}: there is no {target}"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    long = [n for n, line in enumerate(lines, 1) if len(line) > 120 and not line.startswith(TABLES_AND_LISTINGS)]
    assert not long, f"lines {long} are longer than 120 characters"


def test_the_map_names_every_page():
    linked = {(ROOT / "docs" / link).resolve() for link in LINK.findall(prose(ROOT / "docs" / "README.md"))}
    pages = {path for folder in (ROOT / "docs").iterdir() if folder.is_dir() for path in folder.rglob("*.md")}
    assert {str(path.relative_to(ROOT)) for path in pages - linked} == set()


def test_every_test_that_the_trust_page_names_exists():
    page = (ROOT / "docs" / "explanation" / "trust.md").read_text(encoding="utf-8")
    files = re.findall(r"`(test_\w+\.py)`((?:[:,]? `test_\w+`)*)", page)
    assert len(files) > 15
    for name, tests in files:
        source = (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert not [test for test in re.findall(r"`(\w+)`", tests) if f"def {test}(" not in source], name
