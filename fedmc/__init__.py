"""fedmc: matrix completion across organisations that may not pool their data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmc.estimator import FedMC
    from fedmc.model import Model, load
    from fedmc.ratings import Ratings, split
    from fedmc.settings import Settings

__version__ = "0.1.0"
__all__ = ["FedMC", "Model", "Ratings", "Settings", "__version__", "load", "split"]

_HOMES = {
    "FedMC": "estimator",
    "Model": "model",
    "load": "model",
    "Ratings": "ratings",
    "split": "ratings",
    "Settings": "settings",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help should not wait for a compiler."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedmc.{_HOMES[name]}"), name)
