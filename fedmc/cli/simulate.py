"""Shared by the commands that simulate clients: Ctrl-C, compilation, progress bars and the default of --active."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import typer
from rich.progress import MofNCompleteColumn

from fedmc.algorithms.settings import Settings
from fedmc.cli.display import progress_bar
from fedmc.data.partition import Federation
from fedmc.problem.quality import quality
from fedmc.training import simulation
from fedmc.training.engines import EngineChoice
from fedmc.training.rounds import Round
from fedmc.training.tuning import Trial

COMPILING = "compiling for this machine, the first time only: about 15 seconds\n"


class Interrupt:
    """The first Ctrl-C asks to stop after the round; a second one ends the process at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        self.previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self.previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def set_active(settings: Settings, active: int | None, clients: int) -> Settings:
    """The settings with the number of clients per round; the privacy mode's default if it is not given."""
    return settings.replace(active=settings.privacy.default_active(clients) if active is None else active)


def check_memory(federation: Federation, settings: Settings, rounds: int, engine: EngineChoice) -> None:
    """Refuse a run that does not fit into memory; print the memory of a large one on stderr."""
    warning = engine.check_memory(federation.shards, settings, rounds)
    if warning is not None:
        typer.echo(warning, err=True)


def warm_up(settings: Settings, federation: Federation) -> None:
    """Load the compiled kernels; print a message on stderr if they have to be compiled first."""
    announcement = threading.Timer(1.5, lambda: sys.stderr.write(COMPILING))
    announcement.start()
    try:
        simulation.warm_up(settings, federation.shards[0].by_user.data.dtype)
    finally:
        announcement.cancel()


@contextmanager
def rounds_bar(total: int) -> Iterator[Callable[[Round], None]]:
    """A progress bar on stderr; the caller passes it each round."""
    with progress_bar(MofNCompleteColumn(), "{task.fields[now]}") as bar:
        task = bar.add_task("preparing", total=total, now="")

        def show(round: Round) -> None:
            seen = round.diagnostics
            if seen.objective is not None:
                spent = "" if seen.epsilon is None else f"  epsilon {seen.epsilon:.3g}"
                bar.update(task, now=f"objective {seen.objective:,.4g}  {quality(seen._asdict())}{spent}")
            bar.update(task, completed=round.number, description="round")

        yield show


@contextmanager
def trials_bar(total: int) -> Iterator[Callable[[Trial], None]]:
    """A progress bar on stderr; the caller passes it each trial."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("trials", total=total)

        def show(trial: Trial) -> None:
            result = f"rank {trial.rank}, l2 {trial.weight:.4g}: validation RMSE {trial.validation_rmse:.4f}"
            bar.update(task, advance=1, description=result)

        yield show
