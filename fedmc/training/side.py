"""Which models use side information: features of users and items, and events without a rating."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.algorithms.settings import Settings
from fedmc.errors import require


def check(settings: Settings, given: Sequence[str]) -> None:
    """Refuse side information, named in words, for another model than the Bayesian one."""
    if not given:
        return
    algorithm = settings.make_algorithm().name
    require(
        algorithm == "bayes",
        f"{' and '.join(given)} need preset bayes, got the algorithm {algorithm!r}: leave them out, or leave out the "
        "settings that choose this algorithm",
    )
