"""Reading, making and opening data at full size: rates, seconds and memory, each in a process of its own.

    python benchmarks/data.py [csv | netflix | synth | open]...

Files are made in a temporary folder (about 7 GB for all four) and removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

READ = """
import json, sys, time
from fedmc.data.loading import read_source
warm, path = sys.argv[1:]
read_source(warm)
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
high = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
base = high()
began = time.perf_counter()
ratings = read_source(path)
seconds = time.perf_counter() - began
peak = high()
matrix = ratings.matrix
finished = sum(a.nbytes for a in (matrix.data, matrix.indices, matrix.indptr, ratings.users, ratings.items))
print(json.dumps(dict(rows=len(ratings), seconds=seconds, base=base * 1024, peak=peak * 1024, finished=finished)))
"""
SYNTH = """
import json, resource, sys, time
from pathlib import Path
from fedmc.data import synthetic
began = time.perf_counter()
synthetic.write_shards(synthetic.like("netflix"), Path(sys.argv[1]), 100)
seconds = time.perf_counter() - began
print(json.dumps(dict(seconds=seconds, peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
"""
OPEN = """
import json, sys, time
from fedmc.data.prepared import open_prepared
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
before, began = resident(), time.perf_counter()
opened = open_prepared(sys.argv[1])
seconds = time.perf_counter() - began
print(json.dumps(dict(seconds=seconds, added=resident() - before, clients=len(opened.shards))))
"""


def measure(code: str, *arguments: object) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def unique_pairs(count: int, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Different (user, item) pairs in random order."""
    rng = np.random.default_rng(0)
    per_user = count // users
    user = np.repeat(np.arange(users, dtype=np.int32), per_user)
    item = (rng.integers(items, size=users).repeat(per_user) + np.tile(np.arange(per_user), users) * 7) % items
    order = rng.permutation(len(user))
    return user[order] + 1, item[order].astype(np.int32) + 1


def csv(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv

    user, item = unique_pairs(20_000_000, 125_000, 26_744)
    rating = np.random.default_rng(1).integers(1, 11, len(user)) / 2
    stamp = np.random.default_rng(2).integers(800_000_000, 1_400_000_000, len(user))
    names = {"integer": (user, item)}
    texts = [pa.array([f"{kind}-{n}" for n in range(140_000)]) for kind in ("user", "item")]
    names["string"] = tuple(text.take(pa.array(ids)) for text, ids in zip(texts, (user, item), strict=True))
    small = folder / "small.csv"
    small.write_text("user,item,rating\na,b,3\nc,d,4\n")
    for kind, (users, items) in names.items():
        path = folder / f"{kind}.csv"
        pyarrow.csv.write_csv(pa.table({"user": users, "item": items, "rating": rating, "timestamp": stamp}), path)
        seen = measure(READ, small, path)
        used = (seen["peak"] - seen["base"]) / seen["finished"]
        print(
            f"CSV, {seen['rows'] / 1e6:.1f}M rows, {kind} ids: {seen['rows'] / seen['seconds'] / 1e6:.2f}M rows/s, "
            f"peak {used:.2f} times the finished arrays ({seen['finished'] / 1e6:.0f} MB)"
        )
        path.unlink()


def netflix(folder: Path) -> None:
    """100.5M lines as in combined_data_*.txt, in four files."""
    place = folder / "netflix"
    place.mkdir()
    rng = np.random.default_rng(0)
    users_pool, movies, total = 480_189, 17_770, 100_480_507
    weights = np.exp(1.6 * rng.normal(size=movies))
    counts = np.minimum(np.maximum((weights / weights.sum() * total).astype(int), 1), users_pool)
    counts[np.argsort(counts)[: (total - counts.sum()) // 1000 + 1]] += 1000
    counts[np.argsort(-counts)[-1]] -= counts.sum() - total
    dates = [f"{y}-{m:02}-{d:02}" for y in range(1999, 2006) for m in range(1, 13) for d in range(1, 29)]
    tails = np.array([f",{r},{date}\n" for r in range(1, 6) for date in dates])
    for part, chunk in enumerate(np.array_split(np.arange(movies), 4), 1):
        with open(place / f"combined_data_{part}.txt", "w") as file:
            for movie in chunk:
                start = int(rng.integers(users_pool))
                users = (start + np.arange(counts[movie])) % users_pool * 5 + 6
                lines = np.char.add(users.astype(str), tails[rng.integers(len(tails), size=len(users))])
                file.write(f"{movie + 1}:\n" + "".join(lines.tolist()))
    small = folder / "small.txt"
    small.write_text("1:\n6,3,2005-01-01\n")
    seen = measure(READ, small, place)
    print(
        f"Netflix layout, {seen['rows'] / 1e6:.1f}M ratings: {seen['seconds']:.1f} s, peak {seen['peak'] / 1e9:.2f} GB"
    )


def synth(folder: Path) -> None:
    seen = measure(SYNTH, folder / "synth")
    print(f"synth --like netflix: {seen['seconds']:.1f} s, peak {seen['peak'] / 1e9:.2f} GB")


def opening(folder: Path) -> None:
    if not (folder / "synth").exists():
        synth(folder)
    seen = measure(OPEN, folder / "synth")
    print(
        f"opening {seen['clients']} prepared shards of Netflix size: {1e3 * seen['seconds']:.0f} ms, "
        f"{seen['added'] / 1e6:.1f} MB more resident"
    )


PARTS = {"csv": csv, "netflix": netflix, "synth": synth, "open": opening}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        for name in sys.argv[1:] or PARTS:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
