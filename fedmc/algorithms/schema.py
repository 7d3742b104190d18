"""The schema of every reply: the parts common to all algorithms, and the algorithm's own."""

from __future__ import annotations

from collections.abc import Callable

from fedmc.algorithms import measures
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums, length
from fedmc.errors import InputError

NUMBER_BYTES, ROW_BYTES = 12, 12  # upper bounds per value (8 bytes, and its share of the framing) and per row number
MEASURED = "measured "  # before the names of measurements that come with an update
FRAMING = 100_000  # upper bound on the framing of a message, in bytes


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
    rides = measures.schema(broadcast, items) if broadcast.measured else {}
    return made(broadcast, items) | {MEASURED + name: part for name, part in rides.items()}


def measured_parts(total: Sums) -> Sums:
    """The measurement that came with the sum of a round."""
    found = {name: part for name, part in total.parts.items() if name.startswith(MEASURED)}
    return Sums({name.removeprefix(MEASURED): part for name, part in found.items()})


def check_parts(reply: Sums, broadcast: Broadcast, items: int) -> None:
    """Refuse a reply whose parts are not those of the algorithm's own schema."""
    expected = schema_of(broadcast, items).keys()
    if reply.parts.keys() != expected:
        name = broadcast.settings.make_algorithm()
        raise InputError(f"{name} replies with {sorted(reply.parts)}, but its schema has {sorted(expected)}")


def max_bytes(broadcast: Broadcast, items: int) -> int:
    """Upper bound on the bytes of an honest reply."""
    return NUMBER_BYTES * length(schema_of(broadcast, items)) + ROW_BYTES * items + FRAMING
