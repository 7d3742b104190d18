"""Which models use side information: features of users and items, and events without a rating."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.algorithms.settings import Settings
from fedmc.errors import require


def used_by(settings: Settings) -> bool:
    """Whether the algorithm of these settings uses side information; others ignore what clients and catalogue hold."""
    return settings.make_algorithm().uses_side


def check(settings: Settings, given: Sequence[str]) -> None:
    """Refuse side information, named in words, for another model than the Bayesian one."""
    if not given:
        return
    algorithm = settings.make_algorithm().name
    require(
        used_by(settings),
        f"{' and '.join(given)} need preset bayes, got the algorithm {algorithm!r}: leave them out, or leave out the "
        "settings that choose this algorithm",
    )
