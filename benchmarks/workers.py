"""The engine on Ray beside the local one: time, memory, and many small clients.

    python benchmarks/workers.py [overhead] [clients] [events]
    python benchmarks/workers.py events 10000000 1000000000      # writes 16 GB to the temporary folder

Memory is the largest sum of PSS (shared pages counted once) over all processes of a run, sampled while it runs. Pages
of mapped files, which the system may drop at any time, are part of it.
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
CLIENTS = 100
ENGINES = {"local": Local(), "ray": OnRay(workers=2)}


def apart(*arguments: object) -> dict:
    """Run a job in a process of its own: its result, and the peak memory of all its processes."""
    command = [sys.executable, __file__, "--job", *map(str, arguments)]
    peak = 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(EVERY)
        said = process.stdout.read() if process.stdout else ""
    if process.returncode:
        sys.exit(said)
    return json.loads(said.splitlines()[-1]) | {"peak": peak[0], "peak_of_files": peak[1]}


def memory_of(pid: int) -> tuple[int, int]:
    """Bytes of a process and those that it started, and those of them that belong to mapped files."""
    lines: list[str] = []
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(OSError):
                lines += Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    kinds = ([line for line in lines if line.startswith(name)] for name in ("Pss:", "Pss_File:"))
    whole, files = (sum(int(line.split()[1]) for line in kind) for kind in kinds)
    return 1024 * whole, 1024 * files


def timed(shards: list[Shard], engine: str, number: int, active: int, preset: str) -> dict:
    """Seconds of the rounds after the first two, of updates alone."""
    settings = settings_of(preset, 10, active=active)
    with threads.limited(2), ENGINES[engine].open(shards, None, {}) as opened:
        seconds = [round.seconds for round in islice(rounds(opened, settings, measure_every=FOREVER), number + 3)][3:]
    ratings = sum(shard.by_user.nnz for shard in shards) * active / len(shards)
    return {"round": float(np.median(seconds)), "ratings": ratings}


def job_run(path: str, engine: str, number: str, active: str, preset: str) -> dict:
    return timed(open_prepared(path).shards, engine, int(number), int(active), preset)


def job_clients(users: str, clients: str, active: str) -> dict:
    """Clients of a table whose users rate 10 items each on average."""
    ratings = synthetic.make_ratings(synthetic.Recipe(int(users), 10_000, 10 * int(users)))
    shards = make_shards(ratings, np.arange(len(ratings.users)) % int(clients), "float64")
    return timed(shards, "ray", 20, int(active), "fast")


def job_empty() -> dict:
    with ENGINES["ray"].open([tiny(), tiny().renumbered(1)], None, {}):
        time.sleep(5)
    return {}


def tiny() -> Shard:
    return make_shards(Ratings.from_arrays([0, 0, 1], [0, 1, 0], [1.0, 2.0, 3.0]), np.zeros(2, int), "float64")[0]


@contextmanager
def prepared(clients: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shards"
        synthetic.write_shards(synthetic.like("ml-10m"), path, clients)
        yield path


def section_overhead(*_: str) -> None:
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


def section_clients(*_: str) -> None:
    asked = {"100,000": (1_000_000, 100_000, 100), "100": (1_000, 100, 100), "large": (1_000_000, 100, 1)}
    found = {name: apart("clients", *sizes) for name, sizes in asked.items()}
    each = {name: 1e9 * one["round"] / one["ratings"] for name, one in found.items()}
    print(
        f"100,000 clients of 10 users, 0.1 % a round, fast, rank 10, 2 workers: {each['100,000']:.0f} ns a rating, "
        f"peak {found['100,000']['peak'] / 1e9:.2f} GB (at most 8); 100 clients of 10 users, all in each round: "
        f"{each['100']:.0f} ns, {each['100,000'] / each['100']:.2f} times (at most 3). A round takes "
        f"{1e3 * found['100,000']['round']:.0f} ms, with one of 100 clients of 10,000 users, so ten times as many "
        f"ratings, {1e3 * found['large']['round']:.0f} ms ({each['large']:.0f} ns a rating)"
    )


def section_events(*sizes: str) -> None:
    """Whole passes over so many events; the growth of their time."""
    seen = []
    for events in map(int, sizes or ("10000000", "100000000")):
        with tempfile.TemporaryDirectory() as folder:
            path, began = Path(folder) / "shards", time.perf_counter()
            synthetic.write_shards(synthetic.Recipe(events // 100, 20_000, events), path, CLIENTS)
            written = time.perf_counter() - began
            found = apart("events", path)
        seen.append((events, found["pass"]))
        print(
            f"{events:,} events of {CLIENTS} clients, fast, rank 10, float32, 2 workers: a pass {found['pass']:.1f} s, "
            f"reading the files once before {found['read']:.1f} s; peak {found['peak'] / 1e9:.2f} GB, of which mapped "
            f"files {found['peak_of_files'] / 1e9:.2f} GB; written in {written:.0f} s",
            flush=True,
        )
    (few, short), *_, (many, long) = seen
    print(
        f"slope of seconds over events, in logarithms: {np.log(long / short) / np.log(many / few):.2f} (at most 1.05)"
    )


def job_events(path: str) -> dict:
    began, buffer = time.perf_counter(), bytearray(1 << 24)
    for place in Path(path).glob("*.shard"):
        with open(place, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    read, shards = time.perf_counter() - began, open_prepared(path).shards
    settings = settings_of("fast", 10, active=CLIENTS, dtype="float32")
    with threads.limited(2), ENGINES["ray"].open(shards, None, {}) as opened:
        seconds = [round.seconds for round in islice(rounds(opened, settings, measure_every=FOREVER), 3)]
    return {"pass": seconds[-1], "read": read}


JOBS = {"events": job_events, "run": job_run, "clients": job_clients, "empty": job_empty}
SECTIONS = {"overhead": section_overhead, "clients": section_clients, "events": section_events}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(JOBS[sys.argv[2]](*sys.argv[3:])))
    else:
        sizes = [word for word in sys.argv[1:] if word.isdigit()]
        for name in [word for word in sys.argv[1:] if not word.isdigit()] or SECTIONS:
            print(f"--- {name}", flush=True)
            SECTIONS[name](*sizes)
