"""What travels: a Broadcast goes down, Sums come up. Two Sums can be added, and only their sum is ever needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmc.inner import Scaling
from fedmc.kernels import add_rows
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


class Rows(NamedTuple):
    """An array of `height` rows that are zero but for these."""

    rows: Array  # ascending
    values: Array
    height: int

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.values.nbytes)


@dataclass(frozen=True, eq=False)
class Sums:
    """Named arrays and numbers that add up over clients."""

    parts: dict[str, Any]
    sent: int = 0  # bytes of the arrays that it was put together from
    clients: tuple[int, ...] | None = None  # whose; None: all that were asked

    @classmethod
    def of(cls, **parts: Any) -> Sums:
        """One client's message; Rows stay as they are until they are added up."""
        arrays = {name: value if isinstance(value, Rows) else np.asarray(value) for name, value in parts.items()}
        sent = sum(value.nbytes for value in arrays.values() if isinstance(value, Rows) or value.ndim)
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
            total = {name: _opening(value) for name, value in message.parts.items()}
        elif total.keys() != message.parts.keys():
            raise ValueError(f"cannot add sums of {sorted(total)} and {sorted(message.parts)}")
        for name, value in message.parts.items():
            if isinstance(value, Rows):
                add_rows(total[name], value.rows, value.values)
            else:
                total[name] += value
    return Sums(total, sent)


def _opening(value: Any) -> Array:
    """Zeros for a sum."""
    shape = (value.height, *value.values.shape[1:]) if isinstance(value, Rows) else value.shape
    return np.zeros(shape)
