"""What a person sees of a run: progress on stderr, tables on stdout."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

ROWS = {
    "test_rmse": "test RMSE", "train_rmse": "train RMSE", "objective": "objective F(U, V)", "rounds": "rounds",
    "seconds": "seconds of updates", "bytes_down": "bytes down", "bytes_up": "bytes up", "certified": "beta certified",
    "stopped": "stopped",
}  # fmt: skip


class Interrupt:
    """Ctrl-C asks to stop after the round; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        self.before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self.before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def warm_up(settings: Any, federation: Any) -> None:
    """Load the compiled kernels, with a word on stderr where they are still to be compiled."""
    from fedmc import training

    word = "compiling for this machine, the first time only: about 15 seconds\n"
    said = threading.Timer(1.5, lambda: sys.stderr.write(word))
    said.start()
    try:
        training.warm_up(settings, federation.shards[0].by_user.data.dtype)
    finally:
        said.cancel()


@contextmanager
def progress_of_rounds(total: int) -> Iterator[Callable[[Any], None]]:
    """A bar on stderr that the caller feeds with rounds."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=total, now="")

        def show(round: Any) -> None:
            seen = round.diagnostics
            rmse = seen.train_rmse if seen.test_rmse is None else seen.test_rmse
            if seen.objective is not None:
                bar.update(task, now=f"objective {seen.objective:,.4g}  RMSE {rmse:.4f}")
            bar.update(task, completed=round.number, description="round")

        yield show


@contextmanager
def progress_of_trials(most: int) -> Iterator[Callable[[Any], None]]:
    """A bar on stderr that the caller feeds with trials."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("trials", total=most)

        def show(trial: Any) -> None:
            best = f"rank {trial.rank}, l2 {trial.weight:.4g}: validation RMSE {trial.validation_rmse:.4f}"
            bar.update(task, advance=1, description=best)

        yield show


@contextmanager
def progress_of_bytes(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr for a download."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_summary(summary: dict[str, Any], folder: Path) -> None:
    """A short table of how a run ended and where it is."""
    table = Table(show_header=False, box=None)
    for name, label in ROWS.items():
        if summary.get(name) is not None:
            table.add_row(label, _text(name, summary[name]))
    console = Console()
    console.print(table)
    console.print(f"run kept in {folder}", soft_wrap=True, highlight=False)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if name.startswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
