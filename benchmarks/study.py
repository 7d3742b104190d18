"""Studies over processes: what a second process of one thread saves.

    python benchmarks/study.py [REPEATS] [CLIENTS]

One study of 16 runs on synthetic ratings (4,000 users, 1,500 items, 200,000 ratings) runs with --jobs 1 and with
--jobs 2, which take turns. Times are those of whole commands, from the start of Python to the report. The folders are
compared: all files but the times must be the same. About 4 s of each command are not shared: Python starts, ratings are
read, the report is written. On a machine that is busy otherwise, wall-clock times say little: CPU seconds stand beside.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MARK = 0.6  # of the time of one process
PLAN = """
[study]
seeds = [1, 2, 3, 4]
clients = {clients}
active = 10
rounds = 250

[data.made]
source = "ratings.parquet"

[method.fast]
preset = "fast"
penalty_users = ["l2:5", "l2:10"]

[method.paper]
preset = "paper"
beta = [0.3, 1.0]

[grid]
rank = 10
"""
TIMES = {"times", "times.parquet", "lock"}


def main(repeats: int = 3, clients: int = 40) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.toml").write_text(PLAN.format(clients=clients))
        sizes = ["--users", "4000", "--items", "1500", "--ratings", "200000", "--noise", "0.5"]
        fedmc(folder, "data", "synth", *sizes, "--out", "ratings.parquet")
        short = PLAN.format(clients=clients).replace("rounds = 250", "rounds = 1")
        (folder / "warm.toml").write_text(short)
        fedmc(folder, "study", "warm.toml", "--out", "warm")  # compiles what is not compiled yet
        ratios = []
        for number in range(repeats):
            one, two = (fedmc(folder, "study", "a.toml", "--jobs", str(k), "--out", f"{number}-{k}") for k in (1, 2))
            ratios.append(two.wall / one.wall)
            same = files(folder / f"{number}-1") == files(folder / f"{number}-2")
            print(f"1 process {one}, 2 processes {two}: {ratios[-1]:.3f}; same files: {same}", flush=True)
        print(f"best ratio {min(ratios):.3f}, at most {MARK}: {min(ratios) <= MARK}")


class Seconds(NamedTuple):
    """What a command takes, with all of its processes."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} s ({self.cpu:.1f} of CPU)"


def fedmc(folder: Path, *words: str) -> Seconds:
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "fedmc", *words], cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(time.perf_counter() - began, cpu)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    parts = {path: path.relative_to(folder) for path in found}
    return {str(part): path.read_bytes() for path, part in parts.items() if not TIMES & set(part.parts)}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
