"""The leak of the usual sampled protocol, measured: test items that are never drawn as training negatives.

    FEDMC_DATA=FOLDER python benchmarks/leak.py [SOURCE] [SEEDS]      ml-1m and 3 seeds; about 3 minutes

The protocol holds out each user's last item and ranks it among 99 items that the user has not rated. Training takes the
user's other items as positives, and 4 negatives for each, drawn anew in every epoch:

    honest    from all items without a training rating of the user; the held-out item is one of them
    leaking   from all items that the user has not rated at all, as in much published code: the held-out item is known
              to the sampler, and is the only item without a training rating that is never drawn

The metric is HR@10: the share of users whose held-out item is among the first ten, of the 100 items, or of all items
without a training rating. By chance it is 0.1 of 100 items.

    draws     knows nothing but the draws: an item's score is minus the number of times it was drawn for this user
    own table     logistic factors; each client trains its own copy of the item table on its positives and negatives,
                  the changes of all copies are summed over the square root of their number, item by item, and a
                  client's items are ranked by its own copy (as personalised methods do)
    shared table  the same, but ranked by the table of the sums and the client's user factors

Step length and number of epochs were chosen by HR@10 of 100 of the users' last but one item, with honest negatives:
`python benchmarks/leak.py ml-1m tune` prints a small grid, of which the shortest steps and most epochs are best.
"""

# ruff: noqa: NPY002   (compiled loops draw from numba's own generator)
from __future__ import annotations

import sys
import time
from itertools import product
from typing import NamedTuple

import numpy as np
from numba import njit

from fedmc.data.datasets import load_source
from fedmc.data.ratings import Ratings
from fedmc.data.splits import last
from fedmc.types import Array

NEGATIVES, CANDIDATES, TOP = 4, 99, 10
EPOCHS, STEP, RANK, RIDGE = 20, 0.03, 16, 1e-4


class Held(NamedTuple):
    """Training items by user in CSR form, and one held-out item of each user; -1 if there is none."""

    indptr: Array
    indices: Array
    item: Array
    items: int


class Rates(NamedTuple):
    """HR@10 among 100 items, and among all."""

    sampled: float
    full: float


def held_of(train: Ratings, test: Ratings) -> Held:
    item = np.full(len(train.users), -1)
    item[test.rows()] = test.matrix.indices
    return Held(train.matrix.indptr.astype(np.int64), train.matrix.indices.astype(np.int64), item, len(train.items))


@njit
def _draw(seen: Array, avoided: int) -> int:
    """An item that is not seen in training, and not the one to be avoided (-1: none)."""
    item = np.random.randint(seen.size)
    while seen[item] or item == avoided:
        item = np.random.randint(seen.size)
    return item


@njit
def _draws_only(indptr: Array, indices: Array, held: Array, items: int, leaks: bool, epochs: int, seed: int) -> Array:
    """(places of the held-out items among CANDIDATES others, the same among all) by the number of draws alone."""
    np.random.seed(seed)
    places = np.full((held.size, 2), -1)
    for user in range(held.size):
        if held[user] < 0:
            continue
        mine = indices[indptr[user] : indptr[user + 1]]
        seen, scores = np.zeros(items, np.bool_), np.zeros(items)
        seen[mine] = True
        for _ in range(epochs * NEGATIVES * mine.size):
            scores[_draw(seen, held[user] if leaks else -1)] -= 1.0
        places[user] = _places(scores, seen, held[user])
    return places


@njit
def _places(scores: Array, seen: Array, held: int) -> tuple[int, int]:
    """How many items are before the held-out one: of CANDIDATES random ones, and of all. Ties by lot."""
    before = level = 0
    seen[held] = True
    drawn = seen.copy()
    for _ in range(min(CANDIDATES, drawn.size - drawn.sum())):
        other = _draw(drawn, -1)
        drawn[other] = True
        before += scores[other] > scores[held]
        level += scores[other] == scores[held]
    better = ties = 0
    for item in range(scores.size):
        if not seen[item]:
            better += scores[item] > scores[held]
            ties += scores[item] == scores[held]
    seen[held] = False
    return before + np.random.randint(level + 1), better + np.random.randint(ties + 1)


@njit
def _epoch(
    user: int, U: Array, V: Array, Q: Array, touched: Array, mine: Array, seen: Array, avoided: int, step: float
) -> None:
    """One epoch of a client: a step for each positive and each drawn negative, on its user factors and its copy Q of V.

    Only the rows that are touched are copied.
    """
    for positive in mine:
        for draw in range(NEGATIVES + 1):
            item = positive if draw == 0 else _draw(seen, avoided)
            if not touched[item]:
                touched[item] = True
                Q[item] = V[item]
            score = 0.0
            for c in range(Q.shape[1]):
                score += U[user, c] * Q[item, c]
            error = (1.0 if draw == 0 else 0.0) - 1.0 / (1.0 + np.exp(-score))
            for c in range(Q.shape[1]):
                u, q = U[user, c], Q[item, c]
                U[user, c] += step * (error * q - RIDGE * u)
                Q[item, c] += step * (error * u - RIDGE * q)


@njit
def _factors(
    indptr: Array, indices: Array, held: Array, items: int, leaks: bool, own: bool, step: float, epochs: int, seed: int
) -> Array:
    """The places of the held-out items by logistic factors; the last epoch's own tables rank if `own`."""
    np.random.seed(seed)
    users = held.size
    U, V = np.random.normal(0.0, 0.1, (users, RANK)), np.random.normal(0.0, 0.1, (items, RANK))
    places, Q = np.full((users, 2), -1), np.empty((items, RANK))
    for epoch in range(epochs):
        change, count = np.zeros((items, RANK)), np.zeros(items)
        for user in range(users):
            mine = indices[indptr[user] : indptr[user + 1]]
            seen, touched = np.zeros(items, np.bool_), np.zeros(items, np.bool_)
            seen[mine] = True
            _epoch(user, U, V, Q, touched, mine, seen, held[user] if leaks else -1, step)
            for item in range(items):
                if touched[item]:
                    change[item] += Q[item] - V[item]
                    count[item] += 1.0
                else:
                    Q[item] = V[item]
            if own and epoch == epochs - 1 and held[user] >= 0:
                places[user] = _places(Q @ U[user], seen, held[user])
        for item in range(items):
            if count[item]:
                V[item] += change[item] / np.sqrt(count[item])
    if not own:
        for user in range(users):
            if held[user] >= 0:
                seen = np.zeros(items, np.bool_)
                seen[indices[indptr[user] : indptr[user + 1]]] = True
                places[user] = _places(V @ U[user], seen, held[user])
    return places


def rates_of(places: Array) -> Rates:
    counted = places[places[:, 0] >= 0]
    return Rates(*(counted < TOP).mean(axis=0).tolist())


def draws_only(held: Held, leaks: bool, seed: int) -> Rates:
    return rates_of(_draws_only(*held, leaks, EPOCHS, seed))


def factors(held: Held, leaks: bool, own: bool, seed: int, step: float = STEP, epochs: int = EPOCHS) -> Rates:
    return rates_of(_factors(*held, leaks, own, step, epochs, seed))


def tune(train: Ratings) -> None:
    """Step length and epochs on validation items, with honest negatives."""
    held = held_of(*last(train))
    for step, epochs, own in product((0.03, 0.1, 0.3), (10, 20), (False, True)):
        print(f"step {step}, {epochs} epochs, own {own}: {factors(held, False, own, 1, step, epochs)}", flush=True)


def main(source: str = "ml-1m", seeds: str = "3") -> None:
    train, test = last(load_source(source, times=True))
    if seeds == "tune":
        return tune(train)
    held = held_of(train, test)
    print(f"{source}: {(held.item >= 0).sum():,} users with a held-out item, {held.items:,} items; {seeds} seeds")
    kinds = {
        "draws": draws_only,
        "own table": lambda held, leaks, seed: factors(held, leaks, True, seed),
        "shared table": lambda held, leaks, seed: factors(held, leaks, False, seed),
    }
    print(f"{'':14}{'HR@10 of 100':>26}{'HR@10 of all items':>26}\n{'':14}" + 2 * f"{'honest':>13}{'leaking':>13}")
    for name, kind in kinds.items():
        began = time.perf_counter()
        found = {leaks: [kind(held, leaks, seed) for seed in range(1, int(seeds) + 1)] for leaks in (False, True)}
        cells = [np.array([one[k] for one in found[leaks]]) for k in (0, 1) for leaks in (False, True)]
        shown = "".join(f"{cell.mean():>13.4f}" for cell in cells)
        spread = max(float(np.ptp(cell)) for cell in cells)
        print(
            f"{name:14}{shown}   range over seeds at most {spread:.4f}; {time.perf_counter() - began:.0f} s", flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
