"""How fast, and in how much memory: ratios taken in one run on one machine.

    python benchmarks/speed.py [SECTION ...]
        plain peers netflix threads growth clients precision bytes ceiling diagnostics startup

Every section runs by itself. MovieLens 1M is read from FEDMC_DATA (a folder that holds ml-1m) where it is set, else
ratings of its size and skew are made up. `peers` needs the extra `bench`; `netflix`, `threads` and `clients` make up
sets of Netflix's and MovieLens 10M's size in a temporary folder (2 GB) and run in processes of their own, so that their
peak memory is theirs.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from plain import PlainClient
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data import synthetic
from fedmc.data.loading import read_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.evaluation.pooled import pooled_rmse
from fedmc.kernels import threads
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import rhythm, warm_up

FOREVER = 10**9
CLIENTS, ACTIVE, BETA, WEIGHT = 100, 10, 0.3, 1e-6


@cache
def movielens() -> Ratings:
    path = Path(os.environ.get("FEDMC_DATA", "")) / "ml-1m" / "ratings.dat"
    return read_source(str(path)) if path.is_file() else synthetic.make_ratings(synthetic.like("ml-1m"))


def settings_of(preset: str, rank: int, **given) -> Settings:
    more = {"beta": BETA} if preset == "paper" else {}
    return Settings.preset(preset, rank=rank, **({"active": ACTIVE} | more | given))


def seconds_of_rounds(shards, settings: Settings, number: int, skip: int = 2) -> list[float]:
    """Of updates, without the first rounds: what is allocated once is not the round's."""
    warm_up(settings, shards[0].by_user.data.dtype)
    run = rounds(LocalEngine(shards), settings, measure_every=FOREVER)
    return [round.seconds for round in itertools.islice(run, 1 + skip + number)][1 + skip :]


# --- against the method as one would write it first


def section_plain() -> None:
    ratings = movielens()
    print(f"{ratings}, {CLIENTS} clients, {ACTIVE} a round, paper preset, medians a round")
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    spent = {}
    for rank, N, target in ((5, 10, 20), (5, 30, None), (13, 10, 10), (50, 10, 5)):
        spent[rank, N] = against_plain(shards, rank, N, target)
    print(f"N = 30 costs {spent[5, 30] / spent[5, 10]:.2f} times N = 10 (at most 2)")


def against_plain(shards, rank: int, N: int, target: int | None, number: int = 120, theirs: int = 12) -> float:
    settings = settings_of("paper", rank, inner_steps=N)
    warm_up(settings, "float64")
    engine = LocalEngine(shards)
    run = rounds(engine, settings, measure_every=FOREVER)
    V = next(run).V
    plain = [PlainClient(s.by_user, state.U, V, CLIENTS) for s, state in zip(shards, engine.states, strict=True)]
    history, slow, S = [], [], sum(BETA * c.W + c.Y for c in plain)
    for turn in range(theirs):  # in turns, so that both see the machine fast and slow
        history += itertools.islice(run, number // theirs)
        began = time.perf_counter()
        for i in history[turn].participants:
            before = BETA * plain[i].W + plain[i].Y
            plain[i].update(V, BETA, N, WEIGHT)
            S = S + BETA * plain[i].W + plain[i].Y - before
        V = S / (CLIENTS * BETA + WEIGHT)
        slow.append(time.perf_counter() - began)
    apart = np.linalg.norm(V - history[theirs - 1].V) / np.linalg.norm(V)
    ours, others = float(np.median([round.seconds for round in history])), float(np.median(slow))
    wanted = "" if target is None else f" (at least {target})"
    print(
        f"rank {rank:3}, N {N:3}: {1e3 * ours:7.2f} ms, plain {1e3 * others:7.1f} ms: "
        f"{others / ours:5.1f} times faster{wanted}, iterates {apart:.0e} apart",
        flush=True,
    )
    return ours


# --- against pooled solvers of others


def section_peers() -> None:
    train, test = at_random(movielens(), 0.2, 1)
    settings = settings_of("fast", 10, seed=1)
    mark = pooled_rmse(train, test, settings)
    owner = assign_users(len(train.users), CLIENTS, 1)
    shards = make_shards(train, owner, "float64", test)
    warm_up(settings, "float64")
    spent, reached = 0.0, None
    for round in itertools.islice(rounds(LocalEngine(shards), settings), 100):
        spent += round.seconds
        if round.diagnostics.test_rmse <= 1.003 * mark:
            reached = round.number
            break
    print(f"pooled ALS to its end: test RMSE {mark:.4f}; fedmc within 0.3 % after {reached} rounds, {spent:.2f} s")
    for name, (seconds, said) in peers(train, test).items():
        print(f"{name}: {seconds:.2f} s{said}")
        if name.startswith("cmfrec"):
            print(f"fedmc takes {spent / seconds:.2f} of its time (at most 1)")


def peers(train: Ratings, test: Ratings) -> dict[str, tuple[float, str]]:
    """Seconds by what they were spent on, and what else is to be said."""
    found: dict[str, tuple[float, str]] = {}
    entries, held = train.matrix.tocoo(), test.matrix.tocoo()
    try:
        from cmfrec import CMF
    except ImportError:
        print("cmfrec is not installed: pip install 'fedmc[bench]'")
    else:
        model = CMF(
            k=10, lambda_=10, method="als", niter=15, nthreads=2, use_cg=False, finalize_chol=False, verbose=False
        )
        began = time.perf_counter()
        model.fit(entries.astype(np.float64))
        seconds = time.perf_counter() - began
        predicted = np.clip(model.predict(held.row, held.col), train.matrix.data.min(), train.matrix.data.max())
        rmse = np.sqrt(np.nanmean((predicted - held.data) ** 2))
        found["cmfrec, pooled ALS, 15 iterations, 2 threads"] = seconds, f", test RMSE {rmse:.4f}"
    try:
        from implicit.als import AlternatingLeastSquares
    except ImportError:
        print("implicit is not installed: pip install 'fedmc[bench]'")
    else:
        warnings.simplefilter("ignore")  # on BLAS's threads
        als = AlternatingLeastSquares(10, iterations=15, num_threads=2, use_cg=False, random_state=0)
        began = time.perf_counter()
        als.fit(sparse.csr_matrix(train.matrix, dtype=np.float32), show_progress=False)
        seconds = time.perf_counter() - began
        found["implicit, pooled ALS of another loss, 15 iterations, 2 threads"] = seconds, ""
    return found


# --- large sets, in processes of their own


def section_netflix() -> None:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        for name, rank, most, gigabytes in (("ml-10m", 13, 20, None), ("netflix", 13, 180, 6)):
            shards = synthesised(Path(folder), name)
            for preset in ("paper", "fast"):
                seen = apart("run", shards, preset, rank, 100)
                memory = f"peak {seen['peak'] / 1e9:.2f} GB" + (f" (at most {gigabytes})" if gigabytes else "")
                print(
                    f"{name} size, {seen['ratings'] / 1e6:.1f}M ratings, {CLIENTS} clients, rank {rank}, {preset}: "
                    f"100 rounds of {ACTIVE}: {seen['seconds']:.1f} s of updates (at most {most}), {memory}",
                    flush=True,
                )


def section_threads() -> None:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        for name in ("ml-10m", "netflix"):
            shards = synthesised(Path(folder), name)
            for preset in ("paper", "fast"):
                by = {count: apart("run", shards, preset, 13, 12, count)["seconds"] for count in (1, 2)}
                print(f"{name} size, {preset}: 2 threads {by[1] / by[2]:.2f} times as fast as 1 (at least 1.6)")
        print(f"for comparison, 2 processes of pure arithmetic: {two_processes():.2f} times the work of 1")


def two_processes() -> float:
    """What a second core is worth here: the same loop in one process, and in two at the same time."""
    loop = "import numpy as np, time; A = np.random.rand(90, 90); t = time.perf_counter()\n"
    loop += "for _ in range(60000): A @ A\nprint(time.perf_counter() - t)"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}

    def together(count: int) -> float:
        running = [subprocess.Popen([sys.executable, "-c", loop], stdout=-1, env=environment) for _ in range(count)]
        return max(float(process.communicate()[0]) for process in running)

    return 2 * together(1) / together(2)


def synthesised(folder: Path, name: str, clients: int = CLIENTS) -> Path:
    path = folder / f"{name}-{clients}"
    if not path.exists():
        synthetic.write_shards(synthetic.like(name), path, clients)
    return path


def apart(*arguments) -> dict:
    """A job in a process of its own: what it found, and its peak memory."""
    command = [sys.executable, __file__, "--job", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def job_run(path: str, preset: str, rank: str, number: str, count: str = "0") -> dict:
    shards = open_prepared(path).shards
    for shard in shards:
        shard.by_user.data.sum(), shard.by_rated.data.sum()  # into memory, so that no round reads the disk
    with threads.limited(int(count) or threads.available()):
        spent = seconds_of_rounds(shards, settings_of(preset, int(rank)), int(number), skip=0)
    return {"seconds": sum(spent), "ratings": sum(shard.by_user.nnz for shard in shards)}


def job_clients(kind: str) -> dict:
    ratings = synthetic.make_ratings(synthetic.like("ml-10m"))
    users = len(ratings.users)
    clients, active = {"few": (100, 1), "many": (10_000, 100), "one": (users, users // 100)}[kind]
    owner = np.arange(users) if kind == "one" else assign_users(users, clients, 0)
    began = time.perf_counter()
    shards = make_shards(ratings, owner, "float64")
    made = time.perf_counter() - began
    settings = settings_of("fast", 10, active=active)
    spent = seconds_of_rounds(shards, settings, 100 if kind != "one" else 110, skip=0)
    later = spent[len(spent) // 2 :]
    per_rating = float(np.median(later)) / (len(ratings) * active / clients)
    return {"per_rating": per_rating, "clients": clients, "seconds": sum(spent), "made": made}


def section_clients() -> None:
    seen = {kind: apart("clients", kind) for kind in ("few", "many", "one")}
    for found in seen.values():
        print(
            f"MovieLens 10M size, {found['clients']:,} clients, 1 % a round, fast preset: "
            f"{1e9 * found['per_rating']:.0f} ns a rating, {found['seconds']:.1f} s in all, "
            f"peak {found['peak'] / 1e9:.2f} GB, shards made in {found['made']:.1f} s"
        )
    ratio = seen["many"]["per_rating"] / seen["few"]["per_rating"]
    print(f"10,000 clients of 7 users: {ratio:.2f} times the time a rating of 100 clients (at most 2)")
    print(f"one user a client: {seen['one']['peak'] / 1e9:.2f} GB (at most 4)")


# --- how time grows


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


# --- what else the issue asks


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
        least = rated * settings.width * 8
        print(
            f"{preset}, update {settings.update}, rank {rank}: {last.bytes_up / 1e6:.2f} MB up and "
            f"{last.bytes_down / 1e6:.2f} MB down a round; one number for each factor of each rated item would be "
            f"{least / 1e6:.2f} MB: {last.bytes_up / least:.1f} times that up"
        )


def section_ceiling() -> None:
    """Of the Gram, which is where the time goes: multiply-adds a second beside what the machine can do."""
    from fedmc.kernels import solves

    rng = np.random.default_rng(0)
    A = rng.random((600, 600))
    A @ A
    began = time.perf_counter()
    for _ in range(5):
        A @ A
    most = 5 * 600**3 / (time.perf_counter() - began)
    data = rng.random(40_000_000)
    data.sum()
    began = time.perf_counter()
    data.sum()
    band = data.nbytes / (time.perf_counter() - began)
    print(
        f"this machine: {most / 1e9:.1f} G multiply-adds/s (BLAS, all its threads), {band / 1e9:.1f} GB/s (one thread)"
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
            f"Grams at rank {width:3}: {work / spent / 1e9:5.1f} G multiply-adds/s, {100 * work / spent / most:3.0f} % "
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
            every = rhythm(settings, clients, number)
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
    code = "from fedmc.training import warm_up; from fedmc.settings import Settings; "
    code += "warm_up(Settings.preset('fast', rank=10), 'float64')"
    for label in ("a first process (it may have to compile)", "a second one"):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        print(f"{label}: ready for its first round after {time.perf_counter() - began:.2f} s (the second: at most 2)")


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        _, _, name, *arguments = sys.argv
        found = globals()[f"job_{name}"](*arguments)
        print(json.dumps(found | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return
    known = [name.removeprefix("section_") for name in globals() if name.startswith("section_")]
    for name in sys.argv[1:] or known:
        if name not in known:
            sys.exit(f"no section {name!r}: choose {', '.join(known)}")
        print(f"--- {name}", flush=True)
        globals()[f"section_{name}"]()


if __name__ == "__main__":
    main()
