"""Sections of `accuracy.py` on the preset "bayes": against pooled libraries, intervals, ranks, participation.

Fits have the defaults of `FedMC`, which are those of `fedmc train`: rank 20, 10 clients that all take part, 50 rounds.
Predictions are those of the fitted model, within the range of the training ratings. The data sets, splits and pooled
libraries are those of `peers.py`, whose results FEDMC_BENCH_CACHE keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from accuracy_common import SEEDS, gaps, movielens, scale, show, spread
from peers import data_sets, peers_of, rmse_of, split

from fedmc import FedMC, Model
from fedmc.data.ratings import Ratings

LEVELS = (0.5, 0.8, 0.9, 0.95)
RANKS = (5, 10, 20, 40)
DEFAULT_RANK = FedMC().rank
FAST_RANK = 10
SHARE, FEWEST, MOST = 0.1, 1, 9  # of the users: cut down to so few ratings, or left out of training


def fit(train: Ratings, seed: int, rank: int = DEFAULT_RANK, preset: str = "bayes") -> Model:
    return FedMC(rank, preset=preset, seed=seed).fit(train).model_


@functools.cache
def fitted(name: str, seed: int) -> Model:
    """The model with nothing but defaults."""
    return fit(split(name, seed)[0], seed)


def pairs(ratings: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the user and of the item of each rating."""
    return ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]


def rmse(model: Model, name: str, seed: int) -> float:
    train, test = split(name, seed)
    return rmse_of(model.predict(*pairs(test)), train, test)


def spread_of(found: Iterable[float]) -> str:
    """Mean over the seeds (their range)."""
    values = np.array(list(found))
    return f"{values.mean():.4f} ({values.min():.4f} to {values.max():.4f})"


# --- against pooled libraries


def section_bayes() -> None:
    for name in data_sets():
        ours = [rmse(fitted(name, seed), name, seed) for seed in SEEDS]
        fast = [rmse(fit(split(name, seed)[0], seed, FAST_RANK, "fast"), name, seed) for seed in SEEDS]
        known = [peers_of(name, seed) for seed in SEEDS]
        theirs = {peer: [line[peer].rmse for line in known] for peer in known[0]}
        print(f"{name}\n  {'fedmc bayes':16} RMSE {spread_of(ours)}\n  {'fedmc fast':16} RMSE {spread_of(fast)}")
        for peer, errors in theirs.items():
            print(f"  {peer:16} RMSE {spread_of(errors)}")
        judge(float(np.mean(ours)), {peer: float(np.mean(errors)) for peer, errors in theirs.items()})


def judge(ours: float, theirs: dict[str, float]) -> None:
    """How the mean RMSE stands beside those of the libraries."""
    best = min(theirs, key=lambda peer: theirs[peer])
    gap = 100 * (ours / theirs[best] - 1)
    rest = min(error for peer, error in theirs.items() if not peer.startswith("myFM"))
    print(f"  {abs(gap):.2f} % {'above' if gap > 0 else 'below'} the best of them, {best} (at most +0.3)")
    print(f"  below all but myFM: {'yes' if ours < rest else 'NO'} ({100 * (ours / rest - 1):+.2f} %)", flush=True)


# --- intervals


def covered(model: Model, test: Ratings) -> np.ndarray:
    """The share of the ratings inside their intervals at each level, in percent."""
    intervals = [model.interval(*pairs(test), level) for level in LEVELS]
    inside = [(one.low <= test.matrix.data) & (test.matrix.data <= one.high) for one in intervals]
    return 100 * np.array([line.mean() for line in inside])


def chosen_users(count: int, seed: int) -> np.ndarray:
    """A mask of a random tenth of the users."""
    mask = np.zeros(count, bool)
    mask[np.random.default_rng([seed, 2]).permutation(count)[: round(SHARE * count)]] = True
    return mask


def of_users(ratings: Ratings, mask: np.ndarray) -> Ratings:
    """These users alone, with their ratings."""
    return Ratings(ratings.users[mask], ratings.items, ratings.matrix[np.flatnonzero(mask)])


def cut_down(train: Ratings, mask: np.ndarray, seed: int) -> Ratings:
    """Each of these users keeps a random number of its ratings, from 1 to 9."""
    rng, rows = np.random.default_rng([seed, 3]), train.rows()
    room = np.where(mask, rng.integers(FEWEST, MOST, len(mask), endpoint=True), len(train))
    order = np.lexsort((rng.permutation(len(train)), rows))
    place = np.empty(len(train), np.int64)  # of a rating in a random order of its user's
    place[order] = np.arange(len(train)) - train.matrix.indptr[rows[order]]
    return train.with_entries(place < room[rows])


def coverage_of_all(name: str, seed: int) -> np.ndarray:
    return covered(fitted(name, seed), split(name, seed)[1])


def coverage_of_few(name: str, seed: int) -> np.ndarray:
    train, test = split(name, seed)
    mask = chosen_users(len(train.users), seed)
    return covered(fit(cut_down(train, mask, seed), seed), of_users(test, mask))


def coverage_of_newcomers(name: str, seed: int) -> np.ndarray:
    train, test = split(name, seed)
    mask = chosen_users(len(train.users), seed)
    model = fit(of_users(train, ~mask), seed)
    return covered(model.fold_in(of_users(train, mask)), of_users(test, mask))


def show_coverage(label: str, found: np.ndarray, most: float) -> None:
    """Mean coverage at each level, and that of the seed which deviates most."""
    off = found - 100 * np.array(LEVELS)
    worst = np.take_along_axis(found, np.abs(off).argmax(axis=0)[None], axis=0)[0]
    cells = [
        f"{100 * level:.0f}: {mean:5.2f} (worst seed {one:5.2f})"
        for level, mean, one in zip(LEVELS, found.mean(axis=0), worst, strict=True)
    ]
    by = f"off by {np.abs(off.mean(axis=0)).max():.2f} points (at most {most}), worst seed {np.abs(off).max():.2f}"
    print(f"  {label:22} {'  '.join(cells)}   {by}", flush=True)


def section_coverage() -> None:
    kinds = {
        "all test ratings": (coverage_of_all, 1.5),
        "users of 1 to 9": (coverage_of_few, 3),
        "newcomers, folded in": (coverage_of_newcomers, 3),
    }
    for name in data_sets():
        print(name, flush=True)
        for label, (measure, most) in kinds.items():
            show_coverage(label, np.array([measure(name, seed) for seed in SEEDS]), most)


# --- ranks


def rmse_at(name: str, seed: int, rank: int) -> float:
    model = fitted(name, seed) if rank == DEFAULT_RANK else fit(split(name, seed)[0], seed, rank)
    return rmse(model, name, seed)


def section_ranks() -> None:
    for name in data_sets():
        found = np.array([[rmse_at(name, seed, rank) for rank in RANKS] for seed in SEEDS])
        cells = [f"{rank:2}: {spread_of(line)}" for rank, line in zip(RANKS, found.T, strict=True)]
        rise = max_rise(found.mean(axis=0))
        by = f"largest rise {rise:+.2f} % (at most 0.2), in the worst seed {max(map(max_rise, found)):+.2f} %"
        print(f"{name:16} {'  '.join(cells)}   {by}", flush=True)


def max_rise(errors: np.ndarray) -> float:
    """The largest rise in percent from one rank to any larger one."""
    return max(100 * (errors[i + 1 :].max() / errors[i] - 1) for i in range(len(errors) - 1))


# --- who takes part


def section_bayes_participation() -> None:
    """Gaps to pooled variational Bayes: one client with all data, which by then stands still."""
    ratings = movielens("ml-1m")
    for rank in (10, DEFAULT_RANK):
        few = gaps(ratings, rank, spread(10), 10, (10,), "bayes")
        show(f"MovieLens 1M, rank {rank}, all of 10 (at most 0.3)", few, (10,))
        many = gaps(ratings, rank, spread(100), 10, (20, 40, 60, 100), "bayes")
        show(f"rank {rank}, 10 of 100 (60: 0.3, 100: 0.1)", many, (20, 40, 60, 100))


def section_bayes_scale() -> None:
    """Ten updates a client, however they are drawn."""
    scale("bayes")


SECTIONS = {name.removeprefix("section_"): value for name, value in globals().items() if name.startswith("section_")}
