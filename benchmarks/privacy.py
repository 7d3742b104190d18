"""What privacy costs in accuracy, on MovieLens 1M with 10 clients.

    python benchmarks/privacy.py [SECTION ...]      dp copies

dp       test RMSE at epsilon 1, 3, 10 and without noise, beside biases only under the same budget and no privacy at all
copies   how many users it takes for factors to be worth their noise: every user two, three ... times over

Rank, rounds and penalty are chosen on a tenth of the training ratings, then all of them are trained on: no test rating
is used before the figure that is printed, the mean over draws of the noise (their range behind it). delta = 1e-5.
MovieLens is read from FEDMC_DATA (a folder that holds ml-1m).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.private import Private
from fedmc.algorithms.settings import Settings
from fedmc.data import datasets
from fedmc.data.partition import Shard, assign_users, make_shards, narrow
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.evaluation.pooled import bias_rmse
from fedmc.privacy.modes import DP, DPSecAgg
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

CLIENTS, DELTA = 10, 1e-5
EPSILONS = (1.0, 3.0, 10.0, math.inf)
TRIES, DRAWS = 2, 5  # of the noise: when choosing, and for the figure


class Choice(NamedTuple):
    rounds: int
    rank: int = 1
    penalty: float = 2.0  # of the users
    factors: bool = True


FACTORS = [Choice(*one) for one in itertools.product((13, 19), (1, 2, 4, 8), (2.0, 4.0))]
BIASES = [Choice(number, factors=False) for number in (3, 5, 8, 14)]


@functools.cache
def split() -> tuple[Ratings, Ratings]:
    path = Path(os.environ.get("FEDMC_DATA", "")) / "ml-1m" / "ratings.dat"
    if not path.is_file():
        sys.exit(f"no {path}: set FEDMC_DATA to a folder that holds ml-1m/ratings.dat")
    return at_random(datasets.load_source(str(path)), 0.2, 1)


@functools.cache
def shards(choosing: bool) -> list[Shard]:
    """With the ratings to measure on as test ratings: validation or test."""
    train, test = split()
    if choosing:
        train, test = at_random(train, 0.1, 2)
    return make_shards(train, assign_users(len(train.users), CLIENTS, 0), "float64", test)


def rmse(shards: list[Shard], choice: Choice, epsilon: float, hidden: bool) -> float:
    privacy = (DPSecAgg if hidden else DP)(epsilon, DELTA, choice.rounds)
    algorithm = Private(choice.factors)
    penalties = {"penalty_users": f"l2:{choice.penalty}", "penalty_items": "none"}
    chosen = {"rank": choice.rank, "privacy": privacy, "algorithm": algorithm, "active": CLIENTS}
    settings = Settings.preset("fast", **chosen, **penalties)
    running = rounds(LocalEngine(shards), settings, measure_every=choice.rounds)
    (last,) = itertools.islice(running, choice.rounds, choice.rounds + 1)
    assert last.diagnostics.test_rmse is not None
    return last.diagnostics.test_rmse


def chosen(choices: Sequence[Choice], epsilon: float, hidden: bool) -> Choice:
    """The best on validation ratings."""
    tries = 1 if math.isinf(epsilon) else TRIES
    found = {one: np.mean([rmse(shards(True), one, epsilon, hidden) for _ in range(tries)]) for one in choices}
    return min(found, key=lambda one: found[one])


def figure(choices: Sequence[Choice], epsilon: float, hidden: bool) -> str:
    choice = chosen(choices, epsilon, hidden)
    draws = 1 if math.isinf(epsilon) else DRAWS
    errors = [rmse(shards(False), choice, epsilon, hidden) for _ in range(draws)]
    what = f"rank {choice.rank}, penalty {choice.penalty:g}" if choice.factors else "biases"
    return f"{np.mean(errors):.4f} ({np.ptp(errors):.4f}) {what}, {choice.rounds} rounds"


def not_private() -> None:
    settings = Settings.preset("fast", rank=10, active=CLIENTS)
    *_, last = itertools.islice(rounds(LocalEngine(shards(False)), settings, measure_every=60), 61)
    print(f"not private: rank 10 {last.diagnostics.test_rmse:.4f}, biases {bias_rmse(*split()):.4f}")


def dp() -> None:
    not_private()
    for hidden in (False, True):
        print("noise shared under secure aggregation" if hidden else "each client adds all the noise itself")
        for epsilon in EPSILONS:
            kinds = {"factors": FACTORS, "biases": BIASES}
            for kind, choices in kinds.items():
                print(f"  epsilon {epsilon:<4g} {kind:8} {figure(choices, epsilon, hidden)}", flush=True)


def copied(shard: Shard, times: int) -> Shard:
    """Every user so many times; measured on all of them."""
    below = [narrow(sparse.csr_array(sparse.vstack([part] * times))) for part in (shard.by_user, shard.test)]
    return Shard.of(shard.client, np.arange(below[0].shape[0]), *below)


def copies() -> None:
    for epsilon, some in ((3.0, (1, 2, 3, 4)), (1.0, (4, 8))):
        for times in some:
            many = [copied(shard, times) for shard in shards(True)]
            errors = {choice: rmse(many, choice, epsilon, False) for choice in (Choice(8, factors=False), Choice(19))}
            biases, factors = errors.values()
            print(
                f"epsilon {epsilon:g}, every user {times} times: biases {biases:.4f}, rank 1 {factors:.4f}", flush=True
            )


SECTIONS = {"dp": dp, "copies": copies}

if __name__ == "__main__":
    for name in sys.argv[1:] or SECTIONS:
        if name not in SECTIONS:
            sys.exit(f"unknown section {name!r}: choose from {', '.join(SECTIONS)}")
        print(f"== {name}", flush=True)
        SECTIONS[name]()
