"""The settings of a run that apply to it: those of its algorithm and its privacy mode."""

from __future__ import annotations

from collections.abc import Mapping, Set

from fedmc.algorithms import registry
from fedmc.errors import FedmcError

SILENT = {"passes": False, "clip": 0, "validation": "0", "title": "", "decoys": 0}  # values that switch it off


def that_apply(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings without those that the run's algorithm does not use, and without those that are switched off."""
    out = _unused(str(settings.get("algorithm", "")))
    kept = {name: value for name, value in settings.items() if name not in out and SILENT.get(name) != value}
    if kept.get("beta") != "auto":
        kept.pop("beta_scale", None)
    return kept


def _unused(spec: str) -> Set[str]:
    try:
        algorithm = registry.find(spec)
    except FedmcError:
        return frozenset()  # a custom object, or a plug-in that is not here
    return algorithm.unused_settings | algorithm.ignored_settings
