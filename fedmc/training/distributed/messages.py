"""What the driver and its workers send each other: pickled, with the arrays apart, so that Ray stores them uncopied."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.messages import Broadcast, Rows, Shared, Sparse, Sums, Value
from fedmc.training.distributed.library import ray
from fedmc.training.tree import Piece, Share
from fedmc.types import Array


class Packed(NamedTuple):
    """An object and its arrays, as bytes."""

    content: bytes
    arrays: list[Array]


class Question(NamedTuple):
    """What a worker is asked: the number of the question, and whom it concerns."""

    number: int
    clients: list[int]
    share: Share


class Answer(NamedTuple):
    pieces: list[Piece]
    changed: bool  # whether a client's state is another now


def pack(content: object) -> Packed:
    buffers: list[pickle.PickleBuffer] = []
    found = ray().cloudpickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    return Packed(found, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


def unpack(packed: Packed) -> Any:
    """The object, with arrays of its own that may be written; those in Ray's store are read-only."""
    return ray().cloudpickle.loads(packed.content, buffers=[array.copy() for array in packed.arrays])


def looked_at(packed: Packed) -> Any:
    """The object, with arrays that may only be read and, on Ray, are not copied."""
    arrays = [array.view() for array in packed.arrays]
    for array in arrays:
        array.flags.writeable = False
    return ray().cloudpickle.loads(packed.content, buffers=arrays)


def pack_broadcast(broadcast: Broadcast) -> Packed:
    """A broadcast without what was derived from it."""
    return pack(broadcast._replace(shared=Shared(broadcast.shared.arrays)))


def computed(piece: Piece) -> Piece:
    """A piece whose rows are computed: lazy ones hold on to a client's ratings, which stay where they are."""
    parts = {name: _rows(value) for name, value in piece.sums.parts.items()}
    return piece._replace(sums=Sums(parts, piece.sums.sent))


def _rows(value: Value) -> Value:
    return Rows(value.rows, value.values, value.height) if isinstance(value, Sparse) else value
