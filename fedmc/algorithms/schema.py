"""The schema of every reply: the parts common to all algorithms, and the algorithm's own."""

from __future__ import annotations

from collections.abc import Callable

from fedmc.algorithms import measures
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums, length
from fedmc.errors import InputError

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


def check_parts(reply: Sums, broadcast: Broadcast, items: int) -> None:
    """Refuse a reply whose parts are not those of the algorithm's own schema."""
    expected = schema_of(broadcast, items).keys()
    if reply.parts.keys() != expected:
        name = broadcast.settings.make_algorithm()
        raise InputError(f"{name} replies with {sorted(reply.parts)}, but its schema has {sorted(expected)}")


def max_bytes(broadcast: Broadcast, items: int) -> int:
    """No honest reply takes more bytes."""
    return NUMBER_BYTES * length(schema_of(broadcast, items)) + ROW_BYTES * items + FRAMING
