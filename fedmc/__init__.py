"""fedmc: matrix completion across organisations that may not pool their data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmc.algorithms.objectives import Objective
    from fedmc.algorithms.settings import Settings
    from fedmc.data.ratings import Ratings
    from fedmc.data.splits import last, leave, since, split
    from fedmc.estimator import FedMC
    from fedmc.model import Model, load
    from fedmc.report.figures import plot_history
    from fedmc.report.study import study
    from fedmc.training.engines import OnRay

__version__ = "0.3.0"
__all__ = [
    "FedMC",
    "Model",
    "Objective",
    "OnRay",
    "Ratings",
    "Settings",
    "__version__",
    "last",
    "leave",
    "load",
    "plot_history",
    "since",
    "split",
    "study",
]

_HOMES = {
    "FedMC": "estimator.FedMC",
    "Model": "model.Model",
    "Objective": "algorithms.objectives.Objective",
    "OnRay": "training.engines.OnRay",
    "Ratings": "data.ratings.Ratings",
    "Settings": "algorithms.settings.Settings",
    "last": "data.splits.last",
    "leave": "data.splits.leave",
    "load": "model.load",
    "plot_history": "report.figures.plot_history",
    "since": "data.splits.since",
    "split": "data.splits.split",
    "study": "report.study.study",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line's help does not wait for numba."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmc' has no attribute {name!r}")
    module, attribute = _HOMES[name].rpartition(".")[::2]
    return getattr(importlib.import_module(f"fedmc.{module}"), attribute)
