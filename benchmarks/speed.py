"""Speed and memory: ratios that are measured in one run on one machine.

    python benchmarks/speed.py [SECTION ...]
        plain peers netflix bayes best events threads growth clients losses precision bytes ceiling diagnostics startup

Every section runs by itself. MovieLens 1M is read from FEDMC_DATA (a folder that holds ml-1m) where it is set, else
synthetic ratings of its size and skew are used. `peers` and `bayes` need the extra `bench`; `netflix`, `bayes`,
`best`, `threads` and `clients` synthesise sets of the sizes of Netflix and MovieLens 10M in a temporary folder (2 GB),
and run in separate processes to measure their peak memory.
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
from pathlib import Path

import numpy as np
import speed_bayes
import speed_details
import speed_losses
from plain import PlainClient
from scipy import sparse
from speed_common import ACTIVE, BETA, CLIENTS, FOREVER, WEIGHT, movielens, seconds_of_rounds, settings_of

from fedmc.data import synthetic
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.evaluation.pooled import pooled_rmse
from fedmc.kernels import threads
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import warm_up

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
    bound = "" if target is None else f" (at least {target})"
    print(
        f"rank {rank:3}, N {N:3}: {1e3 * ours:7.2f} ms, plain {1e3 * others:7.1f} ms: "
        f"{others / ours:5.1f} times faster{bound}, iterates {apart:.0e} apart",
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
        for name, rank, max_seconds, gigabytes in (("ml-10m", 13, 20, None), ("netflix", 13, 180, 6)):
            shards = synthesised(Path(folder), name)
            for preset in ("paper", "fast"):
                seen = apart("run", shards, preset, rank, 100)
                memory = f"peak {seen['peak'] / 1e9:.2f} GB" + (f" (at most {gigabytes})" if gigabytes else "")
                print(
                    f"{name} size, {seen['ratings'] / 1e6:.1f}M ratings, {CLIENTS} clients, rank {rank}, {preset}: "
                    f"100 rounds of {ACTIVE}: {seen['seconds']:.1f} s of updates (at most {max_seconds}), {memory}",
                    flush=True,
                )


def section_bayes() -> None:
    speed_bayes.against_fast()
    speed_bayes.against_myfm()
    netflix_with_bayes(False, 8)


def section_best() -> None:
    speed_bayes.against_plain_bayes()
    speed_bayes.to_the_end()
    netflix_with_bayes(True, 10)


def section_events() -> None:
    """iALS on as many events as Netflix has ratings, which are their confidences."""
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        seen = apart("run", synthesised(Path(folder), "netflix"), "implicit", 64, 100)
    print(
        f"netflix size, {seen['ratings'] / 1e6:.1f}M events, {CLIENTS} clients, rank 64, iALS: 100 rounds of {ACTIVE}: "
        f"{seen['seconds']:.1f} s of updates (at most 600), peak {seen['peak'] / 1e9:.2f} GB (at most 8)",
        flush=True,
    )


def netflix_with_bayes(implicit: bool, gigabytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        seen = apart("run", synthesised(Path(folder), "netflix"), "bayes", 10, 100, 0, int(implicit))
    bound = "" if implicit else "at most 300; "
    print(
        f"netflix size, {seen['ratings'] / 1e6:.1f}M ratings, {CLIENTS} clients, rank 10, bayes "
        f"{'with' if implicit else 'without'} implicit terms: 100 rounds of {ACTIVE}: "
        f"{seen['seconds']:.1f} s of updates ({bound}{seen['cpu']:.1f} s of CPU with start-up), "
        f"peak {seen['peak'] / 1e9:.2f} GB (at most {gigabytes})",
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
    """Run a job in a separate process: its result, and its peak memory."""
    command = [sys.executable, __file__, "--job", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def job_run(path: str, preset: str, rank: str, number: str, count: str = "0", implicit: str = "0") -> dict:
    settings = settings_of(preset, int(rank), **({"implicit": implicit == "1"} if preset == "bayes" else {}))
    shards = open_prepared(path).shards
    for shard in shards:
        shard.by_user.data.sum(), shard.by_rated.data.sum()  # into memory, so that no round reads the disk
    with threads.limited(int(count) or threads.available()):
        cpu = time.process_time()
        spent = seconds_of_rounds(shards, settings, int(number), skip=0)
        cpu = time.process_time() - cpu
    return {"seconds": sum(spent), "cpu": cpu, "ratings": sum(shard.by_user.nnz for shard in shards)}


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


JOBS = {"run": job_run, "clients": job_clients}
SECTIONS = {
    "plain": section_plain,
    "peers": section_peers,
    "netflix": section_netflix,
    "bayes": section_bayes,
    "best": section_best,
    "events": section_events,
    "threads": section_threads,
    "clients": section_clients,
    "losses": speed_losses.section_losses,
    **speed_details.SECTIONS,
}


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        _, _, name, *arguments = sys.argv
        found = JOBS[name](*arguments)
        print(json.dumps(found | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return
    for name in sys.argv[1:] or SECTIONS:
        if name not in SECTIONS:
            sys.exit(f"no section {name!r}: choose {', '.join(SECTIONS)}")
        print(f"--- {name}", flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
