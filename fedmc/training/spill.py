"""Client states on disk instead of in memory, for simulations whose p x n x r numbers would not fit."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, MutableSequence
from pathlib import Path
from typing import overload

import numpy as np

from fedmc.algorithms.state import State
from fedmc.errors import DataError
from fedmc.types import Array

SHARED = "V"  # the same array for all clients of a round: it stays in memory


class SpilledStates(MutableSequence[State | None]):
    """A list of states (NamedTuples of arrays), one file per state; the files are deleted with the list."""

    def __init__(self, folder: str | Path, length: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="fedmc-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kept: list[tuple[type[State], dict[str, Array]] | None] = [None] * length  # what stays in memory

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, client: int) -> State | None: ...
    @overload
    def __getitem__(self, client: slice) -> MutableSequence[State | None]: ...
    def __getitem__(self, client: int | slice) -> State | MutableSequence[State | None] | None:
        if isinstance(client, slice):
            raise TypeError("states are read one at a time")
        kept = self._kept[client]
        if kept is None:
            return None
        kind, shared = kept
        try:
            with np.load(self._path(client), allow_pickle=False) as found:
                return kind(**{name: found[name] for name in found.files}, **shared)
        except OSError as error:
            raise DataError(f"cannot read the state of client {client} back: {error}") from None

    def __setitem__(self, client: int | slice, state: State | Iterable[State | None] | None) -> None:
        if isinstance(client, slice):
            raise TypeError("states are written one at a time")
        if state is None:
            self._kept[client] = None
            return
        fields: dict[str, Array] = state._asdict()  # type: ignore[union-attr]
        arrays = {name: value for name, value in fields.items() if name != SHARED and value is not None}
        try:
            with open(self._path(client), "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DataError(f"cannot write the state of client {client}: {error}") from None
        shared = {name: value for name, value in fields.items() if name not in arrays}
        self._kept[client] = type(state), shared  # type: ignore[assignment]

    def __delitem__(self, client: int | slice) -> None:
        raise TypeError("clients do not leave a simulation")

    def insert(self, index: int, state: State | None) -> None:
        raise TypeError("clients do not join a simulation")

    def __iter__(self) -> Iterator[State | None]:
        return (self[client] for client in range(len(self)))

    def _path(self, client: int) -> Path:
        return self._folder / f"client-{client:06}.npz"
