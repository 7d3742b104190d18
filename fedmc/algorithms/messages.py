"""What travels: a Broadcast goes down, Sums come up. Two Sums can be added, and only their sum is ever needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.kernels.steps import add_rows
from fedmc.problem.subproblem import Scaling
from fedmc.types import Array

Task = Literal["moments", "scale", "start", "round", "measure", "finish"]
CHANGING = ("start", "round")  # tasks that change a client's state


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


class Sparse(ABC):
    """An array of `height` rows that are zero but for some."""

    height: int
    rows: Array  # which; where several clients speak at once, those of each ascending

    @property
    @abstractmethod
    def values(self) -> Array: ...
    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...
    @property
    @abstractmethod
    def nbytes(self) -> int: ...
    @abstractmethod
    def add_to(self, sums: Array) -> None:
        """sums[rows] += values, one row after the other."""


class Rows(Sparse):
    """Rows and their values."""

    def __init__(self, rows: Array, values: Array, height: int) -> None:
        self.rows, self._values, self.height = rows, values, height

    @property
    def values(self) -> Array:
        return self._values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.height, *self._values.shape[1:]

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self._values.nbytes)

    def add_to(self, sums: Array) -> None:
        add_rows(sums, self.rows, self._values)


@dataclass(frozen=True, eq=False)
class Sums:
    """Named arrays and numbers that add up over clients."""

    parts: dict[str, Any]
    sent: int = 0  # bytes of the arrays that it was put together from
    clients: tuple[int, ...] | None = None  # whose; None: all that were asked

    @classmethod
    def of(cls, **parts: Any) -> Sums:
        """One client's message; sparse ones stay as they are until they are added up."""
        arrays = {name: value if isinstance(value, Sparse) else np.asarray(value) for name, value in parts.items()}
        sent = sum(value.nbytes for value in arrays.values() if isinstance(value, Sparse) or value.ndim)
        return cls(arrays, sent)

    def __getitem__(self, name: str) -> Array:
        part: Array = self.parts[name]
        return part

    def number(self, name: str) -> float:
        return float(self.parts[name])


def add_up(messages: Iterable[Sums]) -> Sums:
    """The sum of at least one message, in float64, added in their order."""
    total: dict[str, Array] = {}
    sent = 0
    for message in messages:
        sent += message.sent
        if not total:
            total = {name: np.zeros(value.shape) for name, value in message.parts.items()}
        elif total.keys() != message.parts.keys():
            raise ValueError(f"cannot add sums of {sorted(total)} and {sorted(message.parts)}")
        for name, value in message.parts.items():
            if isinstance(value, Sparse):
                value.add_to(total[name])
            else:
                total[name] += value
    return Sums(total, sent)
