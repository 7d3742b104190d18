"""Methods that can be compared: variants of FedMC, every algorithm by name, and baselines that are not federated."""

from __future__ import annotations

import re
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
    "fedmc-bayes": Method("fedmc, Bayesian", {"preset": "bayes"}, ("rank",)),
    "fedmc-exact": Method("fedmc, update=exact", {"update": "exact"}),
    "fedmc-paper": Method("FedMC-ADMM", {"preset": "paper"}, ("rank", "beta", "inner_steps")),
}
CENTRAL = {
    "pooled": Method("pooled ALS", central=_pooled),
    "pooled-prox": Method("pooled proximal gradient", central=_proximal),
    "alone": Method("each client alone", central=_alone),
    "biases": Method("biases only", takes=("rank",), central=_biases),
}

VARIANTS = ("fedmavg-printed",)
EVENTS = ("ials", "ials-blocks", "ease", "fcf", "fedrecon")  # they learn from events, not from ratings


def names() -> list[str]:
    """The names of all methods that can be compared."""
    elsewhere = {
        "bayes",
        "gibbs",  # which needs everybody in every round
        *registry.UPDATES,
        *(kind.algorithm for kind in modes.BY_MODE.values()),
        *EVENTS,
    }  # chosen by other settings
    return [*FEDMC, *(name for name in registry.names() if name not in elsewhere), *CENTRAL]


def usual() -> list[str]:
    """The methods that are compared by default: all but variants with another constant."""
    return [name for name in names() if name not in VARIANTS]


def split(text: str) -> list[str]:
    """Split names at commas; a number belongs to the name before it: `fedprox:0.2,scaffold`, `mine:0.5,2`."""
    found: list[str] = []
    for piece in text.split(","):
        if found and ":" in found[-1] and re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def find(name: str) -> Method:
    """The method of this name, or of a name and its hyper-parameters."""
    plain = registry.name_of(name)
    if plain not in names() or (plain != name and plain in FEDMC | CENTRAL):
        raise unknown("method", name, names())
    known = FEDMC | CENTRAL
    if name in known:
        return known[name]
    label = (registry.find(name).label or plain) + name.removeprefix(plain).replace(":", " ")
    return Method(label, {"algorithm": name}, (*COMMON, "inner_steps"))
