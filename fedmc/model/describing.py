"""What a person wants to know of a model at first sight."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data.notebook import FIRST, Example, as_html
from fedmc.privacy import modes
from fedmc.types import Array


class Fitted(Protocol):
    """A `Model`."""

    @property
    def items(self) -> Array: ...
    @property
    def users(self) -> Array: ...
    @property
    def seen(self) -> sparse.csr_array: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def clients(self) -> int: ...
    @property
    def rating_range(self) -> tuple[float, float] | None: ...
    @property
    def titles(self) -> Array | None: ...


def html_of(model: Fitted, caption: str = "Model", more: dict[str, object] | None = None) -> str:
    """Preset, sizes and privacy, with `more` facts in between; and the items that most users have rated or had."""
    settings, of_events = model.settings, model.settings.make_algorithm().of_events
    what = "events" if of_events else "ratings"
    facts: dict[str, object] = {
        "preset": settings.preset_name,
        "algorithm": str(settings.make_algorithm()),
        "rank": settings.rank,
        "users": len(model.users),
        "items": len(model.items),
        what: int(model.seen.nnz),
        "clients": model.clients,
    }
    if model.rating_range is not None:
        facts["values"] = "{:g} to {:g}".format(*model.rating_range)
    facts |= more or {}
    return as_html(caption, facts | {"privacy": modes.as_privacy(settings.privacy).claim()}, _most(model, what))


def _most(model: Fitted, what: str) -> Example:
    counts = np.bincount(model.seen.indices, minlength=len(model.items))
    best = np.argsort(-counts, kind="stable")[:FIRST]
    columns, parts = ["item", what], [model.items[best].tolist(), counts[best].tolist()]
    if model.titles is not None:
        columns, parts = [*columns, "title"], [*parts, model.titles[best].tolist()]
    return Example(f"the items with the most {what}", columns, zip(*parts, strict=True))
