"""The section `clients` of `ranking.py`: federated iALS beside pooled iALS, whoever takes part.

Both minimise the same objective, with default weights. Pooled is what one client with all events has at its end. A gap
is how far NDCG@20 of the held-out events is below that, in percent; above it, it is negative. The last sweeps of iALS
raise no NDCG, and lower it slowly on some sets: a federation that has not quite converged can be above.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import islice

import numpy as np
from ranking_common import Pair, first_items, fitted, gowalla, measured, split_of
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data import partition
from fedmc.data.matrices import narrow
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.evaluation.pooled_events import defaults_for, quick_sweeps
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

RANK, END = 64, 40  # of the defaults; sweeps after which pooled iALS is taken to stand still
FOREVER = 10**9
PLAN = ((5, 1), (5, 5), (100, 10), (1000, 50), (5000, 250))  # clients, and how many take part in a round
SIZES = "uniform", "power:1"


@functools.cache
def pair_of(name: str, seed: int) -> Pair:
    return gowalla() if name == "gowalla" else split_of(name, "random", seed)[:2]


@functools.cache
def pooled(name: str, seed: int) -> float:
    train = pair_of(name, seed)[0]
    algorithm = defaults_for(*train.shape, train.nnz)
    V = first_items(train.shape[1], RANK, seed)
    return measured(next(islice(quick_sweeps(algorithm, train, V), END - 1, None)), pair_of(name, seed))[20].ndcg


def gaps(name: str, seed: int, clients: int, active: int, at: Sequence[int], sizes: str = SIZES[0]) -> list[float]:
    """In percent, after these rounds."""
    train, test = pair_of(name, seed)
    events = Ratings(np.arange(train.shape[0]), np.arange(train.shape[1]), narrow(sparse.csr_array(train)))
    shards = make_shards(events, partition.parse(sizes, events, clients, seed), "float64")
    settings = Settings.preset("implicit", rank=RANK, active=active, seed=seed)
    algorithm, found = defaults_for(*train.shape, train.nnz), []
    for round in islice(rounds(LocalEngine(shards), settings, measure_every=FOREVER), max(at) + 1):
        if round.number in at:
            V = round.V.astype(np.float32)
            found.append(measured((fitted(algorithm, train, V), V), (train, test))[20].ndcg)
    return [100 * (1 - ndcg / pooled(name, seed)) for ndcg in found]


def show(label: str, found: Sequence[Sequence[float]], at: Sequence[int], bounds: Sequence[float]) -> None:
    cells = []
    for number, gap, bound in zip(at, np.array(found).T, bounds, strict=True):
        good = "yes" if gap.mean() <= bound else "NO"
        cells.append(f"{number}: {gap.mean():+.2f} ({gap.min():+.2f} to {gap.max():+.2f}; at most {bound}: {good})")
    print(f"{label:44} {'  '.join(cells)}", flush=True)


def section_clients() -> None:
    for name, seeds in (("ml-1m", (1, 2, 3)), ("gowalla", (1,))):
        ten = [gaps(name, seed, 10, 10, (10,)) for seed in seeds]
        show(f"{name}, all of 10 clients", ten, (10,), (1,))
        some = [gaps(name, seed, 100, 10, (60, 100)) for seed in seeds]
        show(f"{name}, 10 of 100 clients", some, (60, 100), (1, 0.3))
    for sizes in SIZES:
        for clients, active in PLAN:
            at = tuple(updates * clients // active for updates in (6, 10))
            found = [gaps("ml-1m", seed, clients, active, at, sizes) for seed in (1, 2, 3)]
            show(f"ml-1m, {active} of {clients}, sizes {sizes}", found, at, (1, 0.3))
