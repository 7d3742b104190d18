"""The pooled libraries that fedmc is compared with: myFM, cmfrec and Surprise, on the splits of `accuracy.py`.

    python benchmarks/peers.py [DATASET ...]      "MovieLens 100K" demo InstEval planted "MovieLens 1M"

Every library is fitted on 80 % of the pooled ratings; its RMSE is that on the other 20 %, with predictions clipped to
the range of the training ratings. Seconds are those of fitting alone, without the evaluation: set OMP_NUM_THREADS=1;
cmfrec uses two threads, the others one; TQDM_DISABLE=1 silences myFM. MovieLens is read from FEDMC_DATA (a folder that
holds ml-1m and ml-100k).

Those that are told more than the ratings' values are in `peers_side.py`.

FEDMC_BENCH_CACHE may name a JSON file that keeps what was measured: a run that was interrupted goes on where it ended.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedmc.data import datasets, synthetic
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random

SEEDS = (1, 2, 3)
SAMPLES, BURN_IN = 200, 5  # myFM drops its first five samples by default
PLANTED = synthetic.Recipe(3000, 800, 150_000, rank=5, noise=0.8, seed=1)
# The documentation of cmfrec suggests 35, or 0.05 times a row's count, for MovieLens 10M, and 0.1 times the count for
# MovieLens 100K. With these four, each data set gets the best of eight or nine weights tried on the split of seed 9.
CMFREC_PENALTIES = ((10.0, False), (14.0, False), (20.0, False), (0.12, True))  # lambda_, times a row's count?
CMFREC_RANKS = (10, 30)


@dataclass(frozen=True)
class Result:
    """What one peer reached on one split: its test RMSE, and the seconds of its fit."""

    rmse: float
    seconds: float  # on the clock, which other processes on the machine lengthen
    cpu_seconds: float  # of all threads
    setting: str = ""
    trace: list[tuple[float, float, float]] = field(default_factory=list)  # (seconds, CPU seconds, RMSE) per sample

    def seconds_until(self, rmse: float, cpu: bool = False) -> float | None:
        """When the trace first gets down to this RMSE; None if it never does."""
        return next((line[1 if cpu else 0] for line in self.trace if line[2] <= rmse), None)


Peer = Callable[[Ratings, Ratings, int], Result]  # (train, test, seed) -> what it reached
Find = Callable[[str, int], dict[str, Result]]  # (data set, seed) -> what each peer reached


class Watch:
    """Seconds on the clock and of the CPU, without those while it is paused."""

    def __init__(self) -> None:
        self.passed = np.zeros(2)
        self.resume()

    def resume(self) -> None:
        self.since = np.array([time.perf_counter(), time.process_time()])

    def pause(self) -> tuple[float, float]:
        """Stop counting, and the two numbers so far."""
        self.passed += np.array([time.perf_counter(), time.process_time()]) - self.since
        return float(self.passed[0]), float(self.passed[1])


def movielens(file: str) -> Ratings:
    path = Path(os.environ.get("FEDMC_DATA", "")) / file
    if not path.is_file():
        sys.exit(f"no {path}: set FEDMC_DATA to a folder that holds {file}")
    return datasets.load_source(str(path))


def data_sets() -> dict[str, Callable[[], Ratings]]:
    """The data sets by name, the smaller ones first."""
    return {
        "MovieLens 100K": lambda: movielens("ml-100k/u.data"),
        "demo": datasets.demo,
        "InstEval": datasets.insteval,
        "planted": lambda: synthetic.make_ratings(PLANTED),
        "MovieLens 1M": lambda: movielens("ml-1m/ratings.dat"),
    }


@functools.cache
def split(name: str, seed: int) -> tuple[Ratings, Ratings]:
    """The training and the test ratings."""
    return at_random(data_sets()[name](), 0.2, seed)


def rmse_of(predictions: np.ndarray, train: Ratings, test: Ratings) -> float:
    """Test RMSE of predictions, clipped to the range of the training ratings."""
    clipped = np.clip(predictions, train.matrix.data.min(), train.matrix.data.max())
    return float(np.sqrt(np.mean((clipped - test.matrix.data) ** 2)))


def one_hot(ratings: Ratings) -> sparse.csr_matrix:
    """A line for each rating, with a one for its user and a one for its item."""
    columns = np.column_stack([ratings.rows(), ratings.matrix.indices + len(ratings.users)]).ravel()
    shape = len(ratings), len(ratings.users) + len(ratings.items)
    return sparse.csr_matrix((np.ones(columns.size), columns, np.arange(0, columns.size + 1, 2)), shape=shape)


@dataclass(frozen=True)
class Lines:
    """What myFM knows of the ratings to learn from and of those to predict."""

    train: sparse.csr_matrix
    test: sparse.csr_matrix
    groups: list[int]  # how many features each group has: each gets its own prior
    train_blocks: list[Any] = field(default_factory=list)
    test_blocks: list[Any] = field(default_factory=list)


def plain(train: Ratings, test: Ratings) -> Lines:
    """The user and the item of each rating."""
    return Lines(one_hot(train), one_hot(test), [len(train.users), len(train.items)])


def myfm(rank: int, features: Callable[[Ratings, Ratings], Lines] = plain) -> Peer:
    """The mean prediction of the Gibbs samples after the first five: myFM's default, summed up while it samples."""

    def fit(train: Ratings, test: Ratings, seed: int) -> Result:
        from myfm import MyFMRegressor

        lines, values = features(train, test), train.matrix.data.astype(np.float64)
        total, trace = np.zeros(len(test)), []

        def listen(number: int, sample: Any, *_: Any) -> tuple[bool, None]:
            passed = watch.pause()
            if number >= BURN_IN:
                total[:] += sample.predict_score(lines.test, lines.test_blocks)
                trace.append((*passed, rmse_of(total / (number + 1 - BURN_IN), train, test)))
            watch.resume()
            return False, None

        model = MyFMRegressor(rank, random_seed=seed)
        numbers: dict[str, Any] = {"n_iter": SAMPLES, "n_kept_samples": 1, "group_shapes": lines.groups}
        watch = Watch()
        model.fit(lines.train, values, lines.train_blocks, callback=listen, **numbers)
        return Result(trace[-1][2], *watch.pause(), f"{SAMPLES} samples", trace)

    return fit


def cmfrec_predictions(model: Any, train: Ratings, test: Ratings, attributes: bool) -> np.ndarray:
    """Users and items without training ratings are average ones, for cmfrec leaves their factors uninitialised.

    With attributes they have factors, and a bias of 0.
    """
    rows, columns = test.rows(), test.matrix.indices
    if attributes:
        return np.asarray(model.predict(rows, columns))
    known_user = (np.diff(train.matrix.indptr) > 0)[rows]
    known_item = (np.bincount(train.matrix.indices, minlength=len(train.items)) > 0)[columns]
    biases = np.where(known_user, model.user_bias_[rows], 0) + np.where(known_item, model.item_bias_[columns], 0)
    return np.where(known_user & known_item, model.predict(rows, columns), model.glob_mean_ + biases)


def cmfrec(train: Ratings, test: Ratings, seed: int, weights: tuple[float, ...] = (1.0,), **attributes: Any) -> Result:
    """ALS with biases at the setting that does best on the test ratings; the seconds are of that fit.

    `attributes` are cmfrec's U and I; `weights` those of their errors that are tried beside the ranks and penalties.
    """
    from cmfrec import CMF

    table, found = sparse.coo_matrix(train.matrix), []
    for rank, (penalty, scaled), weight in itertools.product(CMFREC_RANKS, CMFREC_PENALTIES, weights):
        model = CMF(
            k=rank,
            lambda_=penalty,
            scale_lam=scaled,
            w_user=weight,
            w_item=weight,
            method="als",
            use_cg=False,
            niter=15,
            nthreads=2,
            random_state=seed,
            precompute_for_predictions=False,
            verbose=False,
        )
        watch = Watch()
        model.fit(table, **attributes)
        passed = watch.pause()
        rmse = rmse_of(cmfrec_predictions(model, train, test, bool(attributes)), train, test)
        setting = f"k={rank}, lambda_={penalty:g}, scale_lam={scaled}"
        found.append(Result(rmse, *passed, f"{setting}, w={weight:g}" if attributes else setting))
    return min(found, key=lambda result: result.rmse)


def surprise(name: str, **settings: Any) -> Peer:
    """SGD of Surprise's SVD or SVDpp."""

    def fit(train: Ratings, test: Ratings, seed: int) -> Result:
        import pandas
        import surprise as library

        values = train.matrix.data.astype(float)
        table = pandas.DataFrame({"user": train.rows(), "item": train.matrix.indices, "rating": values})
        reader = library.Reader(rating_scale=(values.min(), values.max()))
        known = library.Dataset.load_from_df(table, reader).build_full_trainset()
        model = getattr(library, name)(random_state=seed, **settings)
        watch = Watch()
        model.fit(known)
        passed = watch.pause()
        triples = zip(test.rows().tolist(), test.matrix.indices.tolist(), test.matrix.data.tolist(), strict=True)
        predictions = np.array([prediction.est for prediction in model.test(triples)])
        return Result(rmse_of(predictions, train, test), *passed)

    return fit


PEERS: dict[str, Peer] = {
    "cmfrec": cmfrec,
    "myFM rank 10": myfm(10),
    "Surprise SVD": surprise("SVD", n_factors=50),
    "myFM rank 32": myfm(32),
    "Surprise SVD++": surprise("SVDpp", n_factors=20, cache_ratings=True),  # cached: the same model, sooner
}


def cached() -> dict[str, dict[str, Any]]:
    """What was measured before: "data set|seed|peer" -> the fields of its result."""
    path = os.environ.get("FEDMC_BENCH_CACHE")
    return json.loads(Path(path).read_text()) if path and Path(path).is_file() else {}


def keep(key: str, result: Result) -> None:
    """Add a result to the cache; readers see the old file or the new one, never a part."""
    if path := os.environ.get("FEDMC_BENCH_CACHE"):
        beside = Path(f"{path}.{os.getpid()}")
        beside.write_text(json.dumps(cached() | {key: asdict(result)}))
        beside.replace(path)


@functools.cache
def peer_of(name: str, seed: int, peer: str, fit: Peer) -> Result:
    """What a peer reached on a split: from the cache, or measured now."""
    key = f"{name}|{seed}|{peer}"
    if (known := cached().get(key)) is not None:
        return Result(**known)
    result = fit(*split(name, seed), seed)
    keep(key, result)
    timing = f"{result.seconds:8.1f} s  {result.cpu_seconds:8.1f} s of CPU"
    print(f"{key:36} RMSE {result.rmse:.4f}  {timing}  {result.setting}", flush=True)
    return result


def peers_of(name: str, seed: int) -> dict[str, Result]:
    """What each peer reached on a data set's split: from the cache, or measured now."""
    return {peer: peer_of(name, seed, peer, fit) for peer, fit in PEERS.items()}


def show(name: str, find: Find = peers_of) -> None:
    """A line for each peer: the mean test RMSE over the seeds (their range) and the mean seconds."""
    floor = f" (noise floor {PLANTED.noise_floor:.4f})" if name == "planted" else ""
    print(f"== {name}{floor}")
    found = [find(name, seed) for seed in SEEDS]
    for peer in found[0]:
        rmse = np.array([line[peer].rmse for line in found])
        seconds, cpu = (np.mean([getattr(line[peer], unit) for line in found]) for unit in ("seconds", "cpu_seconds"))
        spread = f"{rmse.mean():.4f} ({rmse.min():.4f} to {rmse.max():.4f})"
        print(f"  {peer:21} RMSE {spread}  {seconds:8.1f} s  {cpu:8.1f} s of CPU", flush=True)


def main(find: Find = peers_of) -> None:
    """Measure and show the data sets that the command line names."""
    names = sys.argv[1:] or list(data_sets())
    for name in names:
        if name not in data_sets():
            sys.exit(f"unknown data set {name!r}: choose from {', '.join(data_sets())}")
    for name, seed in itertools.product(names, SEEDS):
        find(name, seed)
    for name in names:
        show(name, find)


if __name__ == "__main__":
    main()
