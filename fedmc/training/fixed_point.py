"""Replies in fixed point: one vector of integers, in the order of the schema, and back.

A number that does not fit is an error in the simulation. A node under secure aggregation cuts it instead: an error
would tell the server something about this client's ratings, while a cut number disappears in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import numpy as np

from fedmc.algorithms.messages import NUMBER_BITS, Broadcast, Schema, Sums, Value, dense, length
from fedmc.algorithms.state import State
from fedmc.errors import DataError, Diverged, InputError, require
from fedmc.privacy.secagg.fixed import cut, from_fixed, limit_of, to_fixed
from fedmc.types import Array

Encode = Callable[[Array, int, Broadcast], Array]  # of values with so many fractional bits


WHOLE, MEASUREMENT, DECOYS = "whole numbers", "measured numbers", "decoys"  # a fixed-point state's integers in files
NOTHING = np.empty(0, np.int64)


class FixedPointState(NamedTuple):
    """A client's state, and its contribution to the server's running sum, in whole steps."""

    inner: State
    whole: Array
    measured: Array = NOTHING  # its last counted measurement, if measurements are sent as changes
    decoys: Array = NOTHING  # the client's secret, and the values of its decoys

    @property
    def U(self) -> Array:
        return np.asarray(self.inner.U)


def taken_apart(state: State) -> tuple[State, dict[str, Array]]:
    """The algorithm's own state, and what is counted of it in whole steps, for a node's store."""
    if isinstance(state, FixedPointState):
        return state.inner, {WHOLE: state.whole, MEASUREMENT: state.measured, DECOYS: state.decoys}
    return state, {}


def put_together(inner: State, steps: Mapping[str, Array]) -> State:
    """Inverse of `taken_apart`; earlier versions stored the contribution in the shape of the sum."""
    if WHOLE not in steps:
        return inner
    measured, decoys = (steps.get(name, NOTHING) for name in (MEASUREMENT, DECOYS))
    return cast(State, FixedPointState(inner, steps[WHOLE].ravel(), measured, decoys))


def with_measurement(state: State | None, measured: Array) -> State | None:
    if isinstance(state, FixedPointState):
        return cast(State, state._replace(measured=measured))
    return state if state is None or not len(measured) else cast(State, FixedPointState(state, measured[:0], measured))


def is_taken_out(state: State | None, schema: Schema) -> bool:
    """Whether this client has taken its contribution out of the sum."""
    counted = any(part.cumulative for part in schema.values())
    return counted and isinstance(state, FixedPointState) and not len(state.whole)


def is_measured(state: State | None) -> bool:
    """Whether a measurement of this client is counted."""
    return isinstance(state, FixedPointState) and len(state.measured) > 0


def flat(reply: Sums, schema: Schema) -> Array:
    """A fixed-point reply as one vector, in the order of the schema."""
    return np.concatenate([reply[name].ravel() for name in schema])


def unflat(words: Array, schema: Schema) -> dict[str, Array]:
    """Inverse of `flat`: the integers by name."""
    parts, start = {}, 0
    for name, part in schema.items():
        parts[name] = words[start : start + part.size].reshape(part.shape)
        start += part.size
    return parts


def decoded(total: Array, schema: Schema, sent: int) -> Sums:
    """The sums that a flat vector of integers encodes."""
    parts: dict[str, Value] = {
        name: from_fixed(part, schema[name].bits) for name, part in unflat(total, schema).items()
    }
    return Sums(parts, sent)


def fixed(values: Array, bits: int, broadcast: Broadcast) -> Array:
    """Encode in whole steps of 2^-bits; a number that is too large raises Diverged."""
    try:
        return to_fixed(values, bits, limit_of(broadcast.clients, bits)).ravel()
    except InputError as error:
        raise Diverged(broadcast.round, str(error), "rescale the ratings, or raise the penalties or beta") from None


def cutting(on_cut: Callable[[str], None]) -> Encode:
    """`fixed`, but a number that is not finite or too large becomes the largest that fits; `on_cut` is told."""

    def encode(values: Array, bits: int, broadcast: Broadcast) -> Array:
        try:
            return fixed(values, bits, broadcast)
        except Diverged as error:
            on_cut(str(error))
            limit = limit_of(broadcast.clients, bits)
            return to_fixed(cut(values, limit), bits, limit).ravel()

    return encode


def split(change: Array, whole: Mapping[str, Array]) -> dict[str, Array]:
    """A vector of integers as the parts that it was made of."""
    ends = np.cumsum([values.size for values in whole.values()])[:-1]
    return dict(zip(whole, np.split(change, ends), strict=True))


def taken_out(state: State | None, schema: Schema, leaves: bool) -> tuple[State, Array]:
    """A client's reply in a round that takes whole contributions out of the sum, and its state afterwards.

    A client that leaves sends minus its own contribution, all others send zeros. Its state then holds none. DataError:
    it has none in whole steps.
    """
    ends = np.cumsum([part.size for part in schema.values() if part.cumulative])
    if not isinstance(state, FixedPointState):
        raise DataError("no contribution in whole steps is kept")
    require(bool(len(ends)) and ends[-1] == len(state.whole), "the state holds another contribution", DataError)
    words = {name: np.zeros(part.size, np.int64) for name, part in schema.items()}
    if leaves:
        pieces = iter(np.split(-state.whole, ends[:-1]))
        words |= {name: next(pieces) for name, part in schema.items() if part.cumulative}
        words["joined"] = np.array([-1 << NUMBER_BITS])
        state = state._replace(whole=NOTHING)
    return cast(State, state), np.concatenate(list(words.values()))


def integers(
    parts: Mapping[str, Value],
    schema: Schema,
    broadcast: Broadcast,
    encode: Encode,
    changes: Mapping[str, Array] | None = None,
) -> Sums:
    """A reply in whole steps; `changes` holds the cumulative parts, already encoded."""
    found: dict[str, Value] = {}
    for name, part in schema.items():
        change = (changes or {}).get(name)
        steps = encode(dense(parts[name], part.shape), part.bits, broadcast) if change is None else change
        found[name] = steps.reshape(part.shape)
    return Sums(found, 8 * length(schema))
