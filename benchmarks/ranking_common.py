"""What the sections of `ranking.py` share: sets of events, splits, metrics, and `implicit` as the peer."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedmc.algorithms.ials import IALS
from fedmc.data import datasets, splits
from fedmc.data.ratings import Ratings
from fedmc.data.recency import later_of, recent
from fedmc.evaluation.pooled_events import Factors, first_items, fitted, model_top, sweeps_of
from fedmc.kernels import threads
from fedmc.problem.ranking import Popularity, Ranking, means_of, sums_of
from fedmc.types import Array

Pair = tuple[sparse.csr_array, sparse.csr_array]  # events to train on, and held out
FILES = {"ml-1m": "ml-1m/ratings.dat", "ml-100k": "ml-100k/u.data"}


class Peer(NamedTuple):
    """The parameters of implicit's ALS: the weight of an event, where a pair without one has 1, and its lambda."""

    rank: int
    alpha: float
    regularization: float
    sweeps: int = 10

    def ours(self) -> IALS:
        """The same objective, divided by alpha - 1, with factors divided by sqrt(alpha / (alpha - 1)).

        implicit's is alpha (1 - x)^2 over events, x^2 over the other pairs, and lambda (|U|^2 + |V|^2). With
        x = t y and t = alpha / (alpha - 1), it is a constant plus
        t^2 (alpha - 1) [(1 - y)^2 over events + y^2 / (alpha - 1) over all pairs + lambda / alpha (|U|^2 + |V|^2)].
        """
        return IALS(1 / (self.alpha - 1), self.regularization / self.alpha, 0.0)


def folder() -> Path:
    path = Path(os.environ.get("FEDMC_DATA", ""))
    missing = [name for name in ("gowalla/train.csv", *FILES.values()) if not (path / name).is_file()]
    if missing:
        sys.exit(f"set FEDMC_DATA to a folder that holds {', '.join(missing)}")
    return path


@functools.cache
def gowalla() -> Pair:
    """The split of LightGCN's authors."""
    pairs = [np.loadtxt(folder() / "gowalla" / f"{part}.csv", np.int32, delimiter=",", skiprows=1) for part in PARTS]
    shape = tuple(np.max([part.max(axis=0) for part in pairs], axis=0) + 1)
    train, test = (sparse.csr_array((np.ones(len(part), np.float32), part.T), shape=shape) for part in pairs)
    return train, test


PARTS = "train", "test"


@functools.cache
def ratings_of(name: str) -> Ratings:
    """`ml-1m`, `ml-100k` or `demo`; with `>=4`, only ratings of 4 and more are events."""
    base, _, least = name.partition(">=")
    all_ratings = (
        datasets.demo(True) if base == "demo" else datasets.load_source(str(folder() / FILES[base]), times=True)
    )
    return all_ratings.with_entries(all_ratings.matrix.data >= float(least)) if least else all_ratings


class Split(NamedTuple):
    """Events to train on and held out, and of the first, how many later ones the user has, if times are known."""

    train: sparse.csr_array
    test: sparse.csr_array
    later: Array | None = None


def split_of(name: str, split: str, seed: int) -> Split:
    ratings = ratings_of(name)
    rest, held_out = splits.at_random(ratings, 0.2, seed) if split == "random" else splits.last(ratings, 1)
    return Split(ones(rest), ones(held_out), later_of(rest.time_table()))


def ones(ratings: Ratings) -> sparse.csr_array:
    matrix = ratings.matrix
    return sparse.csr_array((np.ones(matrix.nnz, np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def metrics(top: Array, held_out: sparse.csr_array) -> dict[int, Ranking]:
    everyone = Popularity(np.ones(held_out.shape[1]), held_out.shape[0])  # novelty is not looked at
    return means_of(sums_of(top, (held_out.indptr, held_out.indices), everyone))


def measured(factors: Factors, pair: Pair) -> dict[int, Ranking]:
    return metrics(model_top(factors, pair[0], 20), pair[1])


def ials(algorithm: IALS, train: sparse.csr_array, rank: int, sweeps: int, seed: int) -> Factors:
    _, V = next(islice(sweeps_of(algorithm, train, first_items(train.shape[1], rank, seed)), sweeps - 1, None))
    return fitted(algorithm, train, V), V


def with_recency(algorithm: IALS, factors: Factors, split: Split) -> Factors:
    """The factors with users for predictions, whose recent events count more."""
    if split.later is None:
        return factors
    return fitted(algorithm, recent(split.train, split.later), factors[1]), factors[1]


Look = Callable[[float, Factors], None]  # (seconds of the sweep, U and V)


def implicit_sweeps(
    peer: Peer,
    train: sparse.csr_array,
    look: Look | None = None,
    V: Array | None = None,
    cg: bool = True,
    seed: int = 0,
) -> Factors:
    """implicit's ALS with as many threads as fedmc, and BLAS with one, as it recommends; `look` sees each sweep."""
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            peer.rank, peer.regularization, peer.alpha, iterations=peer.sweeps, random_state=seed, use_cg=cg,
            num_threads=threads.available(),
        )  # fmt: skip
        model.item_factors = V

        def seen(sweep: int, seconds: float, loss: float | None) -> None:
            if look is not None:
                look(seconds, (model.user_factors, model.item_factors))

        model.fit(sparse.csr_matrix(train), show_progress=False, callback=seen)
    return model.user_factors, model.item_factors


def timed(sweeps: Iterator[Factors], count: int, look: Look) -> None:
    with threadpool_limits(1, "blas"):
        for _ in range(count):
            began = time.perf_counter()
            factors = next(sweeps)
            look(time.perf_counter() - began, factors)


def verdict(label: str, value: float, target: float, most: bool = False) -> None:
    good = value <= target if most else value >= target
    words = "at most" if most else "at least"
    print(f"{label:66} {value:8.4f}  {words} {target:g}: {'yes' if good else 'NO'}", flush=True)
