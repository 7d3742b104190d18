"""How long a round of a real federation takes, and what it costs: three nodes on loopback with TLS, keys, a database.

    python benchmarks/federation.py [ROUNDS]        all of it
    python benchmarks/federation.py [ROUNDS] ours   idle costs, rounds and calls of fedmc's nodes only

Ours beside stock SuperNodes in one run (tiny payload), and ours with ratings of MovieLens 10M's size. A round is
counted with its measurement (the RMSE), from one line of the history to the next.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedmc.data import synthetic
from fedmc.federation.flower.notices import ask_counts
from tests.loopback import NAMES, Loopback
from tests.test_bundles import stock

BEFORE = 24.0  # calls a message before the gateway held polls and small messages travelled inline
IDLE = 20  # seconds


def processes(root: int) -> list[int]:
    """A process and its descendants."""
    found = [root]
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        found += [one for child in task.read_text().split() for one in processes(int(child))]
    return found


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(made: Loopback) -> float:
    """Print the share of a core that a federation takes while nothing happens."""
    time.sleep(5)
    everybody = [(name, one) for name, process in made.processes.items() for one in processes(process.pid)]
    before = {one: cpu_seconds(one) for _, one in everybody}
    time.sleep(IDLE)
    spent = {one: (cpu_seconds(one) - before[one]) / IDLE for _, one in everybody}
    for name, one in everybody:
        command = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        word = next((part for part in command if b"flower-" in part), name.encode()).rpartition(b"/")[2].decode()
        print(f"  idle: {word}: {100 * spent[one]:.2f} % of a core")
    total = sum(spent.values())
    print(f"idle federation: {100 * total:.1f} % of a core over all processes (at most 3)", flush=True)
    return total


def line_times(path: Path, times: list[float], ended: threading.Event) -> None:
    """Note when each line of a file is written."""
    while not ended.wait(0.005):
        written = path.read_bytes().count(b"\n") if path.exists() else 0
        times += [time.monotonic()] * (written - len(times))


def median(made: Loopback, run: str, rounds: int, rank: int, *options: str) -> float:
    times, ended = list[float](), threading.Event()
    watch = threading.Thread(
        target=line_times, args=(made.server.runs / run / "history.jsonl", times, ended), daemon=True
    )
    watch.start()
    done = made.fedmc(
        "federation", "train", made.folder / "server", "--rank", rank, "--rounds", rounds, "--run", run,
        "--measure-every", 1, "--privacy", "plain", *options, timeout=900,
    )  # fmt: skip
    ended.set()
    watch.join()
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    spent = np.diff(times[1:])  # round 1: kernels are loaded
    updates = [line["seconds"] for line in made.run(run).history() if line["number"] >= 2]
    said = f"median {np.median(spent):.2f} s a round with its RMSE ({spent.min():.2f} to {spent.max():.2f})"
    print(f"{run}: {said}, {np.median(updates):.2f} s of it for the update", flush=True)
    return float(np.median(spent))


def count_calls(made: Loopback, rounds: int) -> None:
    """Print how many calls the SuperLink had for each message of a run, in both directions."""
    home = made.server.folder.resolve() / "flower"
    before = ask_counts(home)
    median(made, "counted", rounds, 3)
    found = {name: count - before.get(name, 0) for name, count in ask_counts(home).items()}
    messages = found.pop("messages")
    each = ", ".join(f"{name} {count / messages:.2f}" for name, count in sorted(found.items()) if count)
    print(f"calls for a message and its reply: {sum(found.values()) / messages:.1f} (before: {BEFORE:.0f}): {each}")


def ours_and_stock(rounds: int, only_ours: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        made = Loopback(Path(folder))
        try:
            made.start_all()
            idle(made)
            ours = median(made, "ours", rounds, 3)
            print(f"plain rounds: {ours:.2f} s (at most 0.8, aim 0.5)")
            count_calls(made, rounds)
            if only_ours:
                return ours
            hidden = median(made, "secagg", rounds, 3, "--privacy", "secagg")
            print(f"secure aggregation, which is five exchanges: {hidden / ours:.1f} times as long")
            for name in NAMES:
                made.stop(name)
            for name in NAMES:
                stock(made, name)
            theirs = median(made, "stock", rounds, 3)
            print(f"ours takes {ours / theirs:.2f} of the time of stock SuperNodes (at most 0.5)")
            return ours
        finally:
            made.end()


def main() -> None:
    words = sys.argv[1:]
    rounds = int(words[0]) if words else 12
    ours = ours_and_stock(rounds, "ours" in words)
    if "ours" in words:
        return
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        made = Loopback(Path(folder), synthetic.make_ratings(synthetic.like("ml-10m")))
        try:
            made.start_all()
            for update, megabytes in (("exact", 3), ("curvature", 20)):
                large = median(made, f"large-{update}", rounds, 10, "--update", update)
                said = f"MovieLens 10M's size, rank 10, {update} ({megabytes} MB up a round)"
                print(f"{said}: {large - ours:.2f} s more", flush=True)
        finally:
            made.end()


if __name__ == "__main__":
    main()
