"""What travels: a Broadcast goes down, Sums come up. Two Sums can be added, and only their sum is ever needed.

Broadcast   the server's request to a client: the task, the item factors V, and what the algorithm shares beside V
Sums        one client's reply, or the sum of several: named arrays and numbers
Part        what a reply must hold under one name: its shape and how it is encoded; a Schema is all parts of a reply
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedmc.algorithms.settings import Settings
from fedmc.kernels.steps import add_rows
from fedmc.problem.scaling import Scaling
from fedmc.types import Array

Task = Literal["moments", "scale", "start", "round", "measure", "finish"]
TASKS: tuple[str, ...] = get_args(Task)
STATEFUL_TASKS = ("start", "round")  # they change a client's state
SUM_BITS = 28  # binary digits behind the point of sums over ratings, under fixed-point encoding
NUMBER_BITS = 20  # of counts, losses and the like, which are larger


@dataclass(frozen=True, eq=False)
class Shared:
    """Arrays that the algorithm sends down beside V, and what clients derive from them, once a process."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    _derived: dict[str, object] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def derive(self, name: str, make: Callable[[], Array]) -> Array:
        """make(), worked out at the first call."""
        if name not in self._derived:
            self._derived[name] = make()
        return cast(Array, self._derived[name])


NOTHING = Shared()


class Broadcast(NamedTuple):
    """The server's request to a client: what to do, at which V."""

    task: Task
    round: int
    clients: int  # the paper's p
    settings: Settings
    V: Array
    scaling: Scaling = Scaling()
    shared: Shared = NOTHING
    full: bool = False  # with "measure": also what the theory needs

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that travel to each client."""
        return self.V.nbytes + self.shared.nbytes


class Part(NamedTuple):
    """One entry of a reply: the one source for checks, fixed-point encoding, byte counts and memory estimates."""

    shape: tuple[int, ...] = ()  # () is a number
    bits: int = NUMBER_BITS  # binary digits behind the point, under fixed-point encoding
    cumulative: bool = False  # the client's whole contribution so far: what travels is its change
    sparse: bool = False  # in plain only the rows of rated items travel
    nonnegative: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


Schema = dict[str, Part]


def length(schema: Schema) -> int:
    """How many numbers a dense reply holds."""
    return sum(part.size for part in schema.values())


class Sparse(ABC):
    """An array of `height` rows that are zero except for some."""

    height: int
    rows: Array  # which; where several clients reply at once, those of each ascending

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


Value = Array | Sparse


@dataclass(frozen=True, eq=False)
class Sums:
    """Named arrays and numbers that add up over clients."""

    parts: dict[str, Value]
    sent: int = 0  # bytes that clients sent for it
    clients: tuple[int, ...] | None = None  # who took part; None: all that were asked
    received: int = 0  # bytes that were sent to clients for it

    @classmethod
    def of(cls, **parts: ArrayLike | Sparse) -> Sums:
        """One client's reply; sparse parts stay as they are until they are added up."""
        arrays = {name: value if isinstance(value, Sparse) else np.asarray(value) for name, value in parts.items()}
        return cls(arrays, sum(value.nbytes for value in arrays.values()))

    def __getitem__(self, name: str) -> Array:
        """A part of a sum, or a dense part of a reply."""
        part = self.parts[name]
        assert not isinstance(part, Sparse)
        return part

    def number(self, name: str) -> float:
        return float(self[name])


def dense(value: Value, shape: tuple[int, ...]) -> Array:
    """A part of a reply as an array of float64."""
    found = np.zeros(shape)
    if isinstance(value, Sparse):
        value.add_to(found)
    else:
        np.copyto(found, value)
    return found


def add_up(replies: Iterable[Sums]) -> Sums:
    """The sum of at least one reply, in float64, added in their order."""
    total: dict[str, Array] = {}
    sent = 0
    for reply in replies:
        sent += reply.sent
        if not total:
            total = {name: np.zeros(value.shape) for name, value in reply.parts.items()}
        elif total.keys() != reply.parts.keys():
            raise ValueError(f"cannot add sums of {sorted(total)} and {sorted(reply.parts)}")
        for name, value in reply.parts.items():
            if isinstance(value, Sparse):
                value.add_to(total[name])
            else:
                total[name] += value
    return Sums(dict(total), sent)
