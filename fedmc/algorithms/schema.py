"""The schema of every reply: the parts common to all algorithms, and the algorithm's own."""

from __future__ import annotations

from collections.abc import Callable

from fedmc.algorithms import measures
from fedmc.algorithms.messages import Broadcast, Part, Schema, length

NUMBER_BYTES, ROW_BYTES = 12, 12  # float64 or int64 and its share of the framing; a row's number
FRAMING = 100_000  # of a message, at most


def _moments(broadcast: Broadcast, items: int) -> Schema:
    count = Part(nonnegative=True)
    return {"count": count, "sum": Part(), "squares": count, "items": Part((items,), sparse=True, nonnegative=True)}


def _nothing(broadcast: Broadcast, items: int) -> Schema:
    return {}


COMMON: dict[str, Callable[[Broadcast, int], Schema]] = {
    "moments": _moments,
    "measure": measures.schema,
    "finish": _nothing,
}


def schema_of(broadcast: Broadcast, items: int) -> Schema:
    """The parts that a reply to this broadcast must hold."""
    made = COMMON.get(broadcast.task) or broadcast.settings.make_algorithm().schema
    return made(broadcast, items)


def max_bytes(broadcast: Broadcast, items: int) -> int:
    """No honest reply takes more bytes."""
    return NUMBER_BYTES * length(schema_of(broadcast, items)) + ROW_BYTES * items + FRAMING
