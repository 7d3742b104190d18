"""Replies that the server sees one by one: each is checked against the schema before it is aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmc.algorithms.messages import Broadcast, Part, Sparse, Sums, Value
from fedmc.algorithms.schema import max_bytes, schema_of
from fedmc.errors import DataError, TooFewError, quoted, reason
from fedmc.federation.server.asking import Asking
from fedmc.federation.statuses import DIVERGED, OK
from fedmc.federation.wire import Reply, decode_reply, from_bytes
from fedmc.training import tree
from fedmc.training.aggregation import aggregation_of

NUMBERS = ("float32", "float64", "int32", "int64")


def ask_directly(asking: Asking, broadcast: Broadcast, asked: list[int]) -> Sums:
    """The aggregate of the nodes' replies; its `clients` are the nodes in it."""
    members = asking.members
    contents = {client: asking.encoded(client, broadcast) for client in asked}
    needed = len(asked) if broadcast.task == "start" else min(members.quorum, len(asked))
    answers = asking.exchange(contents, max_bytes(broadcast, members.items), needed)
    replies = Replies(asking, broadcast)
    counted = {client: sums for client in asked if (sums := replies.read(client, answers.get(client))) is not None}
    asking.witness_releases(counted, broadcast)
    asking.stop_if_diverged(replies.diverged, asked, broadcast)
    if len(counted) < needed:
        missing = asking.reasons(len(asked) - len(counted))
        there = f"{len(counted)} of {len(asked)} nodes took part, {needed} must"
        raise TooFewError(f"round {broadcast.round}: {there} ({missing})")
    clients = tuple(sorted(counted))
    ordered = tree.pieces(((client, counted[client]) for client in clients), clients)
    total, factors = aggregation_of(broadcast.settings.privacy).combine(ordered, broadcast, members.items)
    asking.factors |= factors
    return replace(total, clients=clients, sent=sum(len(answers[client]) for client in answers))


def finish(asking: Asking, broadcast: Broadcast, clients: Sequence[int]) -> tuple[int, ...]:
    """Send the final V to these nodes; returns those that confirmed it."""
    last = broadcast._replace(task="finish")
    contents = {client: asking.encoded(client, last) for client in clients}
    answers = asking.exchange(contents, max_bytes(last, asking.members.items), 0)
    replies = Replies(asking, last)
    return tuple(client for client in clients if replies.read(client, answers.get(client)) is not None)


class Replies:
    """Reads nodes' replies to one broadcast, and counts those that diverged."""

    def __init__(self, asking: Asking, broadcast: Broadcast) -> None:
        self.asking, self.broadcast, self.diverged = asking, broadcast, 0

    def read(self, client: int, answer: bytes | None) -> Sums | None:
        """A node's sums; None, and a line in the log, if the node is left out."""
        asking, broadcast = self.asking, self.broadcast
        if answer is None:
            asking.leave_out(client, broadcast, "no answer in time")
            return None
        try:
            reply = decode_reply(*from_bytes(answer))
            self.diverged += reply.status == DIVERGED
            if reply.status != OK:
                asking.leave_out(client, broadcast, asking.explain(reply))
                return None
            expected = (asking.run, client, broadcast.round, broadcast.task)
            if (reply.run, reply.client, reply.round, reply.task) != expected:
                raise DataError(f"it is a reply to {quoted(reply[:4], 300)}, expected {expected}")
            check(reply, broadcast, asking.members.items, client in asking.counted)
        except Exception as error:  # malformed bytes can raise anything
            asking.leave_out(client, broadcast, f"refused: {reason(error)}")
            return None
        return reply.sums


def check(reply: Reply, broadcast: Broadcast, items: int, known: bool) -> None:
    """Refuse an update with wrong parts, shapes, types or newcomer count, or with numbers that are not finite."""
    assert reply.sums is not None
    schema, aggregation = schema_of(broadcast, items), aggregation_of(broadcast.settings.privacy)
    if reply.sums.parts.keys() != schema.keys():
        raise DataError(f"it holds {quoted(sorted(reply.sums.parts), 300)}, expected {sorted(schema)}")
    for name, part in schema.items():
        value = reply.sums.parts[name]
        aggregation.check_encoding(name, value)
        check_part(name, value, part)
    expected = 0 if known else aggregation.joined_value()
    if "joined" in schema and reply.sums.number("joined") != expected:
        raise DataError("it joins twice" if known else "it never joined")


def check_part(name: str, value: Value, part: Part) -> None:
    values = value.values if isinstance(value, Sparse) else value
    if values.dtype.name not in NUMBERS or not values.dtype.isnative:
        raise DataError(f"{name} is of type {values.dtype}")
    if isinstance(value, Sparse) and not part.sparse:
        raise DataError(f"{name} must have a row for every item")
    if isinstance(value, Sparse):
        _check_rows(name, value, part.shape)
    elif value.shape != part.shape:
        raise DataError(f"{name} has shape {value.shape}, expected {part.shape}")
    if not np.isfinite(values).all():
        raise DataError(f"{name} is not finite")
    if part.nonnegative and values.size and float(np.min(values)) < 0:
        raise DataError(f"{name} is negative")


def _check_rows(name: str, part: Sparse, shape: tuple[int, ...]) -> None:
    rows = part.rows
    if (part.height, *part.values.shape[1:]) != shape or rows.ndim != 1 or len(rows) != len(part.values):
        raise DataError(f"{name} has shape {(part.height, *part.values.shape[1:])}, expected {shape}")
    if rows.dtype.kind not in "iu" or (len(rows) and (rows[0] < 0 or rows[-1] >= shape[0])):
        raise DataError(f"{name} has rows for items that are not there")
    if (np.diff(rows.astype(np.int64)) <= 0).any():
        raise DataError(f"{name} names its items out of order, or twice")
