"""How long a round of a real federation takes: three nodes on loopback with TLS, keys and a database.

    python benchmarks/federation.py [ROUNDS]

Ours beside stock SuperNodes in one run (tiny payload), and ours with ratings of MovieLens 10M's size.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedmc.data import synthetic
from tests.loopback import NAMES, Loopback
from tests.test_bundles import stock


def median(made: Loopback, run: str, rounds: int, rank: int, *options: str) -> float:
    done = made.fedmc(
        "federation", "train", made.folder / "server", "--rank", rank, "--rounds", rounds, "--run", run,
        "--measure-every", rounds, "--privacy", "plain", *options, timeout=900,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    spent = [line["seconds"] for line in made.run(run).history() if line["number"] >= 2]  # 1: kernels are loaded
    print(f"{run}: median {np.median(spent):.2f} s a round ({min(spent):.2f} to {max(spent):.2f})", flush=True)
    return float(np.median(spent))


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 12
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        made = Loopback(Path(folder))
        try:
            made.start_all()
            ours = median(made, "ours", rounds, 3)
            hidden = median(made, "secagg", rounds, 3, "--privacy", "secagg")
            print(f"secure aggregation, which is five exchanges: {hidden / ours:.1f} times as long")
            for name in NAMES:
                made.stop(name)
            for name in NAMES:
                stock(made, name)
            theirs = median(made, "stock", rounds, 3)
            print(f"ours takes {ours / theirs:.2f} of the time of stock SuperNodes (at most 0.5; at most 2.5 s)")
        finally:
            made.end()
    with tempfile.TemporaryDirectory(prefix="fedmc-bench-") as folder:
        made = Loopback(Path(folder), synthetic.make_ratings(synthetic.like("ml-10m")))
        try:
            made.start_all()
            for update, megabytes in (("exact", 3), ("curvature", 20)):
                large = median(made, f"large-{update}", rounds, 10, "--update", update)
                said = f"MovieLens 10M's size, rank 10, {update} ({megabytes} MB up a round)"
                print(f"{said}: {large - ours:.2f} s more (at most 1)", flush=True)
        finally:
            made.end()


if __name__ == "__main__":
    main()
