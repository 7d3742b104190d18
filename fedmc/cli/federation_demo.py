"""`fedmc federation demo`: a server and three organisations as real local processes, compared with the simulation."""

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
from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.display import print_text
from fedmc.cli.federation_progress import last_rmse
from fedmc.cli.federation_train import Order, create_run, start_run
from fedmc.cli.runs import to_json
from fedmc.data import datasets
from fedmc.data.catalogue import Catalogue
from fedmc.data.partition import assign_users
from fedmc.data.ratings import Ratings
from fedmc.data.readers.writing import write_table
from fedmc.errors import FedmcError, require
from fedmc.federation.flower.superlink import free_port
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.server import checkpoint
from fedmc.federation.server.run_folder import RunPlan
from fedmc.federation.setup import founding, layout
from fedmc.privacy.secagg.rules import cohort_for
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds as training_rounds
from fedmc.types import Array

NAMES = ("north", "south", "east")
RANK = 5
FEDMC = [sys.executable, "-c", "from fedmc.cli import main; main()"]
START_SECONDS = 90


def demo(
    rounds: options.Rounds = 10,
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this folder.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run three organisations and a server on this machine: real processes, TLS and keys. Ends by itself."""
    require(rounds >= 1, f"--rounds must be at least 1, got {rounds}")
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmc-federation-")))
        print_text(f"setting up a server and three organisations in {folder}")
        set_up(folder)
        stack.enter_context(running(folder, "server", "start", "server", "ready"))
        for name in NAMES:
            stack.enter_context(running(folder, "node", "start", name, "online"))
        print_text(f"all are online, with TLS and keys; training {rounds} rounds with secure aggregation")
        result = _train(folder, rounds)
        _recommend(folder)
    if as_json:
        typer.echo(to_json(result | {"rounds": rounds}))
    if not result["same_bits"]:
        raise FedmcError("the federation's item factors are not the simulation's")


def _train(folder: Path, rounds: int) -> dict[str, float | bool | None]:
    """Train over the federation, then in the simulation, and compare the two."""
    config = layout.load_server(folder / "server")
    p = len(NAMES)
    settings = Settings.preset("fast", rank=RANK, active=p, update="exact", privacy="secagg", min_cohort=cohort_for(p))
    run = create_run(config, settings, Order(rounds, patience=120, name="demo"))
    start_run(config, run, detach=False, as_json=False)
    simulated_items, simulated_rmse = simulated(folder, run.plan())
    items = checkpoint.load(run.path / "server.npz").checkpoint.broadcast.V
    same, rmse = items.tobytes() == simulated_items.tobytes(), last_rmse(run.history())
    equal = "equal bit for bit" if same else "DIFFER"
    print_text(f"test RMSE: federation {rmse:.4f}, simulation {simulated_rmse:.4f}; item factors {equal}")
    return {"federation_rmse": rmse, "simulation_rmse": simulated_rmse, "same_bits": same}


def _recommend(folder: Path) -> None:
    """Recommend items to a user of the first organisation, with its own `fedmc node recommend`."""
    home = folder / NAMES[0]
    user = str(open_folder(layout.load_node(home)).prepared.ids[0][0])
    print_text(f"{NAMES[0]}'s own model, on its own machine:  fedmc node recommend {home} {user}")
    command = [*FEDMC, "node", "recommend", str(home), user, "-n", "3"]
    typer.echo(subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip())


def set_up(
    folder: Path, source: Ratings | None = None, accept: Sequence[str] = ("secagg",), names: Sequence[str] = NAMES
) -> None:
    """Write a table of ratings for each organisation, a common catalogue, and the folders of a federation."""
    ratings = datasets.demo() if source is None else source
    founding.init(folder, names, founding.Address("127.0.0.1", free_port(), "127.0.0.1", free_port()), accept=accept)
    for name in ("server", *names):
        Catalogue.of(ratings.items).save(folder / name / "catalogue.json")
    owner = assign_users(len(ratings.users), len(names), 0)
    for number, (name, ending) in enumerate(zip(names, cycle(("csv", "parquet", "tsv")), strict=False)):
        write_table(_select_users(ratings, owner == number), folder / name / f"ratings.{ending}")
        config = folder / name / "config.toml"
        text = config.read_text(encoding="utf-8").replace('source = ""', f'source = "ratings.{ending}"')
        config.write_text(text.replace('# test = "random:0.1" ', 'test = "random:0.2" '), encoding="utf-8")


def _select_users(ratings: Ratings, chosen: Array) -> Ratings:
    return replace(ratings, users=ratings.users[chosen], matrix=ratings.matrix[chosen], times=None)


@contextmanager
def running(folder: Path, what: str, do: str, name: str, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fedmc WHAT DO FOLDER/NAME` until the end of the block, which starts once the log contains `ready`."""
    log = folder / name / f"{what}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*FEDMC, what, do, str(folder / name)], stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )
    try:
        started = time.monotonic()
        while not re.search(rf"\b{ready}\b", log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() - started > START_SECONDS:
                raise FedmcError(f"`fedmc {what} {do}` did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
                break


def simulated(folder: Path, plan: RunPlan) -> tuple[Array, float | None]:
    """V and the test RMSE of the same rounds over the same shards in one process."""
    shards = []
    for number, name in enumerate(plan.organisations):
        shard = open_folder(layout.load_node(folder / name)).prepared.shards[0]
        shards.append(replace(shard, client=number))
    for round in training_rounds(LocalEngine(shards), plan.settings, measure_every=plan.rounds):
        if round.number == plan.rounds:
            rmse = round.diagnostics.test_rmse
            return round.V, round.diagnostics.train_rmse if rmse is None else rmse
    raise AssertionError
