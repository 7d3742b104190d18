"""Methods that can be compared: variants of FedMC, every algorithm by name, and baselines that are not federated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from fedmc.algorithms import registry
from fedmc.algorithms.presets import OF_EVENTS
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.errors import unknown
from fedmc.evaluation import event_methods, gossip, pooled
from fedmc.evaluation.gossip import ring
from fedmc.evaluation.harness import Measured, Parts, Scored, ranking_of, top_of
from fedmc.evaluation.pooled import Fits
from fedmc.privacy import modes

COMMON = ("rank", "penalty_users")
BOTH = frozenset({"explicit", "implicit"})
RATINGS, EVENTS = frozenset({"explicit"}), frozenset({"implicit"})
_EVENTS: Mapping[str, object] = {"preset": OF_EVENTS}
_DP: Mapping[str, object] = {"privacy": "dp", "penalty_users": "l2:10"}  # the weight: chosen on validation ratings


class Method(NamedTuple):
    """A method to compare: its label, its own settings, and the common options that it takes."""

    label: str
    settings: Mapping[str, object] = {}
    takes: tuple[str, ...] = COMMON
    central: Callable[[Parts, Settings], Measured] | None = None  # measures the test data, if nothing is federated
    feedback: frozenset[str] = RATINGS  # what it learns from
    is_pooled: bool = False  # the same model on pooled data, which the others are compared with
    sized: bool = False  # the weights of its objective are those that suit the number of events
    peers: Callable[[Parts, Settings, int, int], Iterator[dict[str, float | None]]] | None = None  # without a server

    @property
    def has_server(self) -> bool:
        return self.central is None and self.peers is None

    def options(self, given: Mapping[str, object]) -> dict[str, object]:
        """The given options that this method takes; None means that an option is not given."""
        return {name: given[name] for name in self.takes if given.get(name) is not None}

    def suited(self, settings: Settings, parts: Parts) -> Settings:
        """The settings for this data: methods on the objective of iALS get the same weights."""
        chosen = event_methods.weights_for(parts.train.matrix).weights if self.sized else None
        weighted = None if chosen is None else settings.make_algorithm().with_weights(*chosen)
        return settings if weighted is None else settings.replace(algorithm=str(weighted))


def _measured(fits: Fits, parts: Parts) -> Measured:
    if not len(parts.test):
        return {}
    scored = (Scored(shard.users, fit.U, fit.V, shard.by_user) for fit, shard in fits)
    return {"test_rmse": pooled.rmse_of(fits)} | ranking_of(top_of(scored, len(parts.train.users)), parts)


def _pooled(parts: Parts, settings: Settings) -> Measured:
    return _measured(pooled.pooled_fits(parts.train, parts.test, settings), parts)


def _proximal(parts: Parts, settings: Settings) -> Measured:
    start = start_items(len(parts.train.items), settings)
    return _measured(pooled.proximal_fits(parts.train, parts.test, settings, start), parts)


def _alone(parts: Parts, settings: Settings) -> Measured:
    return _measured(pooled.alone_fits(parts.train, parts.test, parts.owner, settings), parts)


def _biases(parts: Parts, settings: Settings) -> Measured:
    return _measured(pooled.bias_fits(parts.train, parts.test), parts)


def _soft_impute(parts: Parts, settings: Settings) -> Measured:
    return _measured(pooled.soft_impute_fits(parts.train, parts.test, settings), parts)


def _dp_als(parts: Parts, settings: Settings) -> Measured:
    return _measured(pooled.dp_als_fits(parts.train, parts.test, settings), parts)


FEDMC = {  # mode: the names of FedMC's variants in `compare`
    "fedmc": Method("fedmc"),
    "fedmc-bayes": Method("fedmc, Bayesian", {"preset": "bayes"}, ("rank",)),
    "fedmc-exact": Method("fedmc, update=exact", {"update": "exact"}),
    "fedmc-paper": Method("FedMC-ADMM", {"preset": "paper"}, ("rank", "beta", "inner_steps")),
}
CENTRAL = {
    "pooled": Method("pooled ALS", central=_pooled, is_pooled=True),
    "pooled-prox": Method("pooled proximal gradient", central=_proximal),
    "softimpute": Method("softImpute", central=_soft_impute),
    "dp-als": Method("DPALS", _DP, ("rank", "penalty_users", "epsilon", "delta"), central=_dp_als),
    "alone": Method("each client alone", central=_alone),
    "biases": Method("biases only", takes=("rank",), central=_biases),
    "pooled-ials": Method("pooled iALS", _EVENTS, ("rank",), event_methods.pooled, EVENTS, is_pooled=True),
    "alone-ials": Method("each client alone", _EVENTS, ("rank",), event_methods.alone, EVENTS),
    "nearest": Method("nearest items", takes=("rank",), central=event_methods.nearest, feedback=BOTH),
    "popularity": Method("popularity", takes=("rank",), central=event_methods.popularity, feedback=BOTH),
}
GRADIENTS = (*COMMON, "inner_steps")
PEERS = {
    "gossip": Method("gossip", {"algorithm": "fedavg"}, GRADIENTS, peers=gossip.rows),
    "gossip-ring": Method("gossip, ring", {"algorithm": "fedavg"}, GRADIENTS, peers=partial(gossip.rows, graph=ring)),
}
ALONE = CENTRAL["alone"].label  # of ratings and of events
VARIANTS = ("fedmavg-printed", "ials-blocks", "gossip-ring", "dp-als")  # left out by default: with another constant,
# with everybody in every round, on another graph, with noise (and the extra `dp`)


def names(feedback: str | None = None) -> list[str]:
    """The names of all methods that can be compared; with `feedback`, of those that learn from it."""
    elsewhere = {
        "bayes",
        "gibbs",  # which needs everybody in every round
        *registry.UPDATES,
        *(kind.algorithm for kind in modes.BY_MODE.values()),
    }  # chosen by other settings
    found = [*FEDMC, *(name for name in registry.names() if name not in elsewhere), *CENTRAL, *PEERS]
    return found if feedback is None else [name for name in found if feedback in find(name).feedback]


def usual(feedback: str = "explicit") -> list[str]:
    """The methods that are compared by default: all of this feedback but variants."""
    return [name for name in names(feedback) if name not in VARIANTS]


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
    plain, known = registry.name_of(name), FEDMC | CENTRAL | PEERS
    if plain not in names() or (plain != name and plain in known):
        raise unknown("method", name, names())
    if name in known:
        return known[name]
    algorithm = registry.find(name)
    label = (algorithm.label or plain) + name.removeprefix(plain).replace(":", " ")
    if not algorithm.of_events:
        return Method(label, {"algorithm": name}, GRADIENTS)
    takes = tuple(option for option in ("rank", "inner_steps") if option not in algorithm.unused_settings)
    return Method(label, {"algorithm": name, **_EVENTS}, takes, feedback=EVENTS, sized=plain == name)
