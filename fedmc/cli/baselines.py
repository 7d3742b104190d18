"""What `fedmc train` compares a model with: biases only and, with `--baselines`, clients alone and all data pooled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import typer
from rich.progress import MofNCompleteColumn

from fedmc.algorithms.objectives import Objective
from fedmc.cli.display import progress_bar
from fedmc.cli.simulate import Interrupt
from fedmc.data.partition import Federation
from fedmc.evaluation import baselines
from fedmc.evaluation.baselines import Baselines
from fedmc.model import Model


class Compared(NamedTuple):
    """A trained model, the clients that it was trained on, the rounds that it took, and clients' own objectives."""

    model: Model
    federation: Federation
    rounds: int
    objectives: Mapping[int, Objective]


def compared_with(run: Compared, folder: Path, everything: bool, interrupted: Interrupt) -> Baselines | None:
    """Compute the baselines and write them into the run folder; those that take long only if asked for."""
    if everything and not interrupted():
        found = _with_progress(run, interrupted)
    else:
        found = baselines.biases_only(run.model, run.federation)
    if found is not None:
        baselines.save(found, folder)
    return found


def _with_progress(run: Compared, interrupted: Interrupt) -> Baselines | None:
    clients = len(baselines.chosen(run.federation))
    if clients < len(run.federation.shards):
        typer.echo(f"baselines: {clients} of {len(run.federation.shards)} clients are trained alone", err=True)
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("baselines", total=clients + 1)
        return baselines.compute(
            run.model, run.federation, run.rounds, objectives=run.objectives,
            on_step=lambda step: bar.update(task, advance=1, description=step), interrupted=interrupted,
        )  # fmt: skip
