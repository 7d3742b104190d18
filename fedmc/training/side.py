"""Which models use side information: features of users and items, and events without a rating."""

from __future__ import annotations

from fedmc.algorithms.settings import Settings
from fedmc.data.side import Sources
from fedmc.errors import require


def used_by(settings: Settings) -> bool:
    """Whether the algorithm of these settings uses side information; others ignore what clients and catalogue hold."""
    return settings.make_algorithm().uses_side


def usable(settings: Settings, sources: Sources) -> Sources:
    """The side information for this model: if it uses none, only the titles of a table of items; other is refused."""
    if used_by(settings):
        return sources
    found = sources._replace(titles_only=True)
    algorithm = settings.make_algorithm().name
    require(
        not found.given,
        f"{' and '.join(found.given)} need preset bayes, got the algorithm {algorithm!r}: leave them out, or leave out "
        "the settings that choose this algorithm",
    )
    return found
