"""V of each round of a run, in one .npz file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from fedmc.data.files import write_whole
from fedmc.training.rounds import Round
from fedmc.types import Array


class Iterates:
    """Collects V round by round; the start is round 0."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._V: list[Array] = []

    def add(self, round: Round) -> None:
        self.numbers.append(round.number)
        self._V.append(round.V.copy())

    def save(self, path: Path) -> None:
        """Write `rounds` (K+1) and `V` (K+1 x items x columns), atomically; the same run gives the same bytes."""
        content = io.BytesIO()
        np.savez(content, rounds=np.array(self.numbers), V=np.stack(self._V))
        write_whole(path, content.getvalue())
