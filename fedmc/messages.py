"""What travels: a Broadcast goes down, Sums come up. Two Sums can be added, and only their sum is ever needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmc.inner import Scaling
from fedmc.settings import Settings

Array = NDArray[Any]
Task = Literal["moments", "scale", "start", "round", "measure"]


class Broadcast(NamedTuple):
    """The server's word to a client: what to do, at which V."""

    task: Task
    round: int
    clients: int  # the paper's p
    settings: Settings
    V: Array
    beta: Any = 1.0  # a number, or one per item and coordinate
    scaling: Scaling = Scaling()
    memory: Any = None  # what a method of `methods` keeps at the server and sends along
    full: bool = False  # with "measure": also what the theory needs


@dataclass(frozen=True, eq=False)
class Sums:
    """Named arrays and numbers that add up over clients."""

    parts: dict[str, Array]

    @classmethod
    def of(cls, **parts: Any) -> Sums:
        return cls({name: np.asarray(value) for name, value in parts.items()})

    def __add__(self, other: Sums) -> Sums:
        if self.parts.keys() != other.parts.keys():
            raise ValueError(f"cannot add sums of {sorted(self.parts)} and {sorted(other.parts)}")
        return Sums({name: value.astype(np.float64) + other.parts[name] for name, value in self.parts.items()})

    def __getitem__(self, name: str) -> Array:
        return self.parts[name]

    def number(self, name: str) -> float:
        return float(self.parts[name])

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.parts.values())
