"""Plug-ins: what installed packages declare under an entry-point group of ours.

A package of one's own adds names with a table in its pyproject.toml:

    [project.entry-points."fedmc.penalties"]
    ball = "my_package:Ball"

The groups are fedmc.algorithms, fedmc.penalties, fedmc.losses and fedmc.samplers. No code ever travels: a name works
where the package is installed, and is refused elsewhere.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fedmc.errors import InputError


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def names(group: str) -> list[str]:
    """The names that installed packages declare in a group."""
    return sorted(_declared(group))


def find(group: str, name: str) -> object | None:
    """What a name stands for in a group; None where no installed package declares it."""
    point = _declared(group).get(name)
    if point is None:
        return None
    try:
        found: object = point.load()
    except Exception as error:  # whatever importing somebody else's package can raise
        package = point.dist.name if point.dist else point.module
        raise InputError(f"the plug-in {name!r} of package {package} cannot be loaded: {error}") from error
    return found
