"""What `fedmc train` says at the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer

from fedmc.cli.display import print_summary
from fedmc.cli.echo import echo
from fedmc.cli.runs import to_json
from fedmc.evaluation.baselines import NAMES, Baselines
from fedmc.evaluation.coverage import Calibration
from fedmc.training import ablation, rate, simulation
from fedmc.training.ablation import Variant
from fedmc.training.simulation import Run

TOLD = 0.9  # the level of the intervals whose coverage is printed


class Done(NamedTuple):
    """A run that ended."""

    run: Run
    interrupted: bool  # by Ctrl-C
    intervals: Calibration | None  # if the model is Bayesian and there are test ratings
    worth: list[Variant]  # of --ablation
    ranking: dict[str, float]  # at the end, if training did not measure it
    beside: Baselines | None  # of the held-out data, if there are any

    def summary(self) -> dict[str, object]:
        """Its main numbers."""
        found: dict[str, object] = dict(simulation.summary(self.run.history)) | self.ranking
        if self.intervals is not None:
            found["intervals"] = self.intervals.at(TOLD)._asdict()
        if self.beside is not None:
            found["baselines"] = self.beside.values()
        if self.worth:
            found["worth"] = ablation.record(self.worth)
        if self.interrupted or self.run.diverged is not None:
            found["stopped"] = "interrupted" if self.run.diverged is None else "diverged"
        return found


def tell_done(done: Done, path: Path, report: bool, as_json: bool) -> None:
    """Print the results of a run, and where they are."""
    model = done.run.model
    about = {"clients": model.clients, "rank": model.settings.rank, "preset": model.settings.preset_name}
    summary = done.summary() | about | {"out": str(path)}
    print_summary(summary, path)
    for sentence in rate.in_words(summary):
        echo(sentence)
    if done.intervals is not None:
        echo(done.intervals.at(TOLD).in_words())
    if done.beside is not None and (known := done.beside.values()):
        echo("for comparison: " + ", ".join(f"{NAMES[name]} {value:.4f}" for name, value in known.items()))
    if report:
        typer.echo(f"report in {path / 'report.html'}")
    if as_json:
        typer.echo(to_json(summary))
