"""Client states on disk instead of in memory, for simulations whose p x n x r would not fit."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmc.errors import DataError

SHARED = "V"  # the same array for all clients of a round: it stays in memory


class Spilled(MutableSequence[Any]):
    """A list of states (named tuples of arrays) whose arrays lie in a file each; it goes when the list does."""

    def __init__(self, folder: str | Path, length: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="fedmc-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kept: list[Any] = [None] * length  # (type, what stays in memory)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, client: Any) -> Any:
        if self._kept[client] is None:
            return None
        kind, shared = self._kept[client]
        try:
            with np.load(self._path(client), allow_pickle=False) as found:
                return kind(**{name: found[name] for name in found.files}, **shared)
        except OSError as error:
            raise DataError(f"cannot read the state of client {client} back: {error}") from None

    def __setitem__(self, client: Any, state: Any) -> None:
        if state is None:
            self._kept[client] = None
            return
        fields = state._asdict()
        arrays = {name: value for name, value in fields.items() if name != SHARED and value is not None}
        try:
            with open(self._path(client), "wb") as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise DataError(f"cannot write the state of client {client}: {error}") from None
        self._kept[client] = type(state), {name: value for name, value in fields.items() if name not in arrays}

    def __delitem__(self, client: Any) -> None:
        raise TypeError("clients do not leave a simulation")

    def insert(self, index: int, state: Any) -> None:
        raise TypeError("clients do not join a simulation")

    def __iter__(self) -> Iterator[Any]:
        return (self[client] for client in range(len(self)))

    def _path(self, client: int) -> Path:
        return self._folder / f"client-{client:06}.npz"
