"""What viewers of the operator's page cost a training federation: real processes on loopback, secure aggregation.

    python benchmarks/page.py [BLOCKS]      40 by default; at most 43, since organisations accept 1,000 rounds a run

One run alternates between blocks of rounds without viewers and with 50 of them, who follow the page's events in a
process of their own. The first round of each block is left out. A block with viewers is compared with the blocks
before and after it, so that slow changes of the machine's load cancel. The last lines compare the same number of blocks
without viewers with each other: what the noise alone would show.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from federation import cpu_seconds, federation, verdict
from page_viewers import VIEWERS

from tests.loopback import Loopback

ROUNDS = 8  # of a block
MOST = 2.0  # percent


def place(made: Loopback) -> tuple[str, str]:
    """The page's port, and its token."""
    address = re.findall(r"page: http://127\.0\.0\.1:(\d+)/", made.log("server"))[-1]
    return address, made.server.path("operator.token").read_text().strip()


class Rounds:
    """Waits for the rounds of a run, and notes when each ended."""

    def __init__(self, made: Loopback, run: str) -> None:
        self.path, self.seen = made.server.runs / run / "history.jsonl", 0

    def times(self, number: int) -> list[float]:
        """When each of the next rounds ended."""
        found: list[float] = []
        until = time.monotonic() + 120
        while len(found) < number:
            lines = self.path.read_bytes().count(b"\n") if self.path.exists() else 0
            found += [time.monotonic()] * (lines - self.seen)
            self.seen = max(self.seen, lines)
            if time.monotonic() > until:
                sys.exit("the run does not go on")
            time.sleep(0.005)
        return found


class Block(NamedTuple):
    seconds: float  # of a round, their median
    server: float  # percent of a core that the server's process takes; gateway and page are in it


def block(made: Loopback, rounds: Rounds, watched: bool) -> Block:
    viewers, (port, token) = None, place(made)
    if watched:
        words = [sys.executable, str(Path(__file__).with_name("page_viewers.py")), port]
        viewers = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert viewers.stdin is not None
        assert viewers.stdout is not None
        viewers.stdin.write(f"{token}\n")
        viewers.stdin.flush()
        viewers.stdout.readline()
    rounds.times(1)
    server = made.processes["server"].pid
    began, before = time.monotonic(), cpu_seconds(server)
    spent = np.diff(rounds.times(ROUNDS + 1))
    used = 100 * (cpu_seconds(server) - before) / (time.monotonic() - began)
    if viewers is not None:
        viewers.kill()
        viewers.wait()
    return Block(float(np.median(spent)), used)


def costs(blocks: np.ndarray) -> np.ndarray:
    """Percent that each odd block takes longer than the mean of its neighbours."""
    inner = blocks[1:-1:2]
    return 100 * (inner / ((blocks[:-2:2] + blocks[2::2]) / 2) - 1)


def shown(label: str, found: np.ndarray) -> float:
    middle = float(np.median(found))
    low, high = np.quantile(found, [0.25, 0.75])
    error = 1.2533 * float(np.std(found, ddof=1)) / np.sqrt(len(found))  # of a median
    print(f"{label}: median {middle:+.2f} %, quartiles {low:+.2f} to {high:+.2f} %, standard error {error:.2f} %")
    return middle


def main(count: int) -> None:
    blocks = 2 * (count // 2) + 1
    with federation() as made:
        made.start_all()
        total = (2 * blocks) * (ROUNDS + 3) + 20
        words = "--rank", 3, "--rounds", total, "--run", "watched", "--privacy", "secagg", "--detach"
        done = made.fedmc("federation", "train", made.folder / "server", *words, timeout=900)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        rounds = Rounds(made, "watched")
        rounds.times(3)  # kernels are loaded
        watched = [block(made, rounds, k % 2 == 1) for k in range(blocks)]
        none = np.array([block(made, rounds, False).seconds for _ in range(blocks)])
        made.fedmc("federation", "stop", made.folder / "server")
    found, used = np.array([one.seconds for one in watched]), np.array([one.server for one in watched])
    print(f"{blocks} blocks of {ROUNDS} rounds; median {np.median(found[::2]):.3f} s a round without viewers, "
          f"{np.median(found[1::2]):.3f} s with {VIEWERS}")  # fmt: skip
    print(f"the server's process takes {np.mean(used[::2]):.1f} % of a core without viewers, "
          f"{np.mean(used[1::2]):.1f} % with {VIEWERS}")  # fmt: skip
    cost = shown(f"{VIEWERS} viewers", costs(found))
    shown("none against none", costs(none))
    verdict("percent", cost, MOST)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40)
