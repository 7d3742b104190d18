"""Methods that can be compared: variants of FedMC, every algorithm by name, and baselines that are not federated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedmc.algorithms import registry
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.data.ratings import Ratings
from fedmc.errors import unknown
from fedmc.evaluation import pooled
from fedmc.privacy import modes
from fedmc.types import Array

COMMON = ("rank", "penalty_users")


class Parts(NamedTuple):
    """The split and the clients of one seed, the same for every case."""

    train: Ratings
    test: Ratings
    owner: Array


class Method(NamedTuple):
    """A method to compare: its label, its own settings, and the common options that it takes."""

    label: str
    settings: Mapping[str, object] = {}
    takes: tuple[str, ...] = COMMON
    central: Callable[[Parts, Settings], float] | None = None  # returns the test RMSE, if nothing is federated

    def options(self, given: Mapping[str, object]) -> dict[str, object]:
        """The given options that this method takes; None means that an option is not given."""
        return {name: given[name] for name in self.takes if given.get(name) is not None}


def _pooled(parts: Parts, settings: Settings) -> float:
    return pooled.pooled_rmse(parts.train, parts.test, settings)


def _proximal(parts: Parts, settings: Settings) -> float:
    start = start_items(len(parts.train.items), settings)
    return pooled.proximal_rmse(parts.train, parts.test, settings, start)


def _alone(parts: Parts, settings: Settings) -> float:
    return pooled.alone_rmse(parts.train, parts.test, parts.owner, settings)


def _biases(parts: Parts, settings: Settings) -> float:
    return pooled.bias_rmse(parts.train, parts.test)


FEDMC = {  # mode: the names of FedMC's variants in `compare`
    "fedmc": Method("fedmc"),
    "fedmc-exact": Method("fedmc, update=exact", {"update": "exact"}),
    "fedmc-paper": Method("FedMC-ADMM", {"preset": "paper"}, ("rank", "beta", "inner_steps")),
}
CENTRAL = {
    "pooled": Method("pooled ALS", central=_pooled),
    "pooled-prox": Method("pooled proximal gradient", central=_proximal),
    "alone": Method("each client alone", central=_alone),
    "biases": Method("biases only", takes=("rank",), central=_biases),
}


def names() -> list[str]:
    """The names of all methods that can be compared."""
    elsewhere = {*registry.UPDATES, *(kind.algorithm for kind in modes.BY_MODE.values())}  # chosen by other settings
    return [*FEDMC, *(name for name in registry.names() if name not in elsewhere), *CENTRAL]


def find(name: str) -> Method:
    """The method of this name."""
    if name not in names():
        raise unknown("method", name, names())
    known = FEDMC | CENTRAL
    if name in known:
        return known[name]
    return Method(registry.find(name).label or name, {"algorithm": name}, (*COMMON, "inner_steps"))
