"""The section `recency` of `ranking.py`: how much more recent events should count in predictions.

Validation NDCG@10 at rank 64 with default weights, means over two seeds. Validation events are held out of the training
events of a split as the test events were (`ranking_tuning`); the test events are not looked at. With k later events of
the user, an event counts 1 + FACTOR 2^(-k / HALF_LIFE).
"""

from __future__ import annotations

from itertools import product

import numpy as np
from ranking_common import ials, measured, ones, ratings_of
from scipy import sparse

from fedmc.data import splits
from fedmc.data.ratings import Ratings
from fedmc.data.recency import FACTOR, HALF_LIFE, later_of
from fedmc.evaluation.pooled_events import defaults_for, fitted

SEEDS, RANK, SWEEPS = (11, 12), 64, 10
NAMES = ("ml-100k", "ml-100k>=4", "ml-1m", "ml-1m>=4", "demo", "demo>=4")
PAIRS = (
    (1, 5), (2, 5), (2, 2), (FACTOR, HALF_LIFE), (3, 2), (3, 3), (5, 1), (5, 2), (10, 1), (3, 20), (10, 20), (1, 50),
    (3, 50),
)  # fmt: skip


def validation_of(name: str, split: str) -> tuple[Ratings, Ratings]:
    """Events to train on, and validation events."""
    ratings = ratings_of(name)
    if split == "last":
        return splits.last(splits.last(ratings, 1)[0], 1)
    return splits.at_random(splits.at_random(ratings, 0.2, SEEDS[0])[0], 0.2, SEEDS[0] + 10)


def found(name: str, split: str, seed: int) -> list[float]:
    """NDCG@10 with all events alike, and with each of PAIRS."""
    rest, held_out = validation_of(name, split)
    train, pair = ones(rest), (ones(rest), ones(held_out))
    algorithm = defaults_for(*train.shape, train.nnz)
    U, V = ials(algorithm, train, RANK, SWEEPS, seed)
    later, fits = later_of(rest.time_table()), [U]
    for factor, half_life in PAIRS:
        data = (1 + factor * np.exp2(later / -half_life)).astype(np.float32)
        fits.append(fitted(algorithm, sparse.csr_array((data, train.indices, train.indptr), shape=train.shape), V))
    return [measured((one, V), pair)[10].ndcg for one in fits]


def section_recency() -> None:
    shown = " ".join(f"({factor:g},{half_life:g})".rjust(8) for factor, half_life in PAIRS)
    print(f"{'(factor, half-life)':20} {'alike':>8} {shown}")
    for name, split in product(NAMES, ("last", "random")):
        means = np.mean([found(name, split, seed) for seed in SEEDS], axis=0)
        print(f"{name + ', ' + split:20} " + " ".join(f"{value:8.4f}" for value in means), flush=True)
