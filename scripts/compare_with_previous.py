"""Old and new code side by side: the same runs must give the same bits.

Unpacks an earlier commit, runs every case of `previous/cases.py` in its tree and in this one (a process each), and
compares user and item factors, the scaling of ratings and the measured history bit for bit. Cases whose results were
changed on purpose are listed in CHANGED, each with its reason.

    python scripts/compare_with_previous.py [--previous COMMIT] [--only CASE] [--scratch FOLDER]

Most of the time goes into compiling kernels; with `--scratch` the compiled ones are kept there for the next time.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
PREVIOUS = "7f849c7"  # the last commit before the packages
BOUND = 1e-12  # of the largest difference in an exception
MOST_EXCEPTIONS = 2
EXCEPTIONS: dict[str, str] = {}  # case: why it may differ, within BOUND
GROUPS = "under secure aggregation, fixed groups take part instead of clients drawn anew in every round"
CHANGED = {  # case: why its results are others on purpose; such a case must run, and must differ
    case: GROUPS for case in ("secagg", "secagg, exact", "secagg, paper", "secagg, float32", "federation, secagg")
}


class Line(NamedTuple):
    case: str
    same: bool
    difference: float  # the largest absolute one
    why: str = ""
    broken: bool = False  # an error, or results of other shapes

    @property
    def allowed(self) -> bool:
        if self.case in CHANGED:
            return not self.same and not self.broken
        return self.same or (self.case in EXCEPTIONS and self.difference <= BOUND)

    @property
    def note(self) -> str:
        """What differs and why that is allowed, or why it is not."""
        if self.same:
            return "declared as changed, but the same" if self.case in CHANGED else ""
        reason = (EXCEPTIONS | CHANGED).get(self.case)
        return f"{self.why} (allowed: {reason})" if self.allowed and reason else self.why


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--previous", default=PREVIOUS, help="the commit to compare with")
    arguments.add_argument("--only", action="append", default=[], metavar="CASE", help="one case; may be repeated")
    arguments.add_argument("--scratch", type=Path, help="a folder to keep the unpacked commit and compiled kernels in")
    given = arguments.parse_args()
    if len(EXCEPTIONS) > MOST_EXCEPTIONS:
        print(f"{len(EXCEPTIONS)} exceptions are listed, at most {MOST_EXCEPTIONS} are allowed")
        return 1
    with tempfile.TemporaryDirectory(prefix="fedmc-previous-") as temporary:
        scratch = (given.scratch or Path(temporary)).resolve()
        old = unpack(given.previous, scratch / given.previous)
        trees = {"previous": old, "current": HERE.parent}
        results = run_both(trees, scratch, given.only)
    lines = [compare(name, *results) for name in names_of(*results)]
    show(lines)
    return int(not lines or not all(line.allowed for line in lines))


def unpack(commit: str, folder: Path) -> Path:
    """The tree of a commit, unless it is there already."""
    if folder.exists():
        return folder
    packed = subprocess.run(["git", "archive", commit], cwd=HERE.parent, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run_both(trees: dict[str, Path], scratch: Path, only: list[str]) -> list[dict[str, np.ndarray]]:
    """What both sides give for every case; they run at the same time."""
    outs = {side: scratch / f"{side}.npz" for side in trees}
    running = []
    for side, tree in trees.items():
        command = [sys.executable, str(HERE / "previous" / "worker.py"), side, str(outs[side]), *only]
        cache = scratch / "kernels" / side
        environment = os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(cache), "FEDMC_THREADS": "1"}
        running.append(subprocess.Popen(command, cwd=tree, env=environment))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"a side failed: exit codes {codes}")
    found = []
    for path in outs.values():
        with np.load(path, allow_pickle=False) as archive:
            found.append({name: archive[name] for name in archive.files})
    return found


def names_of(*results: dict[str, np.ndarray]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[0] for result in results for name in result))


def compare(name: str, old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> Line:
    errors = [
        f"{side}: {found[f'{name}/error']}" for side, found in (("old", old), ("new", new)) if f"{name}/error" in found
    ]
    if errors:
        return Line(name, False, math.inf, "; ".join(errors), broken=True)
    largest, differing = 0.0, []
    for part in ("U", "V", "scaling"):
        a, b = old[f"{name}/{part}"], new[f"{name}/{part}"]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return Line(name, False, math.inf, f"{part} is {a.dtype}{a.shape}, now {b.dtype}{b.shape}", broken=True)
        if a.tobytes() != b.tobytes():
            differing.append(part)
            largest = max(largest, float(np.abs(a.astype(np.float64) - b).max(initial=0.0)))
    gap, why = compare_histories(*(json.loads(str(found[f"{name}/history"])) for found in (old, new)))
    differing += [why] if why else []
    return Line(name, not differing, max(largest, gap), ", ".join(differing))


def compare_histories(old: list[dict[str, object]], new: list[dict[str, object]]) -> tuple[float, str]:
    """The largest difference, and where the first one is. What is measured in addition now does not count."""
    if len(old) != len(new):
        return math.inf, f"{len(old)} rounds, now {len(new)}"
    largest, where = 0.0, ""
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        for key, value in before.items():
            found = after.get(key)
            if found == value or (value != value and found != found):
                continue
            where = where or f"{key} of round {number}"
            if isinstance(value, int | float) and isinstance(found, int | float):
                largest = max(largest, abs(value - found))
            else:
                largest = math.inf
    return largest, where


def show(lines: list[Line]) -> None:
    width = max((len(line.case) for line in lines), default=4)
    print(f"{'case':{width}} | same bits | largest difference")
    for line in lines:
        said = "yes" if line.same else "changed" if line.case in CHANGED else "NO"
        print(f"{line.case:{width}} | {said:9} | {line.difference:.3g}  {line.note}".rstrip())
    changed = sum(line.case in CHANGED for line in lines)
    print(f"{len(lines)} cases, {sum(line.same for line in lines)} with the same bits, {changed} changed on purpose")


if __name__ == "__main__":
    sys.exit(main())
