"""The engine on Ray beside the local one: time, memory, and many small clients.

    python benchmarks/workers.py [overhead] [clients]

Memory is the largest sum of PSS (shared pages counted once) over all processes of a run, sampled while it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
from speed_common import settings_of

from fedmc.data import synthetic
from fedmc.data.partition import Shard, make_shards
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.kernels import threads
from fedmc.training.engines import Local, OnRay
from fedmc.training.rounds import rounds

EVERY = 0.5  # seconds between samples of memory
FOREVER = 10**6
ENGINES = {"local": Local(), "ray": OnRay(workers=2)}


def apart(*arguments: object) -> dict:
    """Run a job in a process of its own: its result, and the peak memory of all its processes."""
    command = [sys.executable, __file__, "--job", *map(str, arguments)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(EVERY)
        said = process.stdout.read() if process.stdout else ""
    if process.returncode:
        sys.exit(said)
    return json.loads(said.splitlines()[-1]) | {"peak": peak}


def memory_of(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def timed(shards: list[Shard], engine: str, number: int, active: int, preset: str) -> dict:
    """Seconds of the rounds after the first two, of updates alone."""
    settings = settings_of(preset, 10, active=active)
    with threads.limited(2), ENGINES[engine].open(shards, None, {}) as opened:
        seconds = [round.seconds for round in islice(rounds(opened, settings, measure_every=FOREVER), number + 3)][3:]
    ratings = sum(shard.by_user.nnz for shard in shards) * active / len(shards)
    return {"round": float(np.median(seconds)), "ratings": ratings}


def job_run(path: str, engine: str, number: str, active: str, preset: str) -> dict:
    return timed(open_prepared(path).shards, engine, int(number), int(active), preset)


def job_clients(clients: str, engine: str) -> dict:
    ratings = million_users()
    p = int(clients)
    shards = make_shards(ratings, np.arange(len(ratings.users)) % p, "float64")
    return timed(shards, engine, 20, max(1, p // 1000), "fast")


def job_empty() -> dict:
    with ENGINES["ray"].open([tiny(), tiny().renumbered(1)], None, {}):
        time.sleep(5)
    return {}


def tiny() -> Shard:
    return make_shards(Ratings.from_arrays([0, 0, 1], [0, 1, 0], [1.0, 2.0, 3.0]), np.zeros(2, int), "float64")[0]


def million_users() -> Ratings:
    """A million users, who rate 10 items each on average."""
    return synthetic.make_ratings(synthetic.Recipe(1_000_000, 10_000, 10_000_000))


@contextmanager
def prepared(clients: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shards"
        synthetic.write_shards(synthetic.like("ml-10m"), path, clients)
        yield path


def section_overhead() -> None:
    empty = apart("empty")["peak"]
    print(f"a Ray cluster of this machine with 2 workers of one user each: {empty / 1e9:.2f} GB")
    with prepared(100) as path:
        for preset, active in (("fast", 100), ("fast", 10), ("bayes", 10)):
            local, there = (apart("run", path, engine, 10, active, preset) for engine in ENGINES)
            print(
                f"MovieLens 10M size, 100 clients, {active} a round, {preset}, rank 10, 2 workers on 2 cores: "
                f"{there['round']:.2f} s a round, local {local['round']:.2f} s with 2 threads: "
                f"{there['round'] / local['round']:.2f} times (at most 1.5); memory beyond that cluster "
                f"{(there['peak'] - empty) / 1e9:.2f} GB, local {local['peak'] / 1e9:.2f} GB: "
                f"{(there['peak'] - empty) / local['peak']:.2f} times (at most 1.5)",
                flush=True,
            )


def section_clients() -> None:
    few, many = (apart("clients", clients, "ray") for clients in (100, 100_000))
    each = [1e9 * found["round"] / found["ratings"] for found in (few, many)]
    print(
        f"a million users, fast, rank 10, 2 workers: {each[1]:.0f} ns a rating with 100,000 clients of 10 users, 0.1 % a "
        f"round; {each[0]:.0f} with 100 clients, one a round: {each[1] / each[0]:.2f} times (at most 3); "
        f"peak {many['peak'] / 1e9:.2f} GB"
    )


JOBS = {"run": job_run, "clients": job_clients, "empty": job_empty}
SECTIONS = {"overhead": section_overhead, "clients": section_clients}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(JOBS[sys.argv[2]](*sys.argv[3:])))
    else:
        for name in sys.argv[1:] or SECTIONS:
            print(f"--- {name}", flush=True)
            SECTIONS[name]()
