"""The title of a report: what a person gave, or the name of the data set, never a path or an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import urlsplit

from fedmc.errors import printable

GENERIC = {"ratings", "events", "data", "train", "table", "shards", "prepared"}
LONGEST = 60  # characters of a data set's name
FILMS = {
    "demo": "MovieLens, the demo set", "ml-latest-small": "MovieLens, latest small",
    **{f"ml-{size}": f"MovieLens {size.upper()}" for size in ("100k", "1m", "10m", "20m", "25m", "32m")},
}  # fmt: skip


def of_run(settings: Mapping[str, object], events: bool) -> str:
    """The title of a run of `fedmc train`."""
    given = str(settings.get("title", "")).strip()
    return given or f"{data_name(settings.get('source'), events)}: {organisations(settings)}, one model"


def data_name(source: object, events: bool) -> str:
    """The data in a few words, such as "Ratings of north"."""
    what = "Events" if events else "Ratings"
    text = str(source or "")
    if text.startswith("like:"):
        return f"Synthetic {what.lower()} like {printable(text.removeprefix('like:'))}"
    if text in FILMS:
        return f"Film {what.lower()} ({FILMS[text]})"
    name = _stem(text)
    return what if not name or name.lower() in GENERIC else f"{what} of {name}"


def organisations(settings: Mapping[str, object]) -> str:
    """How many clients there are, as organisations."""
    count = int(str(settings.get("clients", 1)))
    return "1 organisation" if count == 1 else f"{count:,} organisations"


def _stem(source: str) -> str:
    """The last part of a path or an address without its endings; never its host, user or query."""
    if re.match(r"[\w+.-]+://", source):
        try:
            source = urlsplit(source).path
        except ValueError:
            return ""
    name = PurePath(source.replace("\\", "/")).name
    return printable(name.partition(".")[0] or name.strip("."))[:LONGEST]
