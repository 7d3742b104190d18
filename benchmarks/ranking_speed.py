"""Seconds for the 20 best items of all users of Gowalla, unseen ones only: fedmc beside `implicit`, in one run.

    FEDMC_DATA=FOLDER python benchmarks/ranking_speed.py      FOLDER holds gowalla/train.csv

Both rank the same factors with the same number of threads (FEDMC_THREADS, or one for each core), and BLAS with one, as
implicit recommends. They take turns, and the smallest of their times counts: those of a machine that others use vary.
"Random" factors have items of about equal norms, so that fedmc can leave out none: its worst case.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedmc.kernels import threads
from fedmc.kernels.ranking import top_items
from fedmc.types import Array

RANK, K, SWEEPS, TURNS = 64, 20, 6, 5
Top = Callable[[], tuple[Array, Array]]


def gowalla() -> sparse.csr_matrix:
    path = Path(os.environ.get("FEDMC_DATA", "")) / "gowalla" / "train.csv"
    if not path.is_file():
        sys.exit("set FEDMC_DATA to a folder that holds gowalla/train.csv")
    pairs = np.loadtxt(path, np.int32, delimiter=",", skiprows=1)
    return sparse.csr_matrix((np.ones(len(pairs), np.float32), pairs.T))


def timed(top: Top) -> tuple[float, float, tuple[Array, Array]]:
    """Seconds on the clock, CPU seconds of all threads, and the result."""
    began, cpu = time.perf_counter(), time.process_time()
    found = top()
    return time.perf_counter() - began, time.process_time() - cpu, found


def compare(name: str, model: AlternatingLeastSquares, seen: sparse.csr_matrix) -> None:
    everyone = np.arange(seen.shape[0])
    factors = model.user_factors, model.item_factors
    peers: dict[str, Top] = {
        "fedmc": lambda: top_items(*factors, seen.indptr, seen.indices, K),
        "implicit": lambda: model.recommend(everyone, seen, N=K, filter_already_liked_items=True),
    }
    runs = {peer: [timed(top)] for peer, top in peers.items()}  # the first compiles
    for _ in range(TURNS):
        for peer, top in peers.items():
            runs[peer].append(timed(top))
    best = {peer: min(run[0] for run in found[1:]) for peer, found in runs.items()}
    busy = {peer: min(run[1] for run in found[1:]) for peer, found in runs.items()}
    (ours, _), (theirs, _) = (runs[peer][-1][2] for peer in peers)
    print(
        f"{name:<16}{best['fedmc']:>9.3f}{best['implicit']:>10.3f}{best['fedmc'] / best['implicit']:>8.2f}"
        f"{busy['fedmc']:>12.2f}{busy['implicit']:>10.2f}{np.mean(ours == theirs):>13.5f}"
    )


def main() -> None:
    seen = gowalla()
    print(f"{seen.shape[0]} users, {seen.shape[1]} items, rank {RANK}, top {K}, {threads.available()} threads")
    titles = ("fedmc s", 9), ("implicit", 10), ("ratio", 8), ("fedmc CPU s", 12), ("implicit", 10), ("same places", 13)
    print(f"{'factors':<16}" + "".join(f"{title:>{width}}" for title, width in titles))
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            RANK, iterations=SWEEPS, num_threads=threads.available(), random_state=1, dtype=np.float32
        )
        model.fit(seen, show_progress=False)
        compare("ALS, fitted", model, seen)
        rng = np.random.default_rng(1)
        for side in ("user_factors", "item_factors"):
            setattr(model, side, rng.normal(size=getattr(model, side).shape).astype(np.float32))
        compare("random", model, seen)


if __name__ == "__main__":
    main()
