"""Runs all cases on the tree that PYTHONPATH names and writes what came out: `worker.py SIDE OUT.npz [CASE...]`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from cases import CASES, CLIENTS, Case, triples
from sides import SIDES, Result, Task, of_model

import fedmc

UNCOMPARED = {"seconds", "bytes_down", "bytes_up"}  # times differ, and byte counts are not part of the result


def main(side: str, out: str, *names: str) -> None:
    if Path(fedmc.__file__).parents[1] != Path.cwd():
        raise SystemExit(f"{fedmc.__file__} is not of the tree {Path.cwd()}")
    found: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        if names and name not in names:
            continue
        try:
            with tempfile.TemporaryDirectory() as folder, fixed_noise():
                result = run(side, case, Path(folder))
            history = [{k: v for k, v in record.items() if k not in UNCOMPARED} for record in result.history]
            found |= {f"{name}/U": result.U, f"{name}/V": result.V}
            found[f"{name}/scaling"] = np.array([result.mean, result.scale])
            found[f"{name}/history"] = np.array(json.dumps(history))
        except Exception as error:
            found[f"{name}/error"] = np.array(f"{type(error).__name__}: {error}")
    np.savez(out, **found)


def run(side: str, case: Case, folder: Path) -> Result:
    ratings = fedmc.Ratings.from_arrays(*triples(case.data))
    if case.way == "estimator":
        options = {"clients": CLIENTS, "preset": case.preset, "rounds": case.rounds, "measure_every": 1, **case.options}
        fitted = fedmc.FedMC(**options).fit(ratings)
        return of_model(fitted.model_, fitted.rounds_ if hasattr(fitted, "rounds_") else fitted.history_)
    settings = fedmc.Settings.preset(case.preset, **case.options)
    train, test = fedmc.split(ratings, case.test, 0) if case.test else (ratings, None)
    owner = np.arange(len(ratings.users)) % CLIENTS
    task = Task(settings, train, test, owner, case.rounds, folder, case.trials, case.spill, case.full)
    here = SIDES[side]
    ways: dict[str, Callable[[Task], Result]] = {
        "train": here.simulate, "pooled": here.pooled, "federation": here.federate,
    }  # fmt: skip
    return ways[case.way](task)


@contextmanager
def fixed_noise() -> Iterator[None]:
    """Noise for differential privacy comes from os.urandom; inside, from a generator for each length asked for."""
    streams: dict[int, np.random.Generator] = {}

    def drawn(count: int) -> bytes:
        if count not in streams:
            streams[count] = np.random.default_rng([11, count])
        return streams[count].bytes(count)

    before, os.urandom = os.urandom, drawn
    try:
        yield
    finally:
        os.urandom = before


if __name__ == "__main__":
    main(*sys.argv[1:])
