"""Progress of training for `verbose`: one line that moves on, in a terminal or in a notebook, or lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Protocol, cast

from fedmc.problem.quality import quality
from fedmc.training.rounds import Round
from fedmc.training.stopping import OnRound

LINES = 10  # in a log with verbose=1


@dataclass(frozen=True, repr=False)
class Line:
    """What is known after a round."""

    number: int
    rounds: int
    words: str

    def __repr__(self) -> str:
        return f"round {self.number}/{self.rounds}{self.words}"

    def _repr_html_(self) -> str:
        bar = f'<progress aria-label="rounds of training" value="{self.number}" max="{max(self.rounds, 1)}"></progress>'
        return f"<div>{bar} {escape(str(self))}</div>"


class Handle(Protocol):
    """An output of a notebook that can be replaced."""

    def update(self, content: object) -> None: ...


@contextmanager
def telling(rounds: int, verbose: int) -> Iterator[list[OnRound]]:
    """What to call after each round so that progress shows; nothing if `verbose` is 0."""
    if not verbose:
        yield []
        return
    progress = Progress(rounds, verbose)
    try:
        yield [progress]
    finally:
        progress.close()


class Progress:
    """Called with each `Round`; `close` ends the line. Level 1 is one line that moves on, level 2 a line a round."""

    def __init__(self, rounds: int, level: int) -> None:
        self.rounds, self.level = rounds, level
        self.words, self.seconds, self.width = "", 0.0, 0
        self.handle: Handle | None = None

    def __call__(self, round: Round) -> None:
        self.seconds += round.seconds
        measured = quality(round.diagnostics._asdict())
        if measured:
            self.words = f"  {measured}"
        line = Line(round.number, self.rounds, f"{self.words}  {self.seconds:.1f} s")
        if self.level > 1:
            _write(f"{line}\n")
        elif (display := _notebook()) is not None:
            self._show(line, display)
        elif sys.stderr.isatty():
            _write("\r" + str(line).ljust(self.width))
            self.width = len(str(line))
        elif self._is_due(round.number):
            _write(f"{line}\n")

    def close(self) -> None:
        if self.width:
            _write("\n")

    def _show(self, line: Line, display: object) -> None:
        if self.handle is None:
            self.handle = cast(Handle, display(line, display_id=True))  # type: ignore[operator]
        else:
            self.handle.update(line)

    def _is_due(self, number: int) -> bool:
        """About LINES times in a run, and in its last round."""
        step = max(1, self.rounds // LINES)
        return number % step == 0 or number == self.rounds


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _notebook() -> object | None:
    """IPython's function to display something in a notebook; None elsewhere. Never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(sys.modules.get("IPython.display"), "display", None) if hasattr(shell, "kernel") else None
