"""Algorithms by name: those built in, and those of installed packages that declare the entry point `fedmc.algorithms`.

A built-in is an entry point like any other, declared here instead of in package metadata: its module is imported when
its name is first used. Hyper-parameters follow the name: `fedprox:0.2` calls `FedProx(0.2)`.
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
    "explicit": "fedmc.algorithms.explicit:ExplicitADMM",
    "exact": "fedmc.algorithms.exact:ExactADMM",
    "curvature": "fedmc.algorithms.curvature:Curvature",
    "fedmavg": "fedmc.algorithms.fedmavg:FedMAvg",
    "fedmavg-printed": "fedmc.algorithms.fedmavg:PrintedFedMAvg",
    "fedmgs": "fedmc.algorithms.fedmgs:FedMGS",
    "fedavg": "fedmc.algorithms.fedavg:FedAvg",
    "fedprox": "fedmc.algorithms.fedavg:FedProx",
    "scaffold": "fedmc.algorithms.scaffold:Scaffold",
    "fedadmm": "fedmc.algorithms.fedadmm:FedADMM",
    "fedrecon-ratings": "fedmc.algorithms.fedrecon_ratings:FedReconRatings",
    "dp": "fedmc.algorithms.private:Private",
    "bayes": "fedmc.algorithms.bayes:Bayes",
    "gibbs": "fedmc.algorithms.gibbs:Gibbs",
    "ials": "fedmc.algorithms.ials:IALS",
    "ials-blocks": "fedmc.algorithms.ials_blocks:BlockIALS",
    "ease": "fedmc.algorithms.ease:EASE",
    "fcf": "fedmc.algorithms.fcf:FCF",
    "fedrecon": "fedmc.algorithms.fedrecon:FedRecon",
    "pfedrec": "fedmc.algorithms.pfedrec:PFedRec",
}
NEEDED = ("name", "client_update", "aggregate", "schema")
UPDATES = ("linearised", "explicit", "exact", "curvature")  # the variants of FedMC itself: `update` names one of them
MAX_FOUND = 1_000  # specs whose algorithms are kept
_found: dict[str, object] = {}


def names() -> list[str]:
    """The names of all algorithms, built in or installed."""
    return [*BUILT_IN, *plugins.names(GROUP)]


def name_of(spec: str) -> str:
    """The name in a spec such as `fedprox:0.2`."""
    return spec.partition(":")[0]


def find(spec: str) -> Algorithm:
    """The algorithm of a name, or of a name and its hyper-parameters."""
    if spec not in _found:
        made = _make(spec)
        if len(_found) >= MAX_FOUND:
            _found.clear()
        _found[spec] = made
    return cast("Algorithm", _found[spec])


def check(given: object) -> Algorithm:
    """Check an algorithm that the user gave as an object."""
    if isinstance(given, type):
        raise InputError(f"an algorithm is an object: give {given.__name__}(), not the class")
    missing = [need for need in NEEDED if not _has(given, need)]
    if missing:
        raise InputError(
            f"an algorithm needs {', '.join(missing)}, which {type(given).__name__} lacks: "
            "inherit from fedmc.algorithms.protocol.Algorithm"
        )
    _check_spec(given)
    return cast("Algorithm", given)


def _has(given: object, need: str) -> bool:
    """Whether it has a value of its own, and not the placeholder of the protocol."""
    found = getattr(given, need, None)
    return bool(found) and getattr(found, "__module__", None) != "fedmc.algorithms.protocol"


def _check_spec(given: object) -> None:
    """Refuse an object whose spec stands for another algorithm: a saved model or a node would use that one."""
    spec = str(given)
    if name_of(spec) not in names():
        return
    registered = find(spec)
    if type(registered) is not type(given) or vars(registered) != vars(given):
        raise InputError(
            f"{spec!r} is the name of another algorithm: give {type(given).__name__} a name of its own, or a __str__ "
            f"that holds its hyper-parameters, such as '{name_of(spec)}:0.5'"
        )


def is_name(given: object) -> bool:
    return isinstance(given, str)


def of_events(given: object) -> bool:
    """Whether this names an algorithm, or is one, that learns from events instead of ratings."""
    if isinstance(given, str) and name_of(given) not in names():
        return False
    return given is not None and bool(getattr(resolve(given), "of_events", False))


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
        if isinstance(method, str) and name_of(method) not in names():
            raise unknown("method", method, ("fedmc", *names()))
        return (method,)
    if privacy is not None and privacy.algorithm is not None:
        return (privacy.algorithm,)
    if update is not None:
        return (update,)
    usual = chosen.get("algorithm", "linearised")
    return usual if isinstance(usual, tuple) else (usual,)


def check_one(given: Mapping[str, object]) -> None:
    """Refuse an algorithm that is named twice. `method="fedmc"` names none, so `update` may be given with it."""
    found = [f"{key}={given[key]!r}" for key in ("algorithm", "method", "update") if given.get(key, "fedmc") != "fedmc"]
    if len(found) > 1:
        raise InputError(f"{' and '.join(found)} both name the algorithm: give one of them")


def _make(spec: str) -> object:
    name = name_of(spec)
    built_in = EntryPoint(name, BUILT_IN[name], GROUP).load() if name in BUILT_IN else None
    made = plugins.build(GROUP, spec, built_in)
    if made is None:
        raise unknown("algorithm", name, names())
    missing = [need for need in NEEDED if not _has(made, need)]
    if missing:
        raise InputError(f"the plug-in {name!r} in {GROUP} lacks {', '.join(missing)}")
    return made
