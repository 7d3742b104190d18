"""The versions of Flower that fedmc was tried with; every other one is refused before anything of Flower is imported.

fedmc uses parts of Flower that have no stable interface. `make slow` runs the whole federation with the installed
version: add a version here once it passes.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from fedmc.errors import InputError

TRIED = ("1.41.0",)
OVERRIDE = "FEDMC_ANY_FLOWER"  # set to 1 for experiments


def check() -> None:
    """Refuse a version of Flower that was not tried."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        return  # the import says what is missing
    if found not in TRIED and os.environ.get(OVERRIDE) != "1":
        raise InputError(
            f"fedmc was tried with flwr {', '.join(TRIED)}, and {found} is installed: "
            f"pip install flwr=={TRIED[-1]}, or set {OVERRIDE}=1 to try this version at your own risk"
        )
