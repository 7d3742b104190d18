"""Plug-ins: names that installed packages add through entry points.

A package adds a penalty called `mine` with these lines in its pyproject.toml:

    [project.entry-points."fedmc.penalties"]
    mine = "package.module:factory"

The factory is called with the numbers that follow the name: `mine:0.5,2` calls `factory(0.5, 2.0)`. The `str` of the
object it returns must be such a spec again, because models and federations carry the spec, never code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fedmc.errors import FedmcError, InputError, quoted, require
from fedmc.types import MAX_ARGUMENTS, number

PENALTIES, LOSSES = "fedmc.penalties", "fedmc.losses"


@cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a group by name, read once in a process."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


def names(group: str) -> list[str]:
    """The names that installed packages add to a group, sorted."""
    return sorted(_installed(group))


def find(group: str, name: str) -> object | None:
    """The object that an installed package offers under a name, or None if there is none."""
    points = _installed(group).get(name, [])
    packages = {_package(point) for point in points}
    if len(packages) > 1:
        raise InputError(f"{name!r} in {group} is offered by {', '.join(sorted(packages))}: uninstall all but one")
    if not points:
        return None
    point = points[0]
    try:
        loaded: object = point.load()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{name!r} of package {_package(point)} cannot be loaded from {point.value} ({cause}): "
            "repair, upgrade or uninstall the package"
        ) from error
    return loaded


def build(group: str, spec: str, built_in: object | None = None) -> object | None:
    """The object that a spec such as `mine:0.5,2` stands for, or None if no installed package has the name.

    `built_in` is fedmc's own factory of this name. The object is refused unless its `str` is a spec of the same object.
    """
    name, _, text = spec.partition(":")
    factory = find(group, name) if built_in is None else built_in
    if factory is None:
        return None
    if not callable(factory):
        raise InputError(f"{name!r} in {group} must be a function or a class, got {type(factory).__name__}")
    arguments = numbers(repr(spec), text)
    require(not any(map(math.isinf, arguments)), f"{spec!r}: its numbers must be finite")
    made = _call(factory, spec, arguments)
    again = str(made)
    require(
        _leads_back(factory, name, again),
        f"{spec!r} describes itself as {again!r}, which is not its name and numbers: "
        f"give {type(made).__name__} a __str__ that returns a spec such as {spec!r}",
    )
    return made


def numbers(what: str, text: str) -> list[float]:
    """The comma-separated numbers in a text, which may be empty. Errors begin with `what`."""
    require(text.count(",") < MAX_ARGUMENTS, f"{what}: at most {MAX_ARGUMENTS} numbers")
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"{what}: {quoted(text)} should be numbers with a comma between") from None
    for one in found:
        if not math.isinf(one):  # a box may be open at one end
            number(f"{what}: each number", one)
    return found


def _call(factory: Callable[..., object], spec: str, arguments: list[float]) -> object:
    try:
        return factory(*arguments)
    except FedmcError:
        raise
    except Exception as error:
        raise InputError(f"{spec!r} cannot be made of the numbers {arguments}: {error}") from error


def _leads_back(factory: Callable[..., object], name: str, spec: str) -> bool:
    """Whether a spec has this name, and the object built from it has the same spec."""
    first, _, text = spec.partition(":")
    if first != name:
        return False
    try:
        return str(_call(factory, spec, numbers(repr(spec), text))) == spec
    except InputError:
        return False


def _package(point: EntryPoint) -> str:
    """The name of the package that an entry point belongs to, as in pip."""
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]
