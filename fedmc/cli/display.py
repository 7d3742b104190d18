"""What a person sees of a run: progress on stderr, tables on stdout. rich is loaded by those who draw, not for help."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

ROWS = {
    "test_rmse": "test RMSE", "train_rmse": "train RMSE", "objective": "objective F(U, V)", "rounds": "rounds",
    "seconds": "seconds of updates", "bytes_down": "bytes down", "bytes_up": "bytes up", "certified": "beta certified",
    "epsilon": "epsilon spent", "stopped": "stopped",
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
    from fedmc.training import simulation

    word = "compiling for this machine, the first time only: about 15 seconds\n"
    said = threading.Timer(1.5, lambda: sys.stderr.write(word))
    said.start()
    try:
        simulation.warm_up(settings, federation.shards[0].by_user.data.dtype)
    finally:
        said.cancel()


@contextmanager
def bar_of(*columns: str) -> Iterator[Any]:
    """A bar on stderr with what it says, itself, these of rich's columns (or texts), and the time left."""
    from rich import progress
    from rich.console import Console

    made = [getattr(progress, name)() if hasattr(progress, name) else progress.TextColumn(name) for name in columns]
    parts = progress.TextColumn("{task.description}"), progress.BarColumn(), *made, progress.TimeRemainingColumn()
    with progress.Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        yield bar


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], bold: int = -1) -> None:
    """A table on stdout: words on the left of their column, numbers on the right, one row in bold."""
    from rich.console import Console
    from rich.table import Table

    lines = [tuple(row) for row in rows]
    table = Table(title=title)
    for k, name in enumerate(columns):
        numbers = all(row[k][:1] in "-+0123456789.–" for row in lines)
        table.add_column(name, justify="right" if numbers else "left")
    for k, row in enumerate(lines):
        table.add_row(*row, style="bold" if k == bold else None)
    Console().print(table)


def say(text: str) -> None:
    """A sentence on stdout, not broken into lines."""
    from rich.console import Console

    Console().print(text, soft_wrap=True, highlight=False)


@contextmanager
def progress_of_rounds(total: int) -> Iterator[Callable[[Any], None]]:
    """A bar on stderr that the caller feeds with rounds."""
    with bar_of("MofNCompleteColumn", "{task.fields[now]}") as bar:
        task = bar.add_task("preparing", total=total, now="")

        def show(round: Any) -> None:
            seen = round.diagnostics
            rmse = seen.train_rmse if seen.test_rmse is None else seen.test_rmse
            if seen.objective is not None:
                spent = "" if seen.epsilon is None else f"  epsilon {seen.epsilon:.3g}"
                bar.update(task, now=f"objective {seen.objective:,.4g}  RMSE {rmse:.4f}{spent}")
            bar.update(task, completed=round.number, description="round")

        yield show


@contextmanager
def progress_of_trials(most: int) -> Iterator[Callable[[Any], None]]:
    """A bar on stderr that the caller feeds with trials."""
    with bar_of("MofNCompleteColumn") as bar:
        task = bar.add_task("trials", total=most)

        def show(trial: Any) -> None:
            best = f"rank {trial.rank}, l2 {trial.weight:.4g}: validation RMSE {trial.validation_rmse:.4f}"
            bar.update(task, advance=1, description=best)

        yield show


@contextmanager
def progress_of_bytes(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr for a download."""
    with bar_of("DownloadColumn", "TransferSpeedColumn") as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_summary(summary: dict[str, Any], folder: Path) -> None:
    """A short table of how a run ended and where it is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, label in ROWS.items():
        if summary.get(name) is not None:
            table.add_row(label, _text(name, summary[name]))
    Console().print(table)
    say(f"run kept in {folder}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if name.startswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def log_to_stderr() -> None:
    """What a process that runs for long has to say; of Flower, errors only."""
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    ours = logging.getLogger("fedmc")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
