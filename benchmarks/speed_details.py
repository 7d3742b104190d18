"""Sections of `speed.py` on growth, precision, bytes, the machine's ceiling, diagnostics and start-up."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from speed_common import CLIENTS, FOREVER, movielens, seconds_of_rounds, settings_of

from fedmc.data import synthetic
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.prepared import open_prepared
from fedmc.data.splits import at_random
from fedmc.kernels import solves
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import measure_interval, warm_up


def section_growth() -> None:
    def slope(name: str, sizes: list[float], seconds: list[float]) -> None:
        found = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        cells = ", ".join(f"{size:g}: {1e3 * t:.2f} ms" for size, t in zip(sizes, seconds, strict=True))
        print(f"time a round against {name}: slope {found:.2f}   ({cells})", flush=True)

    def median(shards, preset: str, rank: int, **given) -> float:
        return float(np.median(seconds_of_rounds(shards, settings_of(preset, rank, **given), 15)))

    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        sizes, sets = [], []
        for share in (1, 4, 16):  # the same items, ever more users
            whole = synthetic.like("ml-10m")
            recipe = replace(whole, users=whole.users * share // 16, ratings=whole.ratings * share // 16)
            path = Path(folder) / str(share)
            synthetic.write_shards(recipe, path, CLIENTS)
            sets.append(open_prepared(path).shards)
            sizes.append(sum(shard.by_user.nnz for shard in sets[-1]) / 1e6)
        for preset in ("paper", "fast"):
            slope(f"millions of ratings, {preset} (at most 1.05)", sizes, [median(s, preset, 13) for s in sets])
    ratings = movielens()
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    for preset in ("paper", "fast"):
        slope(f"rank, {preset}", [2, 5, 10, 20, 50, 100], [median(shards, preset, r) for r in (2, 5, 10, 20, 50, 100)])
    slope("N, paper", [5, 10, 30, 100], [median(shards, "paper", 5, inner_steps=N) for N in (5, 10, 30, 100)])
    for preset in ("paper", "fast"):
        counts = [10, 100, 1000]
        made = [make_shards(ratings, assign_users(len(ratings.users), c, 0), "float64") for c in counts]
        slope(
            f"clients, a tenth of them a round, {preset}", counts,
            [median(s, preset, 5, active=c // 10) for s, c in zip(made, counts, strict=True)],
        )  # fmt: skip


def section_precision() -> None:
    ratings = movielens()
    owner = assign_users(len(ratings.users), CLIENTS, 0)
    for preset, rank in (("paper", 5), ("fast", 5), ("fast", 10)):
        ends = {}
        for dtype in ("float64", "float32"):
            run = rounds(
                LocalEngine(make_shards(ratings, owner, dtype)), settings_of(preset, rank, dtype=dtype),
                measure_every=100,
            )  # fmt: skip
            ends[dtype] = list(itertools.islice(run, 101))[-1].diagnostics.objective
        difference = abs(ends["float32"] / ends["float64"] - 1)
        print(f"{preset}, rank {rank}, 100 rounds: float32 ends {difference:.1e} from float64 (at most 1e-3)")


def section_bytes() -> None:
    ratings = movielens()
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    for preset, update, rank in (("paper", None, 5), ("fast", "exact", 10), ("fast", None, 10)):
        settings = settings_of(preset, rank, update=update)
        last = list(itertools.islice(rounds(LocalEngine(shards), settings, measure_every=FOREVER), 25))[-1]
        rated = sum(len(shards[k].rated) for k in last.participants)
        one_each = rated * settings.width * 8
        print(
            f"{preset}, algorithm {settings.algorithm}, rank {rank}: {last.bytes_up / 1e6:.2f} MB up and "
            f"{last.bytes_down / 1e6:.2f} MB down a round; one number for each factor of each rated item would be "
            f"{one_each / 1e6:.2f} MB: {last.bytes_up / one_each:.1f} times that up"
        )


def section_ceiling() -> None:
    """Multiply-adds a second in the Gram, which takes most of the time, compared with the machine's peak."""
    rng = np.random.default_rng(0)
    A = rng.random((600, 600))
    A @ A
    began = time.perf_counter()
    for _ in range(5):
        A @ A
    blas = 5 * 600**3 / (time.perf_counter() - began)
    data = rng.random(40_000_000)
    data.sum()
    began = time.perf_counter()
    data.sum()
    band = data.nbytes / (time.perf_counter() - began)
    print(
        f"this machine: {blas / 1e9:.1f} G multiply-adds/s (BLAS, all its threads), {band / 1e9:.1f} GB/s (one thread)"
    )
    users, count = 20_000, 150
    indptr = (np.arange(users + 1) * count).astype(np.int32)
    indices = rng.integers(0, 10_000, users * count).astype(np.int32)
    ratings = rng.random(users * count)
    for width in (5, 10, 13, 25, 50, 100, 200):
        F = rng.random((10_000, width))
        few = max(1, min(users, 40_000_000 // (count * width * width // 2)))
        part = slice(0, few * count)
        arguments = indptr[: few + 1], indices[part], ratings[part], 0.0, 1.0, F, np.zeros(width), np.arange(width)
        solves.packed_grams(*arguments)
        began = time.perf_counter()
        solves.packed_grams(*arguments)
        spent = time.perf_counter() - began
        work = few * count * width * (width + 3) / 2
        read = few * count * (width * 8 + 12)
        print(
            f"Grams at rank {width:3}: {work / spent / 1e9:5.1f} G multiply-adds/s, {100 * work / spent / blas:3.0f} % "
            f"of BLAS; {read / spent / 1e9:.1f} GB/s gathered",
            flush=True,
        )


def section_diagnostics() -> None:
    ratings = movielens()
    train, test = at_random(ratings, 0.2, 0)
    for clients, active, number in ((100, 10, 100), (10, 10, 50)):
        shards = make_shards(train, assign_users(len(ratings.users), clients, 0), "float64", test)
        for preset, rank in (("paper", 5), ("fast", 10)):
            settings = settings_of(preset, rank, active=active)
            warm_up(settings, "float64")
            every = measure_interval(settings, clients, number)
            began = time.perf_counter()
            run = rounds(LocalEngine(shards), settings, measure_every=every, last=number)
            updates = sum(round.seconds for round in itertools.islice(run, number + 1))
            whole = time.perf_counter() - began
            print(
                f"{preset}, {active} of {clients} clients, {number} rounds, measured every {every}: diagnostics take "
                f"{100 * (1 - updates / whole):.0f} % of {whole:.2f} s (at most 15)"
            )


def section_startup() -> None:
    fedmc = [sys.executable, "-c", "from fedmc.cli import main; main()"]
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([*fedmc, "--help"], check=True, capture_output=True)
        spent.append(time.perf_counter() - began)
    print(f"fedmc --help: {np.median(spent):.2f} s (at most 0.3)")
    code = "from fedmc.training.simulation import warm_up; from fedmc.algorithms.settings import Settings; "
    code += "warm_up(Settings.preset('fast', rank=10), 'float64')"
    for label in ("a first process (it may have to compile)", "a second one"):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        print(f"{label}: ready for its first round after {time.perf_counter() - began:.2f} s (the second: at most 2)")


SECTIONS = {
    "growth": section_growth,
    "precision": section_precision,
    "bytes": section_bytes,
    "ceiling": section_ceiling,
    "diagnostics": section_diagnostics,
    "startup": section_startup,
}
