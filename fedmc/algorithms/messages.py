"""The messages of a run: the server sends a Broadcast, clients reply with Sums, and only the sum of replies is needed.

Broadcast   the server's request to a client: the task, the item factors V, and the arrays that the algorithm adds
Sums        one client's reply, or the sum of several: named arrays and numbers
Part        the description of one entry of a reply: its shape and encoding; a Schema holds all parts of a reply
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedmc.algorithms.settings import Settings
from fedmc.kernels.steps import add_rows
from fedmc.problem.scaling import Scaling
from fedmc.types import Array

Task = Literal["moments", "scale", "pattern", "start", "round", "users", "measure", "finish"]
TASKS: tuple[str, ...] = get_args(Task)
STATEFUL_TASKS = ("start", "round")  # they change a client's state
SUM_BITS = 28  # fractional bits of sums over ratings, under fixed-point encoding
Derived = TypeVar("Derived")
NUMBER_BITS = 20  # fractional bits of counts, losses and the like, which are larger


@dataclass(frozen=True, eq=False)
class Shared:
    """Arrays that the algorithm broadcasts beside V, and a cache of what clients derive from them."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    _derived: dict[str, object] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def derive(self, name: str, make: Callable[[], Derived]) -> Derived:
        """make(), computed at the first call only."""
        if name not in self._derived:
            self._derived[name] = make()
        return cast(Derived, self._derived[name])


NOTHING = Shared()
ITEM_FEATURES = "item_features"  # given to `Algorithm.start`, never broadcast


class Broadcast(NamedTuple):
    """The server's request to a client: the task, and the V to do it at."""

    task: Task
    round: int
    clients: int  # the paper's p
    settings: Settings
    V: Array
    scaling: Scaling = Scaling()
    shared: Shared = NOTHING
    full: bool = False  # with "measure": also what the theory needs
    measured: bool = False  # with "round": also measure at this V, before the update

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are sent to each client."""
        return self.V.nbytes + self.shared.nbytes


class Part(NamedTuple):
    """Describes one entry of a reply; checks, fixed-point encoding, byte counts and memory estimates all use it."""

    shape: tuple[int, ...] = ()  # () is a number
    bits: int = NUMBER_BITS  # fractional bits, under fixed-point encoding
    cumulative: bool = False  # the client's whole contribution so far, of which only the change is sent
    sparse: bool = False  # in plain mode only the rows of rated items are sent
    nonnegative: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


Schema = dict[str, Part]


def length(schema: Schema) -> int:
    """The number of values in a dense reply."""
    return sum(part.size for part in schema.values())


class Sparse(ABC):
    """An array of `height` rows that are zero except for `rows`."""

    height: int
    rows: Array  # their numbers, ascending; if several clients reply together, ascending within each

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
        """sums[rows] += values, one row after the other, since rows may repeat."""


class Rows(Sparse):
    """Row numbers and their values."""

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
    """Named arrays and numbers that are summed over clients."""

    parts: dict[str, Value]
    sent: int = 0  # bytes that clients sent for it
    clients: tuple[int, ...] | None = None  # the participants; None: all clients that were asked
    received: int = 0  # bytes that clients received for it

    @classmethod
    def of(cls, **parts: ArrayLike | Sparse) -> Sums:
        """One client's reply; sparse parts stay sparse until they are summed."""
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


def add_up(replies: Iterable[Sums], onto: Sums | None = None) -> Sums:
    """The sum of at least one reply, in float64, added in the given order; with `onto`, in the arrays of that sum."""
    total: dict[str, Array] = {} if onto is None else {name: onto[name] for name in onto.parts}
    sent = 0 if onto is None else onto.sent
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
