"""`fedmc federation demo`: a server and three organisations as real processes here, beside the simulation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedmc.cli.display import say

NAMES = ("north", "south", "east")
RANK = 5


def show(rounds: int, keep: Path | None, as_json: bool) -> None:
    from fedmc.cli import federation
    from fedmc.cli.following import rmse_of
    from fedmc.cli.runs import to_json
    from fedmc.errors import FedmcError, require
    from fedmc.federation.server import checkpoint
    from fedmc.federation.setup.layout import load_server

    require(rounds >= 1, f"--rounds must be at least 1, got {rounds}")
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmc-federation-")))
        say(f"setting up a server and three organisations in {folder}")
        set_up(folder)
        server = load_server(folder / "server")
        stack.enter_context(running(folder, "server", "start", "server", "ready"))
        for name in NAMES:
            stack.enter_context(running(folder, "node", "start", name, "online"))
        say(f"all are online, with TLS and keys; training {rounds} rounds by secure aggregation")
        federation.train(
            server.folder, rank=RANK, rounds=rounds, run="demo", preset="fast", update=None, penalty_users=None,
            penalty_items=None, active=None, quorum=None, patience=120, measure_every=1, dtype="float64", seed=0,
            privacy="secagg", min_cohort=None, epsilon=10.0, delta=1e-6, ratings="1,5", clip=0.0,
            detach=False, as_json=False,
        )  # fmt: skip
        found = federation.find_run(server, "demo")
        last = checkpoint.load(found.path / "server.npz")
        expected, rmse = simulated(folder, found.plan())
        same = last.cast.V.tobytes() == expected.tobytes()
        federated = rmse_of(found.history()[-1])
        word = "equal bit for bit" if same else "DIFFER"
        say(f"test RMSE: federation {federated:.4f}, simulation {rmse:.4f}; item factors {word}")
        user = first_user(folder / NAMES[0])
        say(f"{NAMES[0]}'s own model, on its own machine:  fedmc node recommend {folder / NAMES[0]} {user}")
        command = [*_fedmc(), "node", "recommend", str(folder / NAMES[0]), user, "--n", "3"]
        typer.echo(subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip())
        if as_json:
            typer.echo(
                to_json({"federation_rmse": federated, "simulation_rmse": rmse, "same_bits": same, "rounds": rounds})
            )
        if not same:
            raise FedmcError("the federation's item factors are not the simulation's")


def set_up(folder: Path, source: Any = None, accept: Sequence[str] = ("secagg",)) -> None:
    """Three tables of ratings, an agreed catalogue, and the folders of a federation on loopback."""
    from fedmc.data import datasets
    from fedmc.data.catalogue import Catalogue
    from fedmc.data.partition import assign_users
    from fedmc.data.readers.writing import write_table
    from fedmc.federation.flower.superlink import free_port
    from fedmc.federation.setup import layout

    ratings = datasets.demo() if source is None else source
    layout.init(folder, NAMES, "127.0.0.1", port=free_port(), bind="127.0.0.1", control_port=free_port(), accept=accept)
    for name in ("server", *NAMES):
        Catalogue.of(ratings.items).save(folder / name / "catalogue.json")
    owner = assign_users(len(ratings.users), len(NAMES), 0)
    for number, (name, ending) in enumerate(zip(NAMES, ("csv", "parquet", "tsv"), strict=True)):
        write_table(_of_client(ratings, owner == number), folder / name / f"ratings.{ending}")
        config = folder / name / "config.toml"
        text = config.read_text(encoding="utf-8").replace('source = ""', f'source = "ratings.{ending}"')
        config.write_text(text.replace('# test = "random:0.1" ', 'test = "random:0.2" '), encoding="utf-8")


def _of_client(ratings: Any, users: Any) -> Any:
    return replace(ratings, users=ratings.users[users], matrix=ratings.matrix[users], times=None)


@contextmanager
def running(folder: Path, what: str, do: str, name: str, until: str) -> Iterator[subprocess.Popen[bytes]]:
    """`fedmc WHAT DO FOLDER` from when its log says that it is up until the end of the block."""
    from fedmc.errors import FedmcError

    log = folder / name / f"{what}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*_fedmc(), what, do, str(folder / name)], stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )
    try:
        began = time.monotonic()
        while not re.search(rf"\b{until}\b", log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() - began > 90:
                raise FedmcError(f"`fedmc {what} {do}` did not come up:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
                break


def simulated(folder: Path, plan: Any) -> tuple[Any, float | None]:
    """V and the test RMSE of the same rounds over the same shards in one process."""
    from fedmc.federation.node.organisation import open_folder
    from fedmc.federation.setup.layout import load_node
    from fedmc.training.local import LocalEngine
    from fedmc.training.rounds import rounds

    shards = []
    for number, name in enumerate(plan.organisations):
        shard = open_folder(load_node(folder / name)).prepared.shards[0]
        shards.append(replace(shard, client=number))
    for round in rounds(LocalEngine(shards), plan.settings, measure_every=plan.rounds):
        if round.number == plan.rounds:
            rmse = round.diagnostics.test_rmse
            return round.V, round.diagnostics.train_rmse if rmse is None else rmse
    raise AssertionError


def first_user(folder: Path) -> str:
    from fedmc.federation.node.organisation import open_folder
    from fedmc.federation.setup.layout import load_node

    return str(open_folder(load_node(folder)).prepared.ids[0][0])


def _fedmc() -> list[str]:
    return [sys.executable, "-c", "from fedmc.cli import main; main()"]
