"""fedmc: matrix completion across organisations that may not pool their data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmc.estimator import FedMC
    from fedmc.model import Model, load
    from fedmc.ratings import Ratings
    from fedmc.settings import Settings
    from fedmc.splits import at_random as split

__version__ = "0.1.0"
__all__ = ["FedMC", "Model", "Ratings", "Settings", "__version__", "load", "split"]

_HOMES = {
    "FedMC": "estimator.FedMC",
    "Model": "model.Model",
    "Ratings": "ratings.Ratings",
    "Settings": "settings.Settings",
    "load": "model.load",
    "split": "splits.at_random",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help should not wait for a compiler."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmc' has no attribute {name!r}")
    module, attribute = _HOMES[name].split(".")
    return getattr(importlib.import_module(f"fedmc.{module}"), attribute)
