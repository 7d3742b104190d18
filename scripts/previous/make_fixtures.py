"""Files written by the earlier commit, for `tests/test_previous_files.py`. Runs in that commit's tree:

git archive 7f849c7 | tar -x -C FOLDER
cd FOLDER && PYTHONPATH=FOLDER python HERE/make_fixtures.py tests/fixtures/previous
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
from cases import CLIENTS, SECAGG, private, triples
from worker import fixed_noise

import fedmc
from fedmc.cli import app
from fedmc.federation import checkpoint
from fedmc.federation.identities import public_hex
from fedmc.federation.running import RunFolder, RunPlan, conduct
from fedmc.partition import Federation
from fedmc.prepared import open_prepared
from fedmc.stopping import Stop
from fedmc.training import train
from tests.world import CATALOGUE, ITEMS, KEYS, KINDS, NODES, RUN, World

MODELS: dict[str, dict[str, object]] = {
    "paper": {"preset": "paper", "rank": 3, "active": 4},
    "curvature": {"rank": 3, "active": 4},
    "exact": {"rank": 3, "active": 4, "update": "exact"},
    "huber": {"rank": 3, "active": 4, "loss": "huber:0.5", "penalty_users": "elastic-net:0.1,2"},
    "fedavg": {"rank": 3, "active": 4, "method": "fedavg"},
    "secagg": {"rank": 3} | SECAGG,
    "dp": {name: value for name, value in private("dp").items() if name != "dp_rounds"},
    "dp+secagg": {name: value for name, value in private("dp+secagg").items() if name != "dp_rounds"},
    "clipped": {"rank": 3, "active": 4, "clip": 1.0},
    "float32": {"rank": 3, "active": 4, "dtype": "float32"},
    "string-ids": {"rank": 2, "active": 4},
}
RUNS = ("curvature", "exact", "paper", "secagg", "dp", "clipped")


def main(target: str) -> None:
    out = Path(target).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    expected: dict[str, np.ndarray] = {}
    os.chdir(out)
    users, items, ratings = triples("stars")
    lines = [f"{u},{i},{r:.3f}" for u, i, r in zip(users, items, ratings, strict=True)]
    Path("ratings.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n", encoding="utf-8")
    with fixed_noise():
        models(expected)
        prepared(expected)
        run_folders(expected)
        federations(expected)
    np.savez_compressed("expected.npz", **expected)


def models(expected: dict[str, np.ndarray]) -> None:
    Path("models").mkdir()
    users, items, ratings = triples("stars")
    for name, options in MODELS.items():
        text = name == "string-ids"
        table = (
            ([f"u{u:02}" for u in users], [f"film {i:02}" for i in items], ratings) if text else (users, items, ratings)
        )
        fitted = fedmc.FedMC(clients=CLIENTS, rounds=6, **options).fit(table)
        fitted.save(f"models/{name}.npz")
        model = fitted.model_
        rows, columns = np.meshgrid(model.users[::7], model.items[::4], indexing="ij")
        expected[f"models/{name}"] = fitted.predict(rows.ravel(), columns.ravel())
        expected[f"folded/{name}"] = fitted.transform(
            fedmc.Ratings.from_arrays([1, 1, 2], model.items[[0, 3, 5]], [4, 2, 5.0])
        )


def prepared(expected: dict[str, np.ndarray]) -> None:
    fedmc_command("prepare", "ratings.csv", "--out", "shards", "--clients", "3", "--split", "random:0.2")
    opened = open_prepared("shards")
    federation = Federation(opened.shards, np.concatenate(opened.ids), opened.catalogue.items)
    found = train(federation, fedmc.Settings.preset("fast", rank=3, active=3), Stop(5), measure_every=1)
    expected["shards/U"], expected["shards/V"] = found.model.U, found.model.V
    expected["shards/test_rmse"] = np.array(found.history[-1].diagnostics.test_rmse)


def run_folders(expected: dict[str, np.ndarray]) -> None:
    fedmc_command(
        "train", "ratings.csv", "--rank", "3", "--clients", "6", "--active", "3", "--rounds", "8", "--out", "run"
    )
    model = fedmc.load("run/model.npz")
    table = fedmc.Ratings.from_arrays(*triples("stars"))
    unseen = ~model.has_seen(table.users[table.rows()], table.items[table.matrix.indices])
    predicted = model.predict(table.users[table.rows()], table.items[table.matrix.indices])
    errors = predicted - np.round(table.matrix.data, 3)
    expected["run/rmse"] = np.array(np.sqrt(np.mean(np.square(errors[unseen]))))
    fedmc_command(
        "compare", "ratings.csv", "--methods", "fedmc,fedmc-paper,fedavg,pooled,biases", "--seeds", "1,2",
        "--rank", "3", "--clients", "6", "--active", "3", "--rounds", "6", "--out", "comparison",
    )  # fmt: skip
    for made in ("figures", "report.html", "summary.csv", "summary.json", "curves.csv", "times.csv"):
        path = Path("comparison", made)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def federations(expected: dict[str, np.ndarray]) -> None:
    for kind in RUNS:
        folder, world = RunFolder(Path("federations", kind)), World(Path("world").resolve())
        folder.write_plan(plan_of(kind))
        conduct(folder, world)
        for store in world.stores.values():
            store.close()
        shutil.rmtree("world")
        (folder.path / "lock").unlink()
        saved = checkpoint.load(folder.path / "server.npz")
        expected[f"federations/{kind}/V"], expected[f"federations/{kind}/S"] = saved.cast.V, saved.state.S


def plan_of(kind: str) -> RunPlan:
    names, publics = list("abcdefgh"[:NODES]), tuple(map(public_hex, KEYS)) if kind == "secagg" else ()
    number = 3 if kind == "dp" else 4
    places = list(range(NODES))
    return RunPlan(RUN, KINDS[kind], names, places, CATALOGUE, ITEMS, number, 1, 10.0, NODES, publics)


def fedmc_command(*arguments: str) -> None:
    app(list(arguments), standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1])
