"""A worker's checkpoints: the states that its clients had, in files, from which a new process goes on.

    000000000012.states    what the worker kept after question 12: its task, and the new states

Files appear whole. Read in order they repeat all that was kept, rollbacks included. When the changes take as much
space as the first file, they are merged into one, up to the last point that a rollback can go back to.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import NamedTuple

from fedmc.algorithms.messages import STATEFUL_TASKS
from fedmc.training.members import Members, Pending


class Entry(NamedTuple):
    number: int
    task: str | None  # None: a rollback
    states: Pending


def apply(entry: Entry, members: Members) -> None:
    if entry.task is None:
        members.rollback()
    else:
        members.keep(entry.task, entry.states)


class Journal:
    """The files of one worker."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def replay(self, members: Members) -> int:
        """Bring the clients to the states that were kept last; returns the number of the last question."""
        number = 0
        for path in self._files():
            entry: Entry = pickle.loads(path.read_bytes())
            apply(entry, members)
            number = entry.number
        return number

    def append(self, entry: Entry, kept: Pending) -> None:
        """Write an entry. `kept` are all states before it."""
        files = self._files()
        if entry.task in STATEFUL_TASKS and len(files) > 2:
            sizes = [path.stat().st_size for path in files]
            if sum(sizes[1:]) >= sizes[0]:
                self._merge(files, kept)
        self._write(self._folder / f"{entry.number:012}.states", entry)

    def _merge(self, files: list[Path], kept: Pending) -> None:
        """Replace all files by one, under the name of the last: whenever it ends, reading in order gives the same."""
        number = int(files[-1].stem)
        self._write(
            files[-1], Entry(number, "", {client: state for client, state in kept.items() if state is not None})
        )
        for path in files[:-1]:
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.states"))

    def _write(self, path: Path, entry: Entry) -> None:
        staging = path.with_suffix(".part")
        with open(staging, "wb") as file:
            pickle.dump(entry, file, protocol=5)
        os.replace(staging, path)
