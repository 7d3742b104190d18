"""Algorithms by name: those built in, and those of installed packages that declare the entry point `fedmc.algorithms`.

A built-in is an entry point like any other, declared here instead of in package metadata: its module is imported when
its name is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, cast

from fedmc.errors import InputError, unknown
from fedmc.privacy.protocol import Privacy
from fedmc.problem import plugins

if TYPE_CHECKING:  # avoids a cycle: the protocol imports Settings, which look up algorithms here
    from fedmc.algorithms.protocol import Algorithm

GROUP = "fedmc.algorithms"
BUILT_IN = {
    "linearised": "fedmc.algorithms.admm:LinearisedADMM",
    "exact": "fedmc.algorithms.exact:ExactADMM",
    "curvature": "fedmc.algorithms.curvature:Curvature",
    "fedmavg": "fedmc.algorithms.fedmavg:FedMAvg",
    "fedmavg-printed": "fedmc.algorithms.fedmavg:PrintedFedMAvg",
    "fedmgs": "fedmc.algorithms.fedmgs:FedMGS",
    "fedavg": "fedmc.algorithms.fedavg:FedAvg",
    "fedprox": "fedmc.algorithms.fedavg:FedProx",
    "scaffold": "fedmc.algorithms.scaffold:Scaffold",
    "dp": "fedmc.algorithms.private:Private",
}
UPDATES = ("linearised", "exact", "curvature")  # the variants of FedMC itself: `update` names one of them
_found: dict[str, object] = {}


def names() -> list[str]:
    """The names of all algorithms, built in or installed."""
    return [*BUILT_IN, *plugins.names(GROUP)]


def find(name: str) -> Algorithm:
    """The algorithm of this name."""
    if name not in _found:
        _found[name] = _make(name)
    return cast("Algorithm", _found[name])


def check(given: object) -> Algorithm:
    """Check an algorithm that the user gave as an object."""
    missing = [need for need in ("name", "client_update", "aggregate", "schema") if not hasattr(given, need)]
    if missing:
        raise InputError(
            f"an algorithm needs {', '.join(missing)}, which {type(given).__name__} lacks: "
            "inherit from fedmc.algorithms.protocol.Algorithm"
        )
    return cast("Algorithm", given)


def is_name(given: object) -> bool:
    return isinstance(given, str)


def resolve(given: object) -> Algorithm:
    """The algorithm of this name, or the user's own object, checked."""
    return find(given) if isinstance(given, str) else check(given)


def named(chosen: Mapping[str, object], given: Mapping[str, object]) -> tuple[object, ...]:
    """The algorithms that settings name, in the order to try: `algorithm`, or the older keys `method` and `update`."""
    privacy = cast(Privacy | None, chosen.get("privacy"))
    method, update = given.get("method", "fedmc"), given.get("update")
    if update is not None and update not in UPDATES:
        raise unknown("update", update, UPDATES)
    if "algorithm" in given:
        return (given["algorithm"],)
    if method != "fedmc":
        if isinstance(method, str) and method not in names():
            raise unknown("method", method, ("fedmc", *names()))
        return (method,)
    if privacy is not None and privacy.algorithm is not None:
        return (privacy.algorithm,)
    if update is not None:
        return (update,)
    usual = chosen.get("algorithm", "linearised")
    return usual if isinstance(usual, tuple) else (usual,)


def _make(name: str) -> object:
    if name in BUILT_IN:
        return EntryPoint(name, BUILT_IN[name], GROUP).load()()
    made = plugins.find(GROUP, name)
    if made is None:
        raise unknown("algorithm", name, names())
    if not callable(made):
        raise InputError(f"the plug-in {name!r} in {GROUP} must be a class or a function, got {type(made).__name__}")
    return check(made())
