"""How long a round of a real federation takes, and what it costs: nodes on loopback with TLS, keys and a database.

    python benchmarks/federation.py [SECTION ...]      plain secagg ten latency large stock calls
    python benchmarks/federation.py old FOLDER         the same small federation by an older checkout, with its .venv

A round is counted with its measurement (the RMSE), from one line of the history to the next; the first two rounds,
which load kernels, are left out. CPU seconds are those of all processes: server, SuperLink, ServerApp and nodes.
`large` has ratings of MovieLens 10M's size and the Bayesian model at rank 10. `latency` puts a proxy between nodes and
server that delays everything by 50 ms each way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from delay import DelayingProxy

from fedmc.data import synthetic
from fedmc.federation.flower.notices import ask_counts
from tests.loopback import NAMES, Loopback
from tests.test_bundles import stock

ROUNDS = 12
LATENCY = 0.05  # seconds each way


class Cost(NamedTuple):
    """The median seconds of a round, and its CPU seconds over all processes."""

    seconds: float
    cpu: float


def processes(root: int) -> list[int]:
    """A process and its descendants."""
    found = [root]
    with suppress(OSError):
        for task in Path(f"/proc/{root}/task").glob("*/children"):
            found += [one for child in task.read_text().split() for one in processes(int(child))]
    return found


def cpu_seconds(process: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Watch:
    """Notes when each line of a run's history is written, and the CPU seconds spent by then."""

    def __init__(self, made: Loopback, run: str) -> None:
        self.path, self.roots = made.server.runs / run / "history.jsonl", [one.pid for one in made.processes.values()]
        self.times, self.spent, self.ended = list[float](), list[float](), threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        known: dict[int, float] = {}
        while not self.ended.wait(0.02):
            written = self.path.read_bytes().count(b"\n") if self.path.exists() else 0
            if written > len(self.times):
                known |= {one: cpu_seconds(one) for root in self.roots for one in processes(root)}
                self.times += [time.monotonic()] * (written - len(self.times))
                self.spent += [sum(known.values())] * (written - len(self.spent))


def rounds_of(made: Loopback, run: str, *options: object, rank: int = 3) -> Cost:
    watch = Watch(made, run)
    watch.thread.start()
    words = "--rank", rank, "--rounds", ROUNDS, "--run", run, "--measure-every", 1, *options
    done = made.fedmc("federation", "train", made.folder / "server", *words, timeout=900)
    watch.ended.set()
    watch.thread.join()
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    spent, cpu = np.diff(watch.times[2:]), np.diff(watch.spent[2:])
    cost = Cost(float(np.median(spent)), float(np.mean(cpu)))
    print(f"{run}: median {cost.seconds:.2f} s a round with its RMSE ({spent.min():.2f} to {spent.max():.2f}), "
          f"{cost.cpu:.2f} CPU seconds", flush=True)  # fmt: skip
    return cost


@contextmanager
def federation(*given: object) -> Iterator[Loopback]:
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        made = Loopback(Path(folder), *given)
        try:
            yield made
        finally:
            made.end()


def verdict(label: str, value: float, most: float) -> None:
    print(f"  {label}: {value:.2f}, at most {most:g}: {'yes' if value <= most else 'NO'}", flush=True)


def section_plain() -> None:
    with federation() as made:
        made.start_all()
        verdict("seconds", rounds_of(made, "plain", "--privacy", "plain").seconds, 0.8)


def section_secagg() -> None:
    with federation() as made:
        made.start_all()
        plain = rounds_of(made, "plain", "--privacy", "plain")
        secure = rounds_of(made, "secagg", "--privacy", "secagg")
        verdict("seconds", secure.seconds, 2.0)
        verdict("CPU seconds", secure.cpu, 2.0)
        print(f"  {secure.seconds / plain.seconds:.1f} times as long as plain")


def section_ten() -> None:
    with federation(None, [f"org{k}" for k in range(10)]) as made:
        made.start_all()
        verdict("seconds", rounds_of(made, "ten-nodes", "--privacy", "secagg").seconds, 5.0)


def section_latency() -> None:
    with federation() as made, DelayingProxy(made.server.port, LATENCY) as proxy:
        for name in NAMES:
            config = made.folder / name / "config.toml"
            config.write_text(config.read_text().replace(f":{made.server.port}", f":{proxy.port}"))
        made.start_all()
        verdict("seconds", rounds_of(made, "latency", "--privacy", "secagg").seconds, 3.0)


def section_large() -> None:
    with federation(synthetic.make_ratings(synthetic.like("ml-10m"))) as made:
        made.start_all()
        cost = rounds_of(made, "large", "--privacy", "secagg", "--preset", "bayes", "--no-implicit", rank=10)
        verdict("seconds", cost.seconds, 5.0)
        lines = made.run("large").history()[2:]
        up, down = (np.median([line[name] for line in lines]) / len(NAMES) / 1e6 for name in ("bytes_up", "bytes_down"))
        print(f"  {up:.1f} MB up and {down:.1f} MB down a node and round")


def section_stock() -> None:
    """fedmc's nodes beside stock SuperNodes, which can take part in plain runs only."""
    with federation() as made:
        made.start_all()
        ours = rounds_of(made, "ours", "--privacy", "plain")
        for name in NAMES:
            made.stop(name)
        for name in NAMES:
            stock(made, name)
        theirs = rounds_of(made, "stock", "--privacy", "plain")
        verdict("ours / stock", ours.seconds / theirs.seconds, 0.5)


def section_calls() -> None:
    """Calls of the SuperLink for each message, in both directions."""
    with federation() as made:
        made.start_all()
        home = made.server.folder.resolve() / "flower"
        before = ask_counts(home)
        rounds_of(made, "counted", "--privacy", "secagg")
        found = {name: count - before.get(name, 0) for name, count in ask_counts(home).items()}
        messages = found.pop("messages")
        each = ", ".join(f"{name} {count / messages:.2f}" for name, count in sorted(found.items()) if count)
        print(f"calls for a message and its reply: {sum(found.values()) / messages:.1f}: {each}")


def old(folder: Path) -> None:
    """The small federation by an older checkout: its own benchmark prints plain and secure rounds."""
    command = [str(folder / ".venv" / "bin" / "python"), "benchmarks/federation.py", str(ROUNDS)]
    subprocess.run(command, cwd=folder, timeout=1200, check=False)


SECTIONS: dict[str, Callable[[], None]] = {
    name.removeprefix("section_"): value for name, value in globals().items() if name.startswith("section_")
}

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["old"]:
        sys.exit(old(Path(words[1])) if len(words) == 2 else "give the folder of the older checkout")
    for name in words or SECTIONS:
        if name not in SECTIONS:
            sys.exit(f"unknown section {name!r}: choose from {', '.join(SECTIONS)}, or old FOLDER")
        print(f"== {name}", flush=True)
        SECTIONS[name]()
