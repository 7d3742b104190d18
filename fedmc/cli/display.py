"""Progress bars on stderr; tables and sentences on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import progress
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

from fedmc.errors import LAYOUT, printable
from fedmc.problem.quality import ranking_in_words

ROWS = {
    "test_rmse": "test RMSE", "train_rmse": "train RMSE", "objective": "objective F(U, V)",
    "bound": "evidence bound (nats)", "rounds": "rounds", "seconds": "seconds of updates", "bytes_down": "bytes down",
    "bytes_up": "bytes up", "certified": "beta certified", "epsilon": "epsilon spent", "stopped": "stopped",
}  # fmt: skip


@contextmanager
def progress_bar(*columns: ProgressColumn | str) -> Iterator[Progress]:
    """A progress bar on stderr: description, bar, these columns (or texts), and the remaining time."""
    made = [progress.TextColumn(column) if isinstance(column, str) else column for column in columns]
    parts = progress.TextColumn("{task.description}"), progress.BarColumn(), *made, progress.TimeRemainingColumn()
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        yield bar


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on stderr for a download; the caller reports the bytes received and the total."""
    with progress_bar(progress.DownloadColumn(), progress.TransferSpeedColumn()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], bold: int = -1) -> None:
    """Print a table on stdout: text is aligned to the left, numbers to the right; one row may be bold."""
    lines = [tuple(row) for row in rows]
    table = Table(title=title)
    for k, name in enumerate(columns):
        numbers = all(row[k][:1] in "-+0123456789.–" for row in lines)
        table.add_column(name, justify="right" if numbers else "left")
    for k, row in enumerate(lines):
        table.add_row(*map(_plain, row), style="bold" if k == bold else None)
    Console().print(table)


def counted(number: object, what: str) -> str:
    """A number of things in words: 1 user, 2,000 users."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def print_text(text: str) -> None:
    """Print a sentence on stdout, not broken into lines."""
    Console().print(_plain(text), soft_wrap=True, highlight=False)


def print_summary(summary: Mapping[str, object], folder: Path) -> None:
    """Print a short table of a run's results, and the folder it was saved in."""
    table = Table(show_header=False, box=None)
    for label, text in ranking_in_words(summary).items():
        table.add_row(label, text)
    for name, label in ROWS.items():
        if summary.get(name) is not None:
            table.add_row(label, _plain(_format(name, summary[name])))
    Console().print(table)
    print_text(f"run saved in {folder}")


def _plain(text: str) -> Text:
    """The text without markup, and with all characters that a terminal would act on escaped."""
    return Text(printable(text, LAYOUT))


def _format(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.startswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
