"""Scoring all users at once: `fedmc recommend --all`, its time beside one call for each user, and its memory.

    FEDMC_DATA=FOLDER python benchmarks/scoring.py      FOLDER holds ml-1m

MovieLens 1M with the Bayesian model, and a model with factors drawn at random that has more users and items. Each case
runs in a process of its own; memory is the peak of that process above what it has with the model loaded (Linux).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from fedmc import FedMC, Model, load
from fedmc.cli.filters import Chosen
from fedmc.cli.recommend import Wish, _write
from fedmc.data.datasets import demo, load_source

N, SOME = 10, 300
DRAWN = 200_000, 20_000, 32, 20  # users, items, rank, items that each user has rated
ENDINGS = "parquet", "feather", "csv", "jsonl"


def movielens(folder: Path) -> Model:
    return FedMC(10, clients=10, rounds=15).fit(load_source(str(folder / "ml-1m" / "ratings.dat"))).model_


def drawn() -> Model:
    """A model of point estimates with random factors."""
    users, items, rank, rated = DRAWN
    rng = np.random.default_rng(0)
    small = FedMC(rank, preset="fast", biases=False, clients=2, rounds=1).fit(demo()).model_
    seen = np.sort(rng.integers(0, items, (users, rated), dtype=np.int32), axis=1)
    indptr = np.arange(0, users * rated + 1, rated, dtype=np.int32)
    pattern = sparse.csr_array((np.ones(seen.size, np.int8), seen.ravel(), indptr), shape=(users, items))
    U, V = rng.normal(size=(users, small.U.shape[1])), rng.normal(size=(items, small.V.shape[1]))
    return replace(small, items=np.arange(items), V=V, users=np.arange(users), U=U, seen=pattern)


def memory(which: str) -> float:
    """MB in memory now (VmRSS), or at the most since `forget_peak` (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure(path: Path, ending: str, out: Path) -> None:
    model = load(path)
    wish = Wish(N, Chosen())
    wish.ask(model, model.users[:10])  # compiled loops are loaded
    forget_peak()
    before, began = memory("VmRSS"), time.perf_counter()
    _write(model, model.users, wish, out / f"all.{ending}")
    all_at_once, more = time.perf_counter() - began, memory("VmHWM") - before
    began = time.perf_counter()
    for user in model.users[:SOME]:
        wish.ask(model, np.array([user]))
    each = (time.perf_counter() - began) / SOME
    size = (out / f"all.{ending}").stat().st_size / 1e6
    users = len(model.users)
    print(
        f"{users:8,} users x {len(model.items):6,} items  {ending:8}{all_at_once:7.2f} s  {more:6.0f} MB more"
        f"  file {size:6.1f} MB  one by one: {each * users / all_at_once:5.1f} times as long",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, make in {"ml-1m": lambda: movielens(Path(os.environ["FEDMC_DATA"])), "drawn": drawn}.items():
            path = Path(folder) / f"{name}.npz"
            make().save(path)
            for ending in ENDINGS:
                subprocess.run([sys.executable, __file__, str(path), ending, folder], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        measure(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
