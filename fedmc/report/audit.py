"""The report of an audit, and its sections in the report of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from fedmc.audit.results import Finding, summary
from fedmc.report import html


class AuditRecord(TypedDict):
    """The content of audit.json: the settings, and the findings of each privacy mode."""

    settings: Mapping[str, object]
    modes: dict[str, list[dict[str, Any]]]


HEADINGS = ("the server wants to know", "it sees", "share of", "attack", "guess", "advantage")
BASELINE = (
    "The baseline is what the server could guess without the message: by the items' popularity among the other "
    "clients, or by the rating that an item got most often. An advantage of 0 means that the message reveals nothing."
)


def write_report(folder: Path, record: AuditRecord) -> Path:
    """Write audit.json and audit.html; returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    settings = record["settings"]
    about = f"{settings['source']}: {settings['clients']} clients, {settings['active']} a round"
    body = [*sections(record), html.section("Settings", html.pairs(settings))]
    body.append(html.section("Made with", html.pairs(html.versions())))
    path = folder / "audit.html"
    path.write_text(html.page("What a curious server finds out", about, body), encoding="utf-8")
    return path


def sections(record: AuditRecord) -> list[str]:
    """For each mode: a summary, the table of findings, and each finding in a sentence."""
    made = []
    for mode, lines in record["modes"].items():
        found = [Finding(**{name: line[name] for name in Finding._fields}) for line in lines]
        rows = [[one.what, one.sees, one.measure, one.attack, one.guess, one.advantage] for one in found]
        said = [html.paragraph(f"{one.what}, from {one.sees}: {one.meaning}") for one in found]
        parts = [html.summary([*summary(mode, found), BASELINE]), html.table(HEADINGS, rows, sorts=False), *said]
        made.append(html.section(f"privacy={mode}", *parts))
    return made


def of_folder(folder: Path) -> list[str]:
    """The sections of the audit in a folder, if there is one."""
    path = folder / "audit.json"
    return sections(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []
