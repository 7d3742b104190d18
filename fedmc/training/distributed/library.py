"""Ray, which is installed by an extra and loaded when it is first needed: the one place that imports it."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

from fedmc.errors import require

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # nothing is reported to anybody
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # on Linux too: Ray then listens on the loopback interface only


def ray(alone: bool = False) -> Any:
    """Ray's module; with `alone`, for a cluster of this machine only, if it is not loaded yet."""
    for name, value in (QUIET | LOOPBACK if alone else QUIET).items():
        os.environ.setdefault(name, value)
    return _loaded()


def check_installed() -> None:
    missing = "engine 'ray' needs the package ray: pip install 'fedmc[ray]'"
    require(find_spec("ray") is not None, missing)


@cache
def _loaded() -> Any:
    check_installed()
    import ray

    return ray
